//! Differences between two sets of rules.

use std::collections::HashSet;

use serde_json::{Map, Value};
use tidegate_api::{FieldChange, RuleChange, RulesDifference};
use tidegate_rules::{Override, Rule, RuleSet};

use super::rule_view::rule_view;
use crate::rules_version;

/// Returns the changes between two sets of rules. The order of rules does not matter.
pub fn difference_between(from: &RuleSet, to: &RuleSet) -> RulesDifference {
    let mut difference = RulesDifference::default();
    for rule in to.rules() {
        match from.rule(rule.name()) {
            None => difference.added.push(rule.name().to_owned()),
            Some(old) => match rule_change(old, rule) {
                Some(changed) => difference.changed.push(changed),
                None => difference.same += 1,
            },
        }
    }
    let removed = from.rules().iter().filter(|rule| to.rule(rule.name()).is_none());
    difference.removed = removed.map(|rule| rule.name().to_owned()).collect();
    difference
}

/// Returns the fields that differ, if any does.
fn rule_change(old: &Rule, new: &Rule) -> Option<RuleChange> {
    let hashes = rules_version::hash_fields(old).into_iter().zip(rules_version::hash_fields(new));
    let differing = hashes.filter(|(old, new)| old != new).map(|((field, _), _)| field);
    let differing: Vec<&'static str> = differing.collect();
    if differing.is_empty() {
        return None;
    }
    let (from, to) = (view_fields(old), view_fields(new));
    let mut keys: Vec<&String> = to.keys().collect();
    keys.extend(from.keys().filter(|key| !to.contains_key(*key)));
    let mut fields = Vec::new();
    for key in keys.into_iter().filter(|key| from.get(*key) != to.get(*key)) {
        // The bound follows from the limit. Overrides are counted below.
        if key == "bound" || key == "overrides" {
            continue;
        }
        let (from, to) = (from.get(key).map(value_text), to.get(key).map(value_text));
        fields.push(FieldChange { field: key.clone(), from, to });
    }
    fields.extend(override_change(old.overrides(), new.overrides()));
    for field in differing {
        if !fields.iter().any(|listed| shows(&listed.field, field)) {
            let hidden = Some("(hidden value)".to_owned());
            fields.push(FieldChange { field: field.to_owned(), from: hidden.clone(), to: hidden });
        }
    }
    Some(RuleChange { rule: new.name().to_owned(), fields })
}

/// Returns whether a key of [`RuleView`](tidegate_api::RuleView) shows a field of the rules document.
fn shows(key: &str, field: &str) -> bool {
    match key {
        "fleet" => field == "accuracy",
        "onStoreFailure" => field == "on_store_failure",
        "callerRefunds" => field == "caller_refunds",
        _ => key == field,
    }
}

fn view_fields(rule: &Rule) -> Map<String, Value> {
    match serde_json::to_value(rule_view(rule)) {
        Ok(Value::Object(view)) => view,
        _ => Map::new(),
    }
}

