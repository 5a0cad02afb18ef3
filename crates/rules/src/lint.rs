//! Finds parts of rules that are valid and have no effect.

mod attribute;
mod spelling;

use std::collections::HashMap;

use ipnet::IpNet;
use tidegate_core::Timestamp;

use crate::canonical::encode_conditions;
use crate::condition::{Condition, ValuePatterns, ValueTest};
use crate::error::{ErrorReport, quote};
use crate::ignored::IgnoredDifferences;
use crate::limits::Override;
use crate::network::NetworkSet;
use crate::parse::condition::{IGNORE_KEY, NOT_KEY};
use crate::pattern_set::FixedHasher;
use crate::raw::{RawRule, peek};
use crate::rule::{Mode, Rule};
use crate::source_range::SourceRange;
use crate::warning::{RuleWarnings, WarningContext};
use crate::yaml::{YamlNode, YamlValue};

/// Most values, patterns or networks of a condition that are compared with those of another one.
const MAX_COMPARED: usize = 100;

/// Collects the warnings of a document while its rules are read.
pub(crate) struct RuleLinter<'c> {
    context: &'c WarningContext,
    now: Timestamp,
    report: ErrorReport,
}

impl<'c> RuleLinter<'c> {
    /// Creates a linter that compares the ends of overrides with `now`.
    pub(crate) fn new(source: &str, context: &'c WarningContext, now: Timestamp) -> Self {
        Self { context, now, report: ErrorReport::new(source) }
    }

    pub(crate) fn finish(self) -> RuleWarnings {
        RuleWarnings::new(self.report)
    }

    /// Checks that a document has a rule.
    pub(crate) fn rules(&mut self, at: SourceRange, count: usize) {
        if count == 0 {
            self.report.add(
                at,
                "rules: found an empty list, which allows every request, wanted at least one rule",
            );
        }
    }

    /// Checks a rule that was read from `raw`. A rule with `mode: off` is meant to have no effect.
    pub(crate) fn rule(&mut self, rule: &Rule, raw: &RawRule<'_>) {
        if rule.mode() == Mode::Off {
            return;
        }
        self.report.set_rule(Some(rule.name()));
        if let Some(node) = raw.matching {
            self.matching("match", node);
            self.contradictions("match", rule.conditions(), node);
        }
        for item in raw.per.map(items).unwrap_or_default() {
            for name in item.text().unwrap_or_default().split('|') {
                self.attribute("per", item.at, name.trim());
            }
        }
        if let Some(node) = raw.tiers.and_then(|node| peek(node, "by")) {
            self.attribute("tiers.by", node.at, node.text().unwrap_or_default());
        }
        if let Some(node) = raw.overrides {
            self.overrides(rule, items(node));
        }
    }

