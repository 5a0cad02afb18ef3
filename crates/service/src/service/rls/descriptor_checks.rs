//! The checks of each descriptor.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{CallError, InvalidReason, Limit, Request, RuleIndex, quote};
use tidegate_limiter::{CheckRequest, CheckTarget};
use tidegate_rules::{CallerRefunds, Mode};

use crate::active_rules::ActiveRules;
use crate::envoy::{EnvoyLimit, EnvoyMatch, drop_replaced};
use crate::service::rls::overrides::{DESCRIPTOR_ATTRIBUTE, OVERRIDE_RULE, UNIT_ATTRIBUTE};
use crate::service::rls::{Descriptor, Hits, RlsCall, RlsContext, Unit};

/// Most descriptors of one call.
const MAX_DESCRIPTORS: usize = 100;
/// The attribute that holds the domain of a call.
const DOMAIN_ATTRIBUTE: &str = "domain";

/// The checks of one descriptor.
pub(crate) struct DescriptorChecks<'a> {
    /// The descriptor as a request that rules match.
    request: Request<'a>,
    /// Set if the rules that match the request are checked.
    pub(crate) checks_rules: bool,
    pub(crate) own: DescriptorLimit<'a>,
    pub(crate) is_refund: bool,
}

/// The limit of one descriptor, beside the rules that match it.
pub(crate) enum DescriptorLimit<'a> {
    Nothing,
    /// An entry of envoyproxy/ratelimit's files with `unlimited: true`.
    Unlimited(&'a EnvoyLimit),
    /// An entry of envoyproxy/ratelimit's files.
    Envoy {
        limit: &'a EnvoyLimit,
        rule_index: RuleIndex,
        request: Request<'a>,
    },
    /// The limit in the descriptor.
    Override {
        amount: u32,
        unit: Unit,
        rule_index: RuleIndex,
        limit: Arc<Limit>,
        request: Request<'a>,
    },
}

impl<'a> DescriptorChecks<'a> {
    /// Returns the check of the matching rules, if any match, then the check of its own limit.
    pub(crate) fn checks(&self) -> impl Iterator<Item = CheckRequest<'_, 'a>> {
        let rules = CheckRequest { request: &self.request, target: CheckTarget::AllMatching };
        let own = match &self.own {
            DescriptorLimit::Nothing | DescriptorLimit::Unlimited(_) => None,
            DescriptorLimit::Envoy { rule_index, request, .. } => {
                Some(CheckRequest { request, target: CheckTarget::Rule(*rule_index) })
            }
            DescriptorLimit::Override { rule_index, limit, request, .. } => Some(CheckRequest {
                request,
                target: CheckTarget::RuleWithLimit(*rule_index, limit),
            }),
        };
        self.checks_rules.then_some(rules).into_iter().chain(own)
    }
}

/// Returns the checks of each descriptor of a call.
///
/// # Errors
/// The domain or the descriptors are missing, or a descriptor is invalid.
pub(crate) fn plan<'a>(
    rls: &'a RlsContext,
    rules: &'a ActiveRules,
    call: &'a RlsCall<'_>,
) -> Result<Vec<DescriptorChecks<'a>>, CallError> {
    if call.domain.is_empty() {
        return Err(CallError::invalid("domain", "nothing", "a name"));
    }
    let wanted = || format!("1 to {MAX_DESCRIPTORS} of them");
    match call.descriptors.len() {
        0 => Err(CallError::invalid("descriptors", "nothing", wanted())),
        1..=MAX_DESCRIPTORS => {
            let each = call.descriptors.iter().zip(envoy_matches(rules, call)).enumerate();
            each.map(|(index, (descriptor, found))| {
                plan_descriptor(rls, rules, &call.domain, descriptor, found)
                    .map_err(|error| error.within(&format!("descriptors[{index}]")))
            })
            .collect()
        }
        found => Err(CallError::invalid("descriptors", found.to_string(), wanted())
            .because(InvalidReason::TooLarge)),
    }
}

fn plan_descriptor<'a>(
    rls: &'a RlsContext,
    rules: &'a ActiveRules,
    domain: &'a str,
    descriptor: &'a Descriptor<'_>,
    found: EnvoyMatch<'a>,
) -> Result<DescriptorChecks<'a>, CallError> {
    let (hits, is_refund) = match descriptor.hits {
        Hits::Charge(hits) => (hits, false),
        Hits::Refund(hits) => (hits, true),
    };
    let request = attributes(domain, descriptor)?.cost(hits);
    if is_refund {
        check_refund(rules, &request)?;
    }
    let own = own_limit(rls, rules, domain, descriptor, found, hits)?;
    // Every descriptor needs at least one check. With a limit of its own, the rules are checked only if one matches.
    let no_own_check = matches!(own, DescriptorLimit::Nothing | DescriptorLimit::Unlimited(_));
    let checks_rules = no_own_check || !rules.limiter.rules().matching_indices(&request).is_empty();
    Ok(DescriptorChecks { request, checks_rules, own, is_refund })
}

