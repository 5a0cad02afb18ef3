//! Comparison of the tree with a find_naively matcher on lists.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A configured descriptor. The amount of its limit is its unique number.
#[derive(Clone, Debug)]
struct ConfiguredDescriptor {
    key: String,
    value: Option<String>,
    limit: bool,
    shared: bool,
    below: Vec<ConfiguredDescriptor>,
    number: u32,
}

impl ConfiguredDescriptor {
    fn pattern(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.contains('*'))
    }

    fn json(&self) -> Value {
        let mut json =
            json!({"key": self.key, "value": self.value, "descriptors": list(&self.below)});
        if self.limit {
            json["rate_limit"] = json!({"unit": "day", "requests_per_unit": self.number});
        }
        if self.shared && self.pattern() {
            json["share_threshold"] = true.into();
        }
        json
    }
}

fn list(descriptors: &[ConfiguredDescriptor]) -> Value {
    descriptors.iter().map(ConfiguredDescriptor::json).collect()
}

/// Returns whether a pattern matches a value, by trying every length for each `*`.
fn matches_naively(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|taken| matches_naively(rest, &value[taken..])),
        Some((byte, rest)) => value.first() == Some(byte) && matches_naively(rest, &value[1..]),
    }
}

/// Returns the number of the limit, and the values that identify its counter.
fn find_naively(
    descriptors: &[ConfiguredDescriptor],
    entries: &[(String, String)],
    mut counted: Vec<String>,
) -> Option<(u32, Vec<String>)> {
    let ((key, value), rest) = entries.split_first()?;
    let same: Vec<&ConfiguredDescriptor> =
        descriptors.iter().filter(|item| item.key == *key).collect();
    let exact = same.iter().find(|item| item.value.as_ref() == Some(value));
    let by_pattern = same.iter().find(|item| {
        let pattern = item.value.as_deref().unwrap_or_default();
        item.pattern() && matches_naively(pattern.as_bytes(), value.as_bytes())
    });
    let found = exact.or(by_pattern).or_else(|| same.iter().find(|item| item.value.is_none()))?;
    if found.value.is_none() || (found.pattern() && !found.shared) {
        counted.push(value.clone());
    }
    if rest.is_empty() {
        return found.limit.then_some((found.number, counted));
    }
    find_naively(&found.below, rest, counted)
}

fn value_strategy() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[ab/]{1,3}").unwrap()
}

fn descriptors(depth: u32, max_count: usize) -> BoxedStrategy<Vec<ConfiguredDescriptor>> {
    let below = if depth == 0 { Just(Vec::new()).boxed() } else { descriptors(depth - 1, 4) };
    let value = prop_oneof![
        Just(None),
        value_strategy().prop_map(Some),
        proptest::string::string_regex("[ab/*]{1,4}").unwrap().prop_map(Some),
    ];
    let one = ("[kl]", value, any::<bool>(), any::<bool>(), below);
    let one = one.prop_map(|(key, value, limit, shared, below)| ConfiguredDescriptor {
        key,
        value,
        limit,
        shared,
        below,
        number: 0,
    });
    proptest::collection::vec(one, 0..=max_count).boxed()
}

/// Numbers every limit, and removes duplicates at each level.
fn number_and_deduplicate(descriptors: &mut Vec<ConfiguredDescriptor>, next: &mut u32) {
    let mut seen = std::collections::HashSet::new();
    descriptors.retain(|item| seen.insert((item.key.clone(), item.value.clone())));
    for item in descriptors {
        *next += 1;
        item.number = *next;
        number_and_deduplicate(&mut item.below, next);
    }
}

proptest! {
    #[test]
    fn tree_finds_the_same_limit_as_the_naive_matcher(
        // Enough patterns of one key to be matched together.
        mut tree in prop_oneof![3 => descriptors(2, 4), 1 => descriptors(0, 80)],
        calls in proptest::collection::vec(
            proptest::collection::vec(("[kl]", "[ab/*]{0,4}"), 0..4), 1..20),
    ) {
        number_and_deduplicate(&mut tree, &mut 0);
        let rules = rules(&json!({"domain": "d", "descriptors": list(&tree)}).to_string());
        for entries in &calls {
            let borrowed: Vec<(&str, &str)> =
                entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let found = match rules.find("d", &borrowed) {
                EnvoyMatch::Limited(limit, request) => {
                    let rule = rules.rules.iter().find(|rule| *rule.name() == *limit.rule).unwrap();
                    let counted = rule.per().iter().map(|chain| {
                        request.get(chain.as_str()).unwrap_or_default().to_owned()
                    });
                    Some((limit.requests_per_unit, counted.collect::<Vec<_>>()))
                }
                _ => None,
            };
            prop_assert_eq!(found, find_naively(&tree, entries, Vec::new()), "{:?} in {:#?}", entries, tree);
        }
    }
}
