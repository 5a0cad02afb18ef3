//! From descriptors to claims on limits.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{CallError, Limit, Request, RuleIndex};
use tidegate_limiter::{CheckRequest, CheckTarget};

use crate::active_rules::ActiveRules;
use crate::envoy::{EnvoyLimit, EnvoyMatch, drop_replaced};
use crate::service::rls::overrides::{DESCRIPTOR, OVERRIDE, UNIT};
use crate::service::rls::{Descriptor, Hits, Rls, RlsCall, Unit};

/// Most descriptors of one call.
const MAX_DESCRIPTORS: usize = 100;
/// What the domain of a call becomes.
const DOMAIN: &str = "domain";

/// What one descriptor asks for.
pub(crate) struct Asked<'a> {
    /// The descriptor as rules see it.
    request: Request<'a>,
    /// Whether rules have to be asked about it.
    pub(crate) by_rules: bool,
    pub(crate) own: DescriptorLimit<'a>,
    pub(crate) gives_back: bool,
}

/// The limit of a descriptor's own, beside the rules that match it.
pub(crate) enum DescriptorLimit<'a> {
    Nothing,
    /// One of envoyproxy/ratelimit's files that lets everything pass.
    Unlimited(&'a EnvoyLimit),
    /// One of envoyproxy/ratelimit's files.
    Envoy {
        limit: &'a EnvoyLimit,
        rule_index: RuleIndex,
        request: Request<'a>,
    },
    /// One that it brought along.
    Brought {
        amount: u32,
        unit: Unit,
        rule_index: RuleIndex,
        limit: Arc<Limit>,
        request: Request<'a>,
    },
}

impl<'a> Asked<'a> {
    /// What it claims: of the rules that match it, if any do, then of the limit of its own.
    pub(crate) fn claims(&self) -> impl Iterator<Item = CheckRequest<'_, 'a>> {
        let rules = CheckRequest { request: &self.request, target: CheckTarget::AllMatching };
        let own = match &self.own {
            DescriptorLimit::Nothing | DescriptorLimit::Unlimited(_) => None,
            DescriptorLimit::Envoy { rule_index, request, .. } => {
                Some(CheckRequest { request, target: CheckTarget::Rule(*rule_index) })
            }
            DescriptorLimit::Brought { rule_index, limit, request, .. } => Some(CheckRequest {
                request,
                target: CheckTarget::RuleWithLimit(*rule_index, limit),
            }),
        };
        self.by_rules.then_some(rules).into_iter().chain(own)
    }
}

/// Returns the checks that a call asks for, descriptor by descriptor.
///
/// # Errors
/// There is no domain or no descriptor, or one is invalid.
pub(crate) fn descriptors<'a>(
    rls: &'a Rls,
    rules: &'a ActiveRules,
    call: &'a RlsCall<'_>,
) -> Result<Vec<Asked<'a>>, CallError> {
    if call.domain.is_empty() {
        return Err(CallError::invalid("domain", "nothing", "a name"));
    }
    let wanted = || format!("1 to {MAX_DESCRIPTORS} of them");
    match call.descriptors.len() {
        0 => Err(CallError::invalid("descriptors", "nothing", wanted())),
        1..=MAX_DESCRIPTORS => {
            let each = call.descriptors.iter().zip(found(rules, call)).enumerate();
            each.map(|(index, (descriptor, found))| {
                descriptor_checks(rls, rules, &call.domain, descriptor, found)
                    .map_err(|fault| fault.within(&format!("descriptors[{index}]")))
            })
            .collect()
        }
        found => Err(CallError::invalid("descriptors", found.to_string(), wanted())),
    }
}

fn descriptor_checks<'a>(
    rls: &'a Rls,
    rules: &'a ActiveRules,
    domain: &'a str,
    descriptor: &'a Descriptor<'_>,
    found: EnvoyMatch<'a>,
) -> Result<Asked<'a>, CallError> {
    let (hits, gives_back) = match descriptor.hits {
        Hits::Spend(hits) => (hits, false),
        Hits::GiveBack(hits) => (hits, true),
    };
    let request = attributes(domain, descriptor)?.cost(hits);
    let own = own_limit(rls, rules, domain, descriptor, found, hits)?;
    // Where a limit of its own is asked anyway, rules that do not match need not be.
    let alone = matches!(own, DescriptorLimit::Nothing | DescriptorLimit::Unlimited(_));
    let by_rules = alone || !rules.limiter.rules().matching_indices(&request).is_empty();
    Ok(Asked { request, by_rules, own, gives_back })
}

fn own_limit<'a>(
    rls: &Rls,
    rules: &'a ActiveRules,
    domain: &'a str,
    descriptor: &Descriptor<'_>,
    found: EnvoyMatch<'a>,
    hits: u64,
) -> Result<DescriptorLimit<'a>, CallError> {
    let set = rules.limiter.rules();
    let Some((amount, unit)) = descriptor.limit else {
        return Ok(match found {
            EnvoyMatch::Nothing => DescriptorLimit::Nothing,
            EnvoyMatch::Unlimited(limit) => DescriptorLimit::Unlimited(limit),
            EnvoyMatch::Limited(limit, request) => match set.rule_index(&limit.rule) {
                Some(rule_index) => {
                    DescriptorLimit::Envoy { limit, rule_index, request: request.cost(hits) }
                }
                None => DescriptorLimit::Nothing,
            },
        });
    };
    let Some(rule_index) = set.rule_index(OVERRIDE) else {
        return Ok(DescriptorLimit::Nothing);
    };
    let refused = |error: &dyn std::fmt::Display| {
        CallError::invalid("limit", error.to_string(), "a limit that can be counted")
    };
    let limit = rls.overrides.limit(amount, unit).map_err(|error| refused(&error))?;
    let request = Request::new()
        .with(DOMAIN, fitting(domain))
        .and_then(|request| request.with(UNIT, unit.to_string()))
        .and_then(|request| request.with(DESCRIPTOR, fitting_owned(spelled(descriptor))))
        .map_err(|error| CallError::rejected_attribute("limit", &error))?
        .cost(hits);
    Ok(DescriptorLimit::Brought { amount, unit, rule_index, limit, request })
}

