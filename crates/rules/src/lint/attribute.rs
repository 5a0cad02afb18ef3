//! Names of attributes that are probably misspelt.

use std::collections::BTreeSet;

use crate::nearest::distance;

/// The attributes that listeners set without a configuration, and those of proxies that call the rate limit service.
const KNOWN_ATTRIBUTES: [&str; 16] = [
    "ip",
    "service",
    "route",
    "upstream",
    "bearer",
    "session",
    "api_key",
    "user",
    "method",
    "path",
    "host",
    "domain",
    "generic_key",
    "header_match",
    "remote_address",
    "masked_remote_address",
];

/// The words before the dot of attributes with any name: `header.x-tenant`.
const PREFIXES: [&str; 4] = ["header", "query", "cookie", "claim"];

/// Returns the known attribute that a name most likely misspells; `None` for a known name.
///
/// Callers choose the names of attributes freely, so a name that is close to no known one is no misspelling. One letter
/// of four may differ, or two letters may be exchanged: `plan` is not `path`, and `role` is not `route`.
pub(crate) fn misspelt(name: &str, configured: &BTreeSet<String>) -> Option<String> {
    let known = || KNOWN_ATTRIBUTES.into_iter().chain(configured.iter().map(String::as_str));
    if known().any(|known| known == name) {
        return None;
    }
    if let Some((prefix, rest)) = name.split_once('.')
        && !rest.is_empty()
    {
        if PREFIXES.contains(&prefix) {
            return None;
        }
        if let Some(meant) = closest(prefix, PREFIXES) {
            return Some(format!("{meant}.{rest}"));
        }
    }
    closest(name, known()).map(str::to_owned)
}

/// Returns the word that differs least from a name, if it is close enough.
fn closest<'w>(name: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let difference = |word: &'w str| {
        // No word is twice as long as another one that is close to it.
        if name.len() > 2 * word.len() {
            return None;
        }
        let found = distance(name, word);
        let is_close = found <= word.len() / 4 || (found == 2 && has_same_letters(name, word));
        is_close.then_some((found, word))
    };
    words.into_iter().filter_map(difference).min().map(|(_, word)| word)
}

fn has_same_letters(one: &str, other: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters = text.to_ascii_lowercase().into_bytes();
        letters.sort_unstable();
        letters
    };
    other.len() >= 4 && sorted(one) == sorted(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(name: &str) -> Option<String> {
        misspelt(name, &BTreeSet::from(["tenant".to_owned(), "usr".to_owned()]))
    }

    #[test]
    fn misspelt_attributes_are_found() {
        for (name, known) in [
            ("apikey", "api_key"),
            ("api-key", "api_key"),
            ("apiKey", "api_key"),
            ("pth", "path"),
            ("ptah", "path"),
            ("Path", "path"),
            ("IP", "ip"),
            ("mehtod", "method"),
            ("methods", "method"),
            ("tenent", "tenant"),
            ("usre", "user"),
            ("remote_adress", "remote_address"),
            ("headers.x-tenant", "header.x-tenant"),
            ("cookies.session", "cookie.session"),
            ("claims.plan", "claim.plan"),
        ] {
            assert_eq!(meant(name).as_deref(), Some(known), "{name}");
        }
    }

    #[test]
    fn attributes_of_callers_are_no_misspellings() {
        for name in [
            "tenant",
            "usr",
            "user",
            "plan",
            "role",
            "tier",
            "team",
            "zone",
            "id",
            "zip",
            "vip",
            "key",
            "org",
            "region",
            "account",
            "customer",
            "device",
            "database",
            "user_id",
            "client_id",
            "source",
            "endpoint",
            "model",
            "app.version",
            "header.x-tenant",
            "claim.plan",
            "a",
            "b",
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