/// Checks that every rule that matches a refund allows it. A shadow rule decides nothing, and its permission is not
/// needed.
///
/// # Errors
/// A rule does not allow refunds of callers. The whole call is rejected, and nothing is charged or refunded.
fn check_refund(rules: &ActiveRules, request: &Request<'_>) -> Result<(), CallError> {
    let set = rules.limiter.rules();
    let matching = set.matching_indices(request);
    let mut matching = matching.iter().filter_map(|index| set.get(*index));
    let denies = matching
        .find(|rule| rule.mode() == Mode::Enforce && rule.caller_refunds() == CallerRefunds::Deny);
    let Some(rule) = denies else { return Ok(()) };
    let found = format!("a refund of rule {}", quote(rule.name()));
    let error = CallError::invalid("isNegativeHits", found, "caller_refunds: allow in this rule");
    Err(error.because(InvalidReason::NotAllowed))
}

fn own_limit<'a>(
    rls: &RlsContext,
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
    let Some(rule_index) = set.rule_index(OVERRIDE_RULE) else {
        return Ok(DescriptorLimit::Nothing);
    };
    let invalid = |error: &dyn std::fmt::Display| {
        CallError::invalid("limit", error.to_string(), "a limit that can be counted")
    };
    let limit = rls.overrides.limit(amount, unit).map_err(|error| invalid(&error))?;
    let request = Request::new()
        .with(DOMAIN_ATTRIBUTE, shorten(domain))
        .and_then(|request| request.with(UNIT_ATTRIBUTE, unit.to_string()))
        .and_then(|request| {
            request.with(DESCRIPTOR_ATTRIBUTE, shorten_owned(canonical_text(descriptor)))
        })
        .map_err(|error| CallError::rejected_attribute("limit", &error))?
        .cost(hits);
    Ok(DescriptorLimit::Override { amount, unit, rule_index, limit, request })
}

/// Returns the entry of envoyproxy/ratelimit's files for each descriptor without a limit in it.
fn envoy_matches<'a>(
    rules: &'a ActiveRules,
    call: &'a RlsCall<'_>,
) -> SmallVec<[EnvoyMatch<'a>; 2]> {
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

/// Returns the domain and the entries as attributes. A repeated key becomes `key#2`, `key#3` and so on.
///
/// Envoy lets a request pass if the call fails, so as few descriptors as possible are rejected. A value that is too long
/// for an attribute is replaced by its hash. A key that is too long for a rule to name is skipped.
fn attributes<'a>(
    domain: &'a str,
    descriptor: &'a Descriptor<'_>,
) -> Result<Request<'a>, CallError> {
    if descriptor.entries.is_empty() {
        return Err(CallError::invalid("entries", "nothing", "at least one"));
    }
    let mut request = Request::new();
    let mut add = |name: Cow<'a, str>, value: &'a str| {
        let is_nameable = (1..=Request::MAX_NAME).contains(&name.len());
        let added = if is_nameable { request.insert(name, shorten(value)) } else { Ok(()) };
        added.map_err(|error| CallError::rejected_attribute("entries", &error))
    };
    add(DOMAIN_ATTRIBUTE.into(), domain)?;
    for (index, (key, value)) in descriptor.entries.iter().enumerate() {
        if key.is_empty() {
            let path = format!("entries[{index}].key");
            return Err(CallError::invalid(path, "nothing", "a name"));
        }
        let before = descriptor.entries[..index].iter().filter(|(other, _)| other == key).count();
        match before + usize::from(key == DOMAIN_ATTRIBUTE) {
            0 => add(Cow::Borrowed(key), value)?,
            earlier => add(format!("{key}#{}", earlier + 1).into(), value)?,
        }
    }
    Ok(request)
}

/// Returns all entries as one text. Different descriptors have different texts.
fn canonical_text(descriptor: &Descriptor<'_>) -> String {
    let mut text = String::new();
    for (key, value) in &descriptor.entries {
        // Quotes and escapes keep the texts distinct. Writing to a string can't fail.
        let _ = write!(text, "{key:?}={value:?},");
    }
    text
}

/// Returns the value, or its hash if it is too long for an attribute.
fn shorten(value: &str) -> Cow<'_, str> {
    if value.len() <= Request::MAX_VALUE { value.into() } else { hash_text(value).into() }
}

fn shorten_owned(value: String) -> String {
    if value.len() <= Request::MAX_VALUE { value } else { hash_text(&value) }
}

fn hash_text(value: &str) -> String {
    format!("blake3:{}", blake3::hash(value.as_bytes()).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(entries: &[(&'static str, &'static str)]) -> Descriptor<'static> {
        let entries: SmallVec<[_; 4]> =
            entries.iter().map(|(key, value)| (Cow::from(*key), Cow::from(*value))).collect();
        Descriptor { entries, hits: Hits::Charge(1), limit: None }
    }

    #[test]
    fn entries_become_attributes_and_repeated_keys_are_numbered() {
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
    fn different_descriptors_have_different_canonical_texts() {
        let same = |one: &[_], other: &[_]| {
            canonical_text(&descriptor(one)) == canonical_text(&descriptor(other))
        };
        assert!(same(&[("a", "1"), ("b", "2")], &[("a", "1"), ("b", "2")]));
        assert!(!same(&[("a", "1"), ("b", "2")], &[("a", "1\"=\"b"), ("", "2")]));
        assert!(!same(&[("a", "1,\"b\"=2")], &[("a", "1"), ("b", "2")]));
        assert!(!same(&[("a_b", "c")], &[("a", "b_c")]));
    }

    #[test]
    fn value_too_long_for_an_attribute_is_replaced_by_its_hash() {
        let long = "x".repeat(Request::MAX_VALUE + 1);
        let (one, other) = (shorten(&long).into_owned(), shorten_owned(format!("{long}y")));
        assert!(one.len() < 100 && one != other);
    }
}