    fn overrides(&mut self, rule: &Rule, nodes: &[YamlNode<'_>]) {
        // Overrides that apply to all requests with these conditions for ever, with their lines.
        let mut earlier: HashMap<Vec<u8>, SourceRange, FixedHasher> = HashMap::default();
        let mut catch_all: Option<SourceRange> = None;
        for (item, node) in rule.overrides().iter().zip(nodes) {
            let Some(matching) = peek(node, "match") else { continue };
            self.matching("override.match", matching);
            self.contradictions("override.match", item.conditions(), matching);
            self.contradictions_with_rule(rule, item, matching);
            if let (Some(until), Some(node)) = (item.until(), peek(node, "until"))
                && until <= self.now
            {
                let found = node.describe();
                self.report.add(
                    node.at,
                    format!(
                        "override.until: found {found}, which is in the past, wanted a later time"
                    ),
                );
            }
            let mut conditions = Vec::new();
            encode_conditions(item.conditions(), &mut |bytes| conditions.extend_from_slice(bytes));
            if let Some(first) = catch_all.or_else(|| earlier.get(&conditions).copied()) {
                let line = first.line();
                self.report.add(
                    matching.at,
                    format!(
                        "override.match: found requests that the override on line {line} matches first, wanted others"
                    ),
                );
            }
            if item.until().is_none() && item.rollout().is_none() {
                match item.conditions().is_empty() {
                    true => catch_all = catch_all.or(Some(node.at)),
                    false => drop(earlier.entry(conditions).or_insert(node.at)),
                }
            }
        }
    }

    /// Checks the attributes and the values of a `match`.
    fn matching(&mut self, place: &str, node: &YamlNode<'_>) {
        let YamlValue::Map(entries) = &node.value else { return };
        for (name, value) in entries {
            self.attribute(place, name.at, &name.text);
            // The configuration may define an attribute with this name that has other values.
            if !self.context.attributes.contains(&*name.text) {
                self.condition(&format!("{place}.{}", name.text), &name.text, value);
            }
        }
    }

    fn attribute(&mut self, place: &str, at: SourceRange, name: &str) {
        if let Some(meant) = attribute::misspelt(name, &self.context.attributes) {
            let found = quote(name);
            self.report.add(
                at,
                format!(
                    "{place}: found attribute {found}, which no listener and no configuration sets, wanted {meant}"
                ),
            );
        }
    }

    fn condition(&mut self, place: &str, attribute: &str, node: &YamlNode<'_>) {
        let YamlValue::Map(entries) = &node.value else {
            return self.values(place, attribute, node, true, false);
        };
        let ignores_case = entries.iter().any(|(key, value)| {
            key.text == IGNORE_KEY
                && (value.text() == Some("case")
                    || items(value).iter().any(|word| word.text() == Some("case")))
        });
        for (key, value) in entries {
            match (&*key.text, &value.value) {
                ("like", _) => self.values(place, attribute, value, true, ignores_case),
                ("is", _) => self.values(place, attribute, value, false, ignores_case),
                (NOT_KEY, YamlValue::Map(negated)) => {
                    for (key, value) in negated.iter().filter(|(key, _)| key.text != "in") {
                        let place = format!("{place}.{NOT_KEY}");
                        self.values(&place, attribute, value, key.text == "like", ignores_case);
                    }
                }
                (NOT_KEY, _) => {
                    let place = format!("{place}.{NOT_KEY}");
                    self.values(&place, attribute, value, true, ignores_case);
                }
                _ => {}
            }
        }
    }

    /// Checks the spelling of a value, or of each value of a list.
    fn values(
        &mut self,
        place: &str,
        attribute: &str,
        node: &YamlNode<'_>,
        has_stars: bool,
        ignores_case: bool,
    ) {
        let nodes = match &node.value {
            YamlValue::Text(_) => std::slice::from_ref(node),
            _ => items(node),
        };
        let keeps_encoded_slashes = self.context.keeps_encoded_slashes;
        let check = spelling::SpellingCheck { has_stars, ignores_case, keeps_encoded_slashes };
        for node in nodes {
            let Some(text) = node.text() else { continue };
            if let Some(wanted) = check.wanted(attribute, text) {
                let found = quote(text);
                self.report.add(
                    node.at,
                    format!("{place}: found {found}, which no HTTP request has, wanted {wanted}"),
                );
            }
        }
    }

    /// Checks that a value can satisfy both conditions of an attribute: `{like: /a, not: /a}`.
    fn contradictions(&mut self, place: &str, conditions: &[Condition], node: &YamlNode<'_>) {
        for pair in conditions.windows(2) {
            if let [one, other] = pair
                && one.attribute() == other.attribute()
                && are_exclusive(one.test(), other.test())
            {
                let attribute = one.attribute();
                let at = peek(node, attribute).map_or(node.at, |node| node.at);
                let (found, excluded) = (one.redacted(), other.redacted());
                self.report.add(
                    at,
                    format!(
                        "{place}.{attribute}: found {found} and {excluded}, wanted conditions that a value can satisfy together"
                    ),
                );
            }
        }
    }

    /// Checks that a request can satisfy the conditions of a rule and of its override.
    fn contradictions_with_rule(&mut self, rule: &Rule, item: &Override, node: &YamlNode<'_>) {
        for condition in item.conditions() {
            let excluding = rule.conditions().iter().find(|of_rule| {
                of_rule.attribute() == condition.attribute()
                    && are_exclusive(of_rule.test(), condition.test())
            });
            if let Some(of_rule) = excluding {
                let attribute = condition.attribute();
                let at = peek(node, attribute).map_or(node.at, |node| node.at);
                let (found, wanted) = (condition.redacted(), of_rule.redacted());
                self.report.add(
                    at,
                    format!(
                        "override.match.{attribute}: found {found}, wanted requests that match the rule: {wanted}"
                    ),
                );
            }
        }
    }
}

/// Returns the items of a list; none for other nodes.
fn items<'n>(node: &'n YamlNode<'n>) -> &'n [YamlNode<'n>] {
    match &node.value {
        YamlValue::List(items) => items,
        _ => &[],
    }
}

/// Returns whether no value passes both tests, as far as that is cheap to see.
fn are_exclusive(one: &ValueTest, other: &ValueTest) -> bool {
    fails_whenever(one, other) || fails_whenever(other, one)
}

/// Returns whether every value that passes `passed` fails `test`.
fn fails_whenever(passed: &ValueTest, test: &ValueTest) -> bool {
    match (passed, test) {
        (ValueTest::Absent, test) => !test.passes(None),
        (ValueTest::OneOf(patterns), test) => patterns_fail(patterns, test),
        (ValueTest::In(networks), ValueTest::In(others)) => {
            few(networks, others)
                && !pairs(networks, others)
                    .any(|(one, other)| one.contains(other) || other.contains(one))
        }
        (ValueTest::In(networks), ValueTest::Not(test)) => match &**test {
            ValueTest::In(excluded) => {
                few(networks, excluded)
                    && networks.iter().all(|one| excluded.iter().any(|other| other.contains(one)))
            }
            _ => false,
        },
        (ValueTest::In(_) | ValueTest::Present | ValueTest::Not(_), _) => false,
    }
}

fn few(one: &NetworkSet, other: &NetworkSet) -> bool {
    one.iter().len() <= MAX_COMPARED && other.iter().len() <= MAX_COMPARED
}

fn pairs<'n>(
    one: &'n NetworkSet,
    other: &'n NetworkSet,
) -> impl Iterator<Item = (&'n IpNet, &'n IpNet)> {
    one.iter().flat_map(move |network| other.iter().map(move |other| (network, other)))
}

