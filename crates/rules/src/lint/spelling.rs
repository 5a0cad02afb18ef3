//! Values that no HTTP request has, because listeners convert methods, paths, hosts and addresses to one spelling.

use tidegate_core::{CanonicalError, EncodedSlashes, canonical_host, canonical_path, check_method};

use crate::error::quote;
use crate::network::{parse_address, parse_network};

/// A check of the values of one condition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpellingCheck {
    /// Set if `*` stands for any text.
    pub(crate) has_stars: bool,
    /// Set if the condition ignores the case of letters.
    pub(crate) ignores_case: bool,
    /// Set if `%2F` may be in a path.
    pub(crate) keeps_encoded_slashes: bool,
}

impl SpellingCheck {
    /// Returns the wanted value, if no request has the found one.
    pub(crate) fn wanted(self, attribute: &str, text: &str) -> Option<String> {
        match attribute {
            "method" => self.method(text),
            "path" => self.path(text),
            "host" => self.host(text),
            "ip" => self.ip(text),
            _ => None,
        }
    }

    fn method(self, text: &str) -> Option<String> {
        let letters: String = text.chars().filter(|c| !(self.has_stars && *c == '*')).collect();
        let upper = letters.to_ascii_uppercase();
        if letters.is_empty()
            || check_method(if self.ignores_case { &upper } else { &letters }).is_ok()
        {
            return None;
        }
        Some(match check_method(&upper) {
            Ok(()) => quote(&text.to_ascii_uppercase()),
            Err(_) if text.contains([',', ' ', '|']) => "a list such as [GET, POST]".to_owned(),
            Err(_) => "upper-case letters, digits, - or _".to_owned(),
        })
    }

    fn path(self, text: &str) -> Option<String> {
        // The target of `OPTIONS *`.
        if text == "*" {
            return None;
        }
        if let Some((path, _)) = text.split_once('?') {
            let wanted = if path.is_empty() { "a path".to_owned() } else { quote(path) };
            return Some(format!("{wanted}, and query.NAME for its query"));
        }
        let starts_well = text.starts_with('/') || (self.has_stars && text.starts_with('*'));
        let rooted = if starts_well { text.to_owned() } else { format!("/{text}") };
        let canonical = match self.has_stars && text.contains('*') {
            true => self.canonical_pattern(&rooted),
            false => self.canonical(&rooted),
        };
        let canonical = match canonical {
            Ok(canonical) => canonical,
            Err(CanonicalError::EncodedSlash) => {
                return Some(
                    "a path without %2F and %5C, or a route with encoded_slashes: keep".to_owned(),
                );
            }
            Err(error) => {
                let (_, wanted) = error.detail().split_once("wanted ").unwrap_or_default();
                return Some(wanted.to_owned());
            }
        };
        let is_same = match self.ignores_case {
            true => canonical.eq_ignore_ascii_case(text),
            false => canonical == text,
        };
        (!is_same).then(|| quote(&canonical))
    }

    fn canonical(self, path: &str) -> Result<String, CanonicalError> {
        let slashes = match self.keeps_encoded_slashes {
            true => EncodedSlashes::Keep,
            false => EncodedSlashes::Reject,
        };
        canonical_path(path, slashes).map(String::from)
    }

    /// Returns the pattern with the canonical spelling of the text between stars.
    fn canonical_pattern(self, pattern: &str) -> Result<String, CanonicalError> {
        let mut segments: Vec<String> = Vec::new();
        let last = pattern.split('/').count() - 1;
        for (index, segment) in pattern.split('/').enumerate() {
            match segment {
                "" if index == 0 || index == last => segments.push(String::new()),
                "" | "." => {}
                // The segment before it may contain a star, and stand for several segments.
                ".." => return Err(CanonicalError::DotSegmentParameters),
                _ => segments.push(self.canonical_segment(segment)?),
            }
        }
        Ok(segments.join("/"))
    }

    fn canonical_segment(self, segment: &str) -> Result<String, CanonicalError> {
        let texts: Result<Vec<String>, CanonicalError> = segment
            .split('*')
            // The letter keeps a text of dots from being a dot segment.
            .map(|text| match self.canonical(&format!("/x{text}")) {
                Ok(canonical) => Ok(canonical.chars().skip(2).collect()),
                // A star may stand for the rest of an escape.
                Err(CanonicalError::InvalidEscape) if segment.contains('*') => Ok(text.to_owned()),
                Err(error) => Err(error),
            })
            .collect();
        Ok(texts?.join("*"))
    }

    fn host(self, text: &str) -> Option<String> {
        if self.has_stars && text.contains('*') {
            if text.contains('/') {
                return Some("a host like *.example.com".to_owned());
            }
            let name = match text.rsplit_once(':') {
                Some((name, _)) if !text.contains('[') => name,
                _ => text,
            };
            let name = if self.ignores_case { name.to_owned() } else { name.to_ascii_lowercase() };
            return (name != text).then(|| quote(&name));
        }
        let Ok(host) = canonical_host(text) else {
            return Some("a host like example.com".to_owned());
        };
        let is_same = match self.ignores_case {
            true => host.name.eq_ignore_ascii_case(text),
            false => host.name == text,
        };
        (!is_same).then(|| quote(&host.name))
    }

