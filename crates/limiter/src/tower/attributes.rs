//! Reading of the attributes that rules use, from the head of a request.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use tidegate_core::{EncodedSlashes, Request};
use tidegate_rules::{AttributeChain, Condition, Mode, Override, Rule, RuleSet, TierLimits};

use super::local_response::RequestRejection;
use super::source::AttributeSource;

/// Reads the attributes of a request that the rules use.
#[derive(Clone, Debug)]
pub(crate) struct AttributeReader {
    /// Attributes that the rules use, with their sources.
    known: Vec<(Box<str>, AttributeSource)>,
    /// Attributes that the rules use and that have no source.
    missing: BTreeSet<Box<str>>,
    /// Attributes of the caller that no rule uses. The block list may use them.
    unused: Vec<(Box<str>, AttributeSource)>,
    logged: Arc<LoggedWarnings>,
}

/// The warnings that were logged already. Each is logged once.
#[derive(Debug, Default)]
pub(crate) struct LoggedWarnings {
    missing: AtomicBool,
    no_address: AtomicBool,
}

impl AttributeReader {
    /// Makes a reader of the attributes that these rules use and that HTTP requests can have.
    pub(crate) fn new(rules: &RuleSet, logged: Arc<LoggedWarnings>) -> Self {
        let (mut known, mut missing) = (Vec::new(), BTreeSet::new());
        for name in used_attributes(rules) {
            match AttributeSource::for_attribute(name) {
                Some(source) => known.push((name.into(), source)),
                None => drop(missing.insert(name.into())),
            }
        }
        Self { known, missing, unused: Vec::new(), logged }
    }

    /// Returns the warnings logged so far, for the reader of the next rules.
    pub(crate) fn logged(&self) -> &Arc<LoggedWarnings> {
        &self.logged
    }

    /// Reads an attribute from another source from now on.
    pub(crate) fn replace(&mut self, name: &str, source: AttributeSource) {
        let mut sources = self.known.iter_mut().chain(&mut self.unused);
        if let Some((_, replaced)) = sources.find(|(known, _)| **known == *name) {
            *replaced = source;
        } else if let Some(name) = self.missing.take(name) {
            self.known.push((name, source));
        } else {
            self.unused.push((name.into(), source));
        }
    }

    /// Reads an attribute from its source.
    ///
    /// # Errors
    /// The attribute has no canonical form, or it is the address and the server does not provide it.
    fn read_source<'r>(
        &self,
        source: &AttributeSource,
        head: &'r Parts,
        slashes: EncodedSlashes,
    ) -> Result<Option<Cow<'r, str>>, RequestRejection> {
        let value = source.read_canonical(head, slashes).map_err(RequestRejection::NotCanonical)?;
        if value.is_none() && source.is_required() {
            if is_first(&self.logged.no_address) {
                tracing::error!(
                    "request has no peer address, and rules use `ip`: rejected. Set RateLimitLayer::ip"
                );
            }
            return Err(RequestRejection::NoAddress);
        }
        Ok(value)
    }

    /// Returns the request for the rules.
    ///
    /// # Errors
    /// An attribute is above the length limit or has no canonical form, or the request has no address.
    pub(crate) fn read<'r>(
        &'r self,
        head: &'r Parts,
        slashes: EncodedSlashes,
    ) -> Result<Request<'r>, RequestRejection> {
        let mut request = Request::new();
        for (name, source) in &self.known {
            if let Some(value) = self.read_source(source, head, slashes)? {
                let too_long =
                    |error| RequestRejection::AttributeTooLong { in_uri: source.in_uri(), error };
                request.insert(&**name, value).map_err(too_long)?;
            }
        }
        Ok(request)
    }

    /// Adds an attribute that the block list uses, if the request has it.
    ///
    /// # Errors
    /// The attribute has no canonical form, or it is the address and the request has none.
    pub(crate) fn read_for_block_list<'r>(
        &'r self,
        name: &str,
        head: &'r Parts,
        slashes: EncodedSlashes,
        request: &mut Request<'r>,
    ) -> Result<(), RequestRejection> {
        if self.known.iter().any(|(known, _)| **known == *name) || request.get(name).is_some() {
            return Ok(());
        }
        let read = |source: &AttributeSource| self.read_source(source, head, slashes);
        let value = match self.unused.iter().find(|(unused, _)| **unused == *name) {
            Some((_, source)) => read(source),
            None => AttributeSource::for_attribute(name).map_or(Ok(None), |source| read(&source)),
        };
        // A value above the length limit can't be on the block list, so the error is ignored.
        let _ = value?.map(|value| request.insert(name.to_owned(), value));
        Ok(())
    }

    pub(crate) fn warn_of_missing(&self) {
        if !self.missing.is_empty() && is_first(&self.logged.missing) {
            tracing::warn!(attributes = ?self.missing, "rules use attributes that this layer never sets");
        }
    }
}