/// Returns whether every value that matches one of the patterns fails the test.
fn patterns_fail(patterns: &ValuePatterns, test: &ValueTest) -> bool {
    let tested = match test {
        ValueTest::OneOf(tested) => Some(tested),
        ValueTest::Not(test) => match &**test {
            ValueTest::OneOf(tested) => Some(tested),
            _ => None,
        },
        ValueTest::In(_) | ValueTest::Present | ValueTest::Absent => None,
    };
    let size = |patterns: &ValuePatterns| patterns.exact().len() + patterns.globs().len();
    let ignored = tested.map_or(IgnoredDifferences::NONE, ValuePatterns::ignored);
    // A folded text stands for several values, which only a test that folds them too treats alike.
    if size(patterns) > MAX_COMPARED
        || tested.is_some_and(|tested| tested.globs().len() > MAX_COMPARED)
        || !(patterns.ignored().is_none() || patterns.ignored() == ignored)
    {
        return false;
    }
    let excluded = match test {
        ValueTest::Not(_) => tested.filter(|tested| tested.ignored() == patterns.ignored()),
        _ => None,
    };
    patterns.exact().all(|text| !test.passes(Some(text)))
        && patterns
            .globs()
            .all(|glob| excluded.is_some_and(|tested| tested.globs().any(|other| other == glob)))
}
