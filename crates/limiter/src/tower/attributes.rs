//! What rules may know of a request, read from its head; and of that only what they ask for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use tidegate_core::Request;
use tidegate_rules::{AttributeChain, Condition, Mode, Override, Rule, RuleSet, TierLimits};

use super::refusal::Unreadable;
use super::source::{Read, Source};

/// Makes the request that rules look at.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    known: Vec<(Box<str>, Source)>,
    /// What rules mention and nothing provides.
    gaps: BTreeSet<Box<str>>,
    /// What the caller provides and no rule mentions; somebody may be blocked by it.
    spare: Vec<(Box<str>, Source)>,
    warned: Arc<Warned>,
}

/// What was logged and need not be again.
#[derive(Debug, Default)]
pub(crate) struct Warned {
    gaps: AtomicBool,
    address: AtomicBool,
}

impl Reader {
    /// Knows the attributes that these rules mention, as far as every HTTP request may have them.
    pub(crate) fn new(rules: &RuleSet, warned: Arc<Warned>) -> Self {
        let (mut known, mut gaps) = (Vec::new(), BTreeSet::new());
        for name in used_attributes(rules) {
            match Source::of(name) {
                Some(source) => known.push((name.into(), source)),
                None => drop(gaps.insert(name.into())),
            }
        }
        Self { known, gaps, spare: Vec::new(), warned }
    }

    /// What was logged so far, for who reads by the next rules.
    pub(crate) fn warned(&self) -> &Arc<Warned> {
        &self.warned
    }

    /// From now on reads an attribute this way, if a rule mentions it or somebody is blocked by it.
    pub(crate) fn replace(&mut self, name: &str, read: Read) {
        let mut sources = self.known.iter_mut().chain(&mut self.spare);
        if let Some((_, source)) = sources.find(|(known, _)| **known == *name) {
            *source = Source::Custom(read);
        } else if let Some(name) = self.gaps.take(name) {
            self.known.push((name, Source::Custom(read)));
        } else {
            self.spare.push((name.into(), Source::Custom(read)));
        }
    }

    /// What rules see of a request.
    pub(crate) fn read<'r>(&'r self, head: &'r Parts) -> Result<Request<'r>, Unreadable> {
        let mut request = Request::new();
        for (name, source) in &self.known {
            if let Some(value) = source.read(head) {
                let refused = |error| Unreadable { in_uri: source.in_uri(), error };
                request.insert(&**name, value).map_err(refused)?;
            } else if matches!(source, Source::Peer) && first(&self.warned.address) {
                tracing::warn!("requests carry no address, RateLimitLayer::ip can tell it");
            }
        }
        Ok(request)
    }

    /// Adds an attribute by which somebody is blocked, as far as the request has it.
    pub(crate) fn read_also<'r>(&'r self, name: &str, head: &'r Parts, request: &mut Request<'r>) {
        if self.known.iter().any(|(known, _)| **known == *name) || request.get(name).is_some() {
            return;
        }
        let value = match self.spare.iter().find(|(spare, _)| **spare == *name) {
            Some((_, source)) => source.read(head),
            None => Source::of(name).and_then(|source| source.read(head)),
        };
        // A value that is too long for an attribute is nobody's who could be blocked.
        let _ = value.map(|value| request.insert(name.to_owned(), value));
    }

    pub(crate) fn warn_of_gaps(&self) {
        if !self.gaps.is_empty() && first(&self.warned.gaps) {
            tracing::warn!(attributes = ?self.gaps, "rules mention what no request will have");
        }
    }
}

/// Whether nobody asked this before.
fn first(asked: &AtomicBool) -> bool {
    !asked.load(Ordering::Relaxed) && !asked.swap(true, Ordering::Relaxed)
}

/// The attributes that can make a difference to a decision: rules in force match, count or choose a
/// limit by them.
#[must_use]
pub fn used_attributes(rules: &RuleSet) -> BTreeSet<&str> {
    let in_force = rules.rules().iter().filter(|rule| rule.mode() != Mode::Off);
    in_force.flat_map(used_by_rule).collect()
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

    fn reader() -> Reader {
        Reader::new(&RuleSet::parse("rules.yaml", EVERYTHING).unwrap(), Arc::default())
    }

    fn head(request: http::request::Builder) -> Parts {
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn what_some_rule_in_force_mentions_is_read_and_nothing_else() {
        let request = http::Request::post("https://api.example.com/v1?user=alice&page=2")
            .header("x-who", "bob")
            .header("x-api-key", "k1")
            .header("unused", "a")
            .header("cookie", "theme=dark; session=s1")
            .extension(SocketAddr::from(([192, 0, 2, 7], 5000)));
        let (reader, head) = (reader(), head(request));
        let request = reader.read(&head).unwrap();
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
        assert_eq!(Vec::from_iter(reader.gaps.iter().map(|name| &**name)), ["claim.plan"]);
    }

    #[test]
    fn an_attribute_of_the_callers_fills_a_gap_or_replaces_what_was_there() {
        let mut reader = reader();
        reader.replace("claim.plan", Arc::new(|_| Some("free".into())));
        reader.replace("path", Arc::new(|_| Some("/elsewhere".into())));
        reader.replace("nobody", Arc::new(|_| panic!("no rule asks for it")));
        let head = head(http::Request::get("/here"));
        let request = reader.read(&head).unwrap();
        assert_eq!(request.get("claim.plan"), Some("free"));
        assert_eq!(request.get("path"), Some("/elsewhere"));
        assert!(reader.gaps.is_empty());
    }
}