/// What the files of envoyproxy/ratelimit have for each descriptor that brings no limit along.
fn found<'a>(rules: &'a ActiveRules, call: &'a RlsCall<'_>) -> SmallVec<[EnvoyMatch<'a>; 2]> {
    let Some(envoy) = &rules.envoy else {
        return call.descriptors.iter().map(|_| EnvoyMatch::Nothing).collect();
    };
    let find = |descriptor: &'a Descriptor<'_>| {
        if descriptor.limit.is_some() {
            return EnvoyMatch::Nothing;
        }
        let entries = descriptor.entries.iter().map(|(key, value)| (&**key, &**value));
        envoy.find(&call.domain, &entries.collect::<SmallVec<[(&str, &str); 8]>>())
    };
    let mut found: SmallVec<[EnvoyMatch<'a>; 2]> = call.descriptors.iter().map(find).collect();
    drop_replaced(&mut found);
    found
}

/// The domain and the entries as attributes. A key that comes again is `key#2`, `key#3` and so on.
///
/// An Envoy that is told of an error lets its request pass, so what can be read is: a value that is too
/// long is told apart by its hash, and a key that no rule could spell is left out.
fn attributes<'a>(
    domain: &'a str,
    descriptor: &'a Descriptor<'_>,
) -> Result<Request<'a>, CallError> {
    if descriptor.entries.is_empty() {
        return Err(CallError::invalid("entries", "nothing", "at least one"));
    }
    let mut request = Request::new();
    let mut add = |name: Cow<'a, str>, value: &'a str| {
        let spellable = (1..=Request::MAX_NAME).contains(&name.len());
        let added = if spellable { request.insert(name, fitting(value)) } else { Ok(()) };
        added.map_err(|error| CallError::rejected_attribute("entries", &error))
    };
    add(DOMAIN.into(), domain)?;
    for (index, (key, value)) in descriptor.entries.iter().enumerate() {
        if key.is_empty() {
            let place = format!("entries[{index}].key");
            return Err(CallError::invalid(place, "nothing", "a name"));
        }
        let before = descriptor.entries[..index].iter().filter(|(other, _)| other == key).count();
        match before + usize::from(key == DOMAIN) {
            0 => add(Cow::Borrowed(key), value)?,
            again => add(format!("{key}#{}", again + 1).into(), value)?,
        }
    }
    Ok(request)
}

/// All entries as one text, so that two descriptors have the same only if they are the same.
fn spelled(descriptor: &Descriptor<'_>) -> String {
    let mut text = String::new();
    for (key, value) in &descriptor.entries {
        // Quoted and escaped. Writing to a string can't fail.
        let _ = write!(text, "{key:?}={value:?},");
    }
    text
}

/// A value that an attribute can have.
fn fitting(value: &str) -> Cow<'_, str> {
    if value.len() <= Request::MAX_VALUE { value.into() } else { hashed(value).into() }
}

fn fitting_owned(value: String) -> String {
    if value.len() <= Request::MAX_VALUE { value } else { hashed(&value) }
}

fn hashed(value: &str) -> String {
    format!("blake3:{}", blake3::hash(value.as_bytes()).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(entries: &[(&'static str, &'static str)]) -> Descriptor<'static> {
        let entries: SmallVec<[_; 4]> =
            entries.iter().map(|(key, value)| (Cow::from(*key), Cow::from(*value))).collect();
        Descriptor { entries, hits: Hits::Spend(1), limit: None }
    }

    #[test]
    fn entries_are_attributes_and_a_key_that_comes_again_has_a_number() {
        let descriptor =
            descriptor(&[("a", "1"), ("b", "2"), ("a", "3"), ("domain", "4"), ("a", "")]);
        let request = attributes("edge", &descriptor).unwrap();
        let found: Vec<_> = request.attributes().collect();
        let wanted = [
            ("domain", "edge"),
            ("a", "1"),
            ("b", "2"),
            ("a#2", "3"),
            ("domain#2", "4"),
            ("a#3", ""),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn descriptors_that_differ_are_spelled_differently() {
        let same =
            |one: &[_], other: &[_]| spelled(&descriptor(one)) == spelled(&descriptor(other));
        assert!(same(&[("a", "1"), ("b", "2")], &[("a", "1"), ("b", "2")]));
        assert!(!same(&[("a", "1"), ("b", "2")], &[("a", "1\"=\"b"), ("", "2")]));
        assert!(!same(&[("a", "1,\"b\"=2")], &[("a", "1"), ("b", "2")]));
        assert!(!same(&[("a_b", "c")], &[("a", "b_c")]));
    }

    #[test]
    fn a_value_too_long_for_an_attribute_is_told_apart_by_its_hash() {
        let long = "x".repeat(Request::MAX_VALUE + 1);
        let (one, other) = (fitting(&long).into_owned(), fitting_owned(format!("{long}y")));
        assert!(one.len() < 100 && one != other);
    }
}