    fn ip(self, text: &str) -> Option<String> {
        if self.has_stars && text.contains('*') {
            return None;
        }
        if text.contains('/') {
            return parse_network(text).is_ok().then(|| format!("{{in: {}}}", quote(text)));
        }
        let canonical = parse_address(text)?.to_string();
        (canonical != text).then(|| quote(&canonical))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: SpellingCheck =
        SpellingCheck { has_stars: true, ignores_case: false, keeps_encoded_slashes: false };

    fn wanted(attribute: &str, text: &str) -> Option<String> {
        PATTERN.wanted(attribute, text)
    }

    #[test]
    fn values_without_a_canonical_spelling_have_a_correction() {
        for (attribute, text, correction) in [
            ("method", "get", r#""GET""#),
            ("method", "g*", r#""G*""#),
            ("method", "GET, POST", "a list such as [GET, POST]"),
            ("path", "v1/x", r#""/v1/x""#),
            ("path", "v1/**", r#""/v1/**""#),
            ("path", "//a", r#""/a""#),
            ("path", "/a//**", r#""/a/**""#),
            ("path", "/a/../b", r#""/b""#),
            ("path", "/a/./*", r#""/a/*""#),
            ("path", "/*/../b", "a path without it"),
            ("path", "/a%2Fb", "a path without %2F and %5C, or a route with encoded_slashes: keep"),
            ("path", "/a%2f*", "a path without %2F and %5C, or a route with encoded_slashes: keep"),
            ("path", "/café", r#""/caf%C3%A9""#),
            ("path", "/café/**", r#""/caf%C3%A9/**""#),
            ("path", "/caf%c3%a9", r#""/caf%C3%A9""#),
            ("path", "/%6Cogin", r#""/login""#),
            ("path", "/a b", r#""/a%20b""#),
            ("path", "/100%", "an escape like %20"),
            ("path", "/a?b=c", r#""/a", and query.NAME for its query"#),
            ("path", "/a\\b", "a path without it"),
            ("host", "API.example.com", r#""api.example.com""#),
            ("host", "api.example.com:8080", r#""api.example.com""#),
            ("host", "*.Example.com", r#""*.example.com""#),
            ("host", "*.example.com:443", r#""*.example.com""#),
            ("host", "https://example.com", "a host like example.com"),
            ("ip", "10.0.0.0/8", r#"{in: "10.0.0.0/8"}"#),
            ("ip", "2001:DB8::1", r#""2001:db8::1""#),
        ] {
            assert_eq!(wanted(attribute, text).as_deref(), Some(correction), "{attribute} {text}");
        }
    }

    #[test]
    fn canonical_values_have_no_correction() {
        for (attribute, text) in [
            ("method", "GET"),
            ("method", "*"),
            ("method", "P*"),
            ("method", "M-SEARCH"),
            ("path", "/"),
            ("path", "*"),
            ("path", "**"),
            ("path", "**/admin/**"),
            ("path", "*.php"),
            ("path", "/v1/**"),
            ("path", "/v1/*/x/"),
            ("path", "/v1/*."),
            ("path", "/..*"),
            ("path", "/.well-known/x"),
            ("path", "/caf%C3%A9"),
            ("path", "/caf%*"),
            ("path", "/a%25b"),
            ("path", "/@me;x=1/a+b"),
            ("path", "/tidegate.v1.RateLimit/Check"),
            ("host", "api.example.com"),
            ("host", "*.example.com"),
            ("host", "*"),
            ("host", "[2001:db8::1]"),
            ("host", "[2001:db8::*]"),
            ("ip", "192.0.2.7"),
            ("ip", "10.0.0.*"),
            ("ip", "2001:db8::"),
            ("ip", "unknown"),
            ("user", "get"),
            ("api_key", "//a"),
        ] {
            assert_eq!(wanted(attribute, text), None, "{attribute} {text}");
        }
    }

    #[test]
    fn conditions_that_ignore_case_or_keep_slashes_accept_more_spellings() {
        let ignoring = SpellingCheck { ignores_case: true, ..PATTERN };
        for (attribute, text) in [
            ("method", "get"),
            ("path", "/caf%c3%a9"),
            ("path", "/Login"),
            ("host", "API.example.com"),
        ] {
            assert_eq!(ignoring.wanted(attribute, text), None, "{attribute} {text}");
        }
        let keeping = SpellingCheck { keeps_encoded_slashes: true, ..PATTERN };
        assert_eq!(keeping.wanted("path", "/a%2Fb"), None);
        assert_eq!(keeping.wanted("path", "/a%2Fb/**"), None);
        let text = SpellingCheck { has_stars: false, ..PATTERN };
        assert_eq!(text.wanted("path", "/a*b"), None);
        assert_eq!(text.wanted("path", "*b").as_deref(), Some(r#""/*b""#));
    }
}
