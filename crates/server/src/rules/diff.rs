//! What other rules would change.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Map, Value};
use tidegate::rule::Override;
use tidegate::{Rule, RuleSet};

use super::shown::Shown;
use crate::rules_version;
use crate::service::written;

/// The difference between two sets of rules, by the names of the rules.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<Changed>,
    /// How many rules are in both.
    same: usize,
}

/// A rule that is another under the same name.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Changed {
    rule: String,
    fields: Vec<Field>,
}

/// What a rule said and says; nothing where it says nothing.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Field {
    field: String,
    from: Option<String>,
    to: Option<String>,
}

impl Difference {
    /// What changes on the way from one set to another. Their order does not matter.
    pub(crate) fn between(from: &RuleSet, to: &RuleSet) -> Self {
        let mut difference = Self::default();
        for rule in written(to) {
            match from.rule(rule.name()) {
                None => difference.added.push(rule.name().to_owned()),
                Some(old) if rules_version::of_rule(old) == rules_version::of_rule(rule) => {
                    difference.same += 1;
                }
                Some(old) => difference.changed.push(Changed::between(old, rule)),
            }
        }
        let gone = written(from).filter(|rule| to.rule(rule.name()).is_none());
        difference.removed = gone.map(|rule| rule.name().to_owned()).collect();
        difference
    }
}

impl Changed {
    fn between(old: &Rule, new: &Rule) -> Self {
        let (from, to) = (fields(old), fields(new));
        let mut names: Vec<&String> = to.keys().collect();
        names.extend(from.keys().filter(|name| !to.contains_key(*name)));
        let mut changed = Vec::new();
        for name in names.into_iter().filter(|name| from.get(*name) != to.get(*name)) {
            // What a limit admits at the most follows from what it says; overrides come below.
            if name == "bound" || name == "overrides" {
                continue;
            }
            let (from, to) = (from.get(name).map(words), to.get(name).map(words));
            changed.push(Field { field: name.clone(), from, to });
        }
        changed.extend(overrides(old.overrides(), new.overrides()));
        if changed.is_empty() {
            // It is another rule, so it differs in what is not shown, or in the order of its overrides.
            let said = Some("something that is not shown".to_owned());
            changed.push(Field { field: "match".to_owned(), from: said.clone(), to: said });
        }
        Self { rule: new.name().to_owned(), fields: changed }
    }
}

fn fields(rule: &Rule) -> Map<String, Value> {
    match serde_json::to_value(Shown::of(rule)) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// How many overrides there are, are new and are gone; there may be very many, and they name clients.
fn overrides(old: &[Override], new: &[Override]) -> Option<Field> {
    let hashes = |items: &[Override]| -> HashSet<[u8; 32]> {
        items.iter().map(rules_version::of_override).collect()
    };
    let (before, after) = (hashes(old), hashes(new));
    let (gone, more) = (before.difference(&after).count(), after.difference(&before).count());
    if gone + more == 0 && old.len() == new.len() {
        return None;
    }
    let told = format!("{} ({more} new, {gone} gone)", new.len());
    Some(Field { field: "overrides".to_owned(), from: Some(old.len().to_string()), to: Some(told) })
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(from: &str, to: &str) -> Value {
        let rules = |text: &str| RuleSet::parse("", &format!("rules: [{text}]")).unwrap();
        serde_json::to_value(Difference::between(&rules(from), &rules(to))).unwrap()
    }

    #[test]
    fn rules_are_told_apart_by_name_and_by_what_they_say() {
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
    fn a_secret_that_changes_is_told_without_being_shown() {
        let found = between(
            "{name: a, match: {api_key: sk-1}, limit: 1/s}",
            "{name: a, match: {api_key: sk-2}, limit: 1/s}",
        );
        assert_eq!(found["changed"][0]["rule"], "a");
        assert!(!found.to_string().contains("sk-"), "{found}");
    }

    #[test]
    fn a_long_list_is_told_by_what_is_new_in_it() {
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
}