/// Returns the number of overrides, of new and of removed ones. Overrides are not listed: there may be very many, and
/// they name clients.
fn override_change(old: &[Override], new: &[Override]) -> Option<FieldChange> {
    let hashes = |items: &[Override]| -> HashSet<blake3::Hash> {
        items.iter().map(rules_version::hash_override).collect()
    };
    let (before, after) = (hashes(old), hashes(new));
    let (removed, added) = (before.difference(&after).count(), after.difference(&before).count());
    if removed + added == 0 && old.len() == new.len() {
        return None;
    }
    let counts = format!("{} ({added} new, {removed} gone)", new.len());
    Some(FieldChange {
        field: "overrides".to_owned(),
        from: Some(old.len().to_string()),
        to: Some(counts),
    })
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate_rules::schema::Schema;

    use super::*;

    fn between(from: &str, to: &str) -> Value {
        let rules = |text: &str| RuleSet::parse("", &format!("rules: [{text}]")).unwrap();
        serde_json::to_value(difference_between(&rules(from), &rules(to))).unwrap()
    }

    #[test]
    fn rules_are_compared_by_name_and_by_field() {
        let found = between(
            "{name: a, limit: 1/s}, {name: b, per: [ip], limit: 1/s}, {name: c, limit: 1/s}",
            "{name: d, limit: 1/s}, {name: c, limit: 1/s}, {name: b, per: [ip], limit: 2/s, mode: shadow}",
        );
        let wanted = serde_json::json!({
            "added": ["d"],
            "removed": ["a"],
            "changed": [{"rule": "b", "fields": [
                {"field": "limit", "from": "1 per 1 s (token_bucket)", "to": "2 per 1 s (token_bucket)"},
                {"field": "mode", "from": "enforce", "to": "shadow"},
            ]}],
            "same": 1,
        });
        assert_eq!(found, wanted);
    }

    #[test]
    fn changed_secret_is_listed_without_its_value() {
        let found = between(
            "{name: a, match: {api_key: sk-1}, limit: 1/s}",
            "{name: a, match: {api_key: sk-2}, limit: 1/s}",
        );
        assert_eq!(found["changed"][0]["rule"], "a");
        assert!(!found.to_string().contains("sk-"), "{found}");
    }

    #[test]
    fn long_list_of_overrides_is_counted() {
        let with = |users: std::ops::Range<usize>| {
            let each = users.map(|user| format!("{{match: {{user: u{user}}}, limit: 2/s}}"));
            let each: Vec<String> = each.collect();
            format!("{{name: a, per: [user], limit: 1/s, overrides: [{}]}}", each.join(", "))
        };
        let found = between(&with(0..10), &with(2..13));
        let overrides = &found["changed"][0]["fields"][0];
        assert_eq!(overrides["from"], "10");
        assert_eq!(overrides["to"], "11 (3 new, 2 gone)");
    }

    #[test]
    fn changed_secret_is_listed_beside_another_field() {
        let found = between(
            "{name: a, match: {api_key: sk-1}, limit: 1/s}",
            "{name: a, match: {api_key: sk-2}, limit: 1/s, mode: shadow}",
        );
        let fields = &found["changed"][0]["fields"];
        assert_eq!(fields[0]["field"], "mode");
        assert_eq!((&fields[1]["field"], &fields[2]), (&Value::from("match"), &Value::Null));
    }

    /// Changes of a `limit`: the key, the old and the new value.
    const LIMITS: [(&str, &str, &str); 4] = [
        ("", "1/s", "2/s"),
        (".amount", "{amount: 1, window: 1s}", "{amount: 2, window: 1s}"),
        (".window", "{amount: 1, window: 1s}", "{amount: 1, window: 2s}"),
        (".burst", "{amount: 1, window: 1s}", "{amount: 1, window: 1s, burst: 2}"),
    ];

    /// Changes of a `match`: the key, the old and the new value.
    const CONDITIONS: [(&str, &str, &str); 11] = [
        ("", "{path: /a}", "{path: /b}"),
        (".like", "{path: {like: /a*}}", "{path: {like: /b*}}"),
        (".ignore", "{path: {is: /a}}", "{path: {is: /a, ignore: [case]}}"),
        (".is", "{path: {is: /a}}", "{path: {is: /b}}"),
        (".not", "{path: {like: /a*}}", "{path: {like: /a*, not: /ab}}"),
        (".not.like", "{path: {not: {like: /a*}}}", "{path: {not: {like: /b*}}}"),
        (".not.is", "{path: {not: {is: /a}}}", "{path: {is: /a}}"),
        (".not.in", "{ip: {not: {in: [10.0.0.0/8]}}}", "{ip: {not: {in: [10.0.0.0/9]}}}"),
        (".in", "{ip: {in: [10.0.0.0/8]}}", "{ip: {in: [10.0.0.0/9]}}"),
        (".present", "{user: {present: true}}", "{user: {present: false}}"),
        (".absent", "{user: {absent: true}}", "{user: {absent: false}}"),
    ];

    /// Other changes of a rule: the key, the old and the new rule.
    const RULES: [(&str, &str, &str); 26] = [
        ("name", "name: a, limit: 1/s", "name: b, limit: 1/s"),
        ("per", "per: [ip]", "per: [user | ip]"),
        ("burst", "burst: 1", "burst: 2"),
        ("queue", "algorithm: leaky_bucket", "algorithm: leaky_bucket, queue: 1"),
        ("hold", "limit: 1 in flight", "limit: 1 in flight, hold: 61s"),
        ("algorithm", "algorithm: token_bucket", "algorithm: fixed_window"),
        ("tiers", "mode: enforce", "tiers: {by: a, limits: {b: 1/s}}"),
        ("tiers.by", "tiers: {by: a, limits: {b: 1/s}}", "tiers: {by: b, limits: {b: 1/s}}"),
        ("tiers.limits", "tiers: {by: a, limits: {b: 1/s}}", "tiers: {by: a, limits: {c: 1/s}}"),
        ("overrides", "mode: enforce", "overrides: [{match: {user: a}, limit: 1/s}]"),
        (
            "overrides.limit",
            "overrides: [{match: {user: a}, limit: 1/s}]",
            "overrides: [{match: {user: a}, limit: exempt}]",
        ),
        (
            "overrides.until",
            "overrides: [{match: {user: a}, limit: 1/s}]",
            "overrides: [{match: {user: a}, limit: 1/s, until: '2030-01-01T00:00:00Z'}]",
        ),
        (
            "overrides.rollout",
            "per: [ip], overrides: [{match: {user: a}, limit: 1/s}]",
            "per: [ip], overrides: [{match: {user: a}, limit: 1/s, rollout: 100%}]",
        ),
        ("accuracy", "accuracy: leased", "accuracy: split"),
        ("sync", "accuracy: synced", "accuracy: synced, sync: 201ms"),
        ("max_ahead", "accuracy: synced", "accuracy: synced, max_ahead: 2"),
        ("shards", "limit: 8/s", "limit: 8/s, shards: 4"),
        ("hot", "accuracy: exact", "hot: leased"),
        ("on_store_failure", "on_store_failure: deny", "on_store_failure: local"),
        ("mode", "mode: shadow", "mode: off"),
        ("rollout", "per: [ip]", "per: [ip], rollout: 100%"),
        ("caller_refunds", "mode: enforce", "caller_refunds: allow"),
        ("penalty", "per: [ip]", "per: [ip], penalty: {after: 5, within: 1m, block: 1m}"),
        (
            "penalty.after",
            "per: [ip], penalty: {after: 1, within: 1m, block: 1m}",
            "per: [ip], penalty: {after: 1x, within: 1m, block: 1m}",
        ),
        (
            "penalty.within",
            "per: [ip], penalty: {after: 1, within: 1m, block: 1m}",
            "per: [ip], penalty: {after: 1, within: 2m, block: 1m}",
        ),
        (
            "penalty.block",
            "per: [ip], penalty: {after: 1, within: 1m, block: 1m}",
            "per: [ip], penalty: {after: 1, within: 1m, block: 2m}",
        ),
    ];

    /// Returns for each key of the syntax two rules that differ only in its value.
    fn changes() -> Vec<(String, [String; 2])> {
        let nested = |table: &[(&str, &str, &str)], path: &str, before: &str, after: &str| {
            let change = |(key, old, new): &(&str, &str, &str)| {
                let rule = |value: &str| format!("{before}{value}{after}");
                (format!("{path}{key}"), [rule(old), rule(new)])
            };
            table.iter().map(change).collect::<Vec<_>>()
        };
        [
            nested(&RULES, "", "", ""),
            nested(&LIMITS, "limit", "limit: ", ""),
            nested(&LIMITS, "tiers.limits", "tiers: {by: a, limits: {b: ", "}}").split_off(1),
            nested(&LIMITS, "overrides.limit", "overrides: [{match: {user: a}, limit: ", "}]"),
            nested(&CONDITIONS, "match", "match: ", ""),
            nested(&CONDITIONS, "overrides.match", "overrides: [{limit: 1/s, match: ", "}]"),
        ]
        .concat()
    }

    /// Adds the paths of all keys that a schema names. Indexes of lists and free keys of maps are left out.
    fn keys(document: &Schema, schema: &Schema, path: &str, found: &mut BTreeSet<String>) {
        let part = schema.keyword("$ref").and_then(Value::as_str);
        let part = part.and_then(|part| part.strip_prefix("#/$defs/"));
        let part = part.and_then(|name| document.parts().find(|(known, _)| *known == name));
        let inner = part.map(|(_, part)| part).into_iter().chain(schema.choices());
        for inner in inner.chain(schema.items()).chain(schema.others()) {
            keys(document, inner, path, found);
        }
        for (name, value) in schema.keys() {
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            keys(document, value, &path, found);
            found.insert(path);
        }
    }

    #[test]
    fn every_key_of_the_syntax_changes_the_canonical_form_the_version_and_the_difference() {
        let schema = RuleSet::schema();
        let (_, rule) = schema.parts().find(|(name, _)| *name == "rule").unwrap();
        let mut known = BTreeSet::new();
        keys(&schema, rule, "", &mut known);
        let tried: BTreeSet<String> = changes().into_iter().map(|(key, _)| key).collect();
        assert_eq!(tried, known, "each key of the schema has a row above");
        for (key, rules) in changes() {
            let [old, new] = rules.map(|rule| {
                let rest = match rule.split_once(':') {
                    Some(("name", _)) => "",
                    Some(("limit", _)) => "name: a, ",
                    _ => "name: a, limit: 1/s, ",
                };
                let yaml = format!("rules: [{{{rest}{rule}}}]");
                RuleSet::parse("", &yaml).unwrap_or_else(|errors| panic!("{errors}: {yaml}"))
            });
            let form = |rules: &RuleSet| {
                let mut form: Vec<(&str, Vec<u8>)> = Vec::new();
                rules.rules()[0]
                    .canonical()
                    .encode(|field, bytes| form.push((field, bytes.into())));
                form
            };
            assert_ne!(form(&old), form(&new), "{key}");
            assert_ne!(rules_version::hash_rules(&old), rules_version::hash_rules(&new), "{key}");
            let RulesDifference { added, changed, same, .. } = difference_between(&old, &new);
            assert_eq!((added.len() + changed.len(), same), (1, 0), "{key}");
            if let [changed] = changed.as_slice() {
                assert!(changed.fields.iter().any(|field| field.from != field.to), "{key}");
            }
        }
    }
}