/// Sets the flag. Returns whether it was not set before.
fn is_first(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

/// Returns the attributes that can change a decision: active rules match, count or select a limit by
/// them.
#[must_use]
pub fn used_attributes(rules: &RuleSet) -> BTreeSet<&str> {
    let active = rules.rules().iter().filter(|rule| rule.mode() != Mode::Off);
    active.flat_map(used_by_rule).collect()
}

fn used_by_rule(rule: &Rule) -> impl Iterator<Item = &str> {
    let overrides = rule.overrides().iter().flat_map(Override::conditions);
    let conditions = rule.conditions().iter().chain(overrides).map(Condition::attribute);
    let per = rule.per().iter().flat_map(AttributeChain::attributes);
    conditions.chain(per).chain(rule.tiers().map(TierLimits::by))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::source::ReadAttribute;
    use super::*;

    const EVERYTHING: &str = "
rules:
  - name: all
    match: {method: {present: true}, host: {present: true}, cookie.session: {present: true}}
    per: [header.X-Who, 'query.user | ip']
    limit: 1 per second
    tiers: {by: claim.plan, limits: {free: 1 per second}}
    overrides: [{match: {path: /, api_key: a}, limit: 2 per second}]
  - {name: off, match: {header.unused: a}, limit: 1 per second, mode: off}
";

    fn reader() -> AttributeReader {
        AttributeReader::new(&RuleSet::parse("rules.yaml", EVERYTHING).unwrap(), Arc::default())
    }

    fn head(request: http::request::Builder) -> Parts {
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_attributes_of_active_rules_are_read() {
        let request = http::Request::post("https://api.example.com/v1?user=alice&page=2")
            .header("x-who", "bob")
            .header("x-api-key", "k1")
            .header("unused", "a")
            .header("cookie", "theme=dark; session=s1")
            .extension(SocketAddr::from(([192, 0, 2, 7], 5000)));
        let (reader, head) = (reader(), head(request));
        let request = reader.read(&head, EncodedSlashes::Reject).unwrap();
        assert_eq!(
            Vec::from_iter(request.attributes()),
            [
                ("api_key", "k1"),
                ("cookie.session", "s1"),
                ("header.X-Who", "bob"),
                ("host", "api.example.com"),
                ("ip", "192.0.2.7"),
                ("method", "POST"),
                ("path", "/v1"),
                ("query.user", "alice"),
            ]
        );
        assert_eq!(Vec::from_iter(reader.missing.iter().map(|name| &**name)), ["claim.plan"]);
    }

    #[test]
    fn custom_attribute_provides_a_missing_one_or_replaces_a_source() {
        let mut reader = reader();
        let custom: [(_, ReadAttribute); 3] = [
            ("claim.plan", Arc::new(|_| Some("free".into()))),
            ("path", Arc::new(|_| Some("/elsewhere".into()))),
            ("unused", Arc::new(|_| panic!("no rule uses it"))),
        ];
        for (name, read) in custom {
            reader.replace(name, AttributeSource::Custom(read));
        }
        let head =
            head(http::Request::get("/here").extension(SocketAddr::from(([192, 0, 2, 7], 1))));
        let request = reader.read(&head, EncodedSlashes::Reject).unwrap();
        assert_eq!(request.get("claim.plan"), Some("free"));
        assert_eq!(request.get("path"), Some("/elsewhere"));
        assert!(reader.missing.is_empty());
    }
}
