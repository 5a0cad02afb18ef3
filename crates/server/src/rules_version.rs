//! Which rules are in force, in one short word: the same for nodes that have the same rules.

use tidegate::rule::{Condition, Mode, OnStoreFailure, Override, Rollout, Test};
use tidegate::{Rule, RuleSet};

use crate::service::written;

/// 16 hexadecimal digits of everything that the rules say, in their order.
///
/// What does not change a decision does not count: comments, layout, the order of alternatives.
pub(crate) fn of(rules: &RuleSet) -> String {
    let mut said = Said(blake3::Hasher::new());
    for rule in written(rules) {
        said.rule(rule);
    }
    said.0.finalize().to_hex().as_str()[..16].to_owned()
}

/// The same of one rule, at full length.
pub(crate) fn of_rule(rule: &Rule) -> [u8; 32] {
    let mut said = Said(blake3::Hasher::new());
    said.rule(rule);
    *said.0.finalize().as_bytes()
}

/// The same of one override.
pub(crate) fn of_override(item: &Override) -> [u8; 32] {
    let mut said = Said(blake3::Hasher::new());
    said.item(item);
    *said.0.finalize().as_bytes()
}

/// Everything that was said so far.
struct Said(blake3::Hasher);

impl Said {
    /// A word, with its length before it: two words never read as another two.
    fn word(&mut self, word: &str) {
        self.0.update(&u64::try_from(word.len()).unwrap_or(u64::MAX).to_le_bytes());
        self.0.update(word.as_bytes());
    }

    fn count(&mut self, count: usize) {
        self.0.update(&u64::try_from(count).unwrap_or(u64::MAX).to_le_bytes());
    }

    fn rule(&mut self, rule: &Rule) {
        self.word(rule.name());
        self.conditions(rule.conditions());
        self.count(rule.per().len());
        for chain in rule.per() {
            self.word(chain.as_str());
        }
        self.word(&rule.limit().to_string());
        match rule.tiers() {
            Some(tiers) => {
                self.count(tiers.iter().len());
                self.word(tiers.by());
                for (name, limit) in tiers.iter() {
                    self.word(name);
                    self.word(&limit.to_string());
                }
            }
            None => self.count(0),
        }
        self.count(rule.overrides().len());
        rule.overrides().iter().for_each(|item| self.item(item));
        let mode = match rule.mode() {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Off => "off",
        };
        let failing = match rule.on_store_failure() {
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
            OnStoreFailure::Local => "local",
        };
        self.word(mode);
        self.word(&rule.accuracy().to_string());
        self.word(failing);
        self.rollout(rule.rollout());
        match rule.penalty() {
            Some(penalty) => {
                let (after, within, block) = (penalty.after(), penalty.within(), penalty.block());
                self.word(&format!("{after} {within} {block}"));
            }
            None => self.word(""),
        }
    }

    fn rollout(&mut self, share: Option<Rollout>) {
        self.word(&share.map(|share| share.to_string()).unwrap_or_default());
    }

    fn item(&mut self, item: &Override) {
        self.conditions(item.conditions());
        self.word(&item.limit().to_string());
        let until = item.until().map(|until| until.as_micros().to_string());
        self.word(until.as_deref().unwrap_or_default());
        self.rollout(item.rollout());
    }

    fn conditions(&mut self, conditions: &[Condition]) {
        self.count(conditions.len());
        for condition in conditions {
            self.word(condition.attribute());
            match condition.test() {
                Test::OneOf(patterns) => {
                    self.word("one of");
                    self.count(patterns.exact().len());
                    patterns.exact().for_each(|text| self.word(text));
                    self.count(patterns.globs().len());
                    patterns.globs().for_each(|glob| self.word(&glob.to_string()));
                }
                Test::In(networks) => {
                    self.word("in");
                    self.count(networks.iter().len());
                    networks.iter().for_each(|network| self.word(&network.to_string()));
                }
                Test::Present => self.word("present"),
                Test::Absent => self.word("absent"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn version(rules: &str) -> String {
        of(&RuleSet::parse("", &format!("rules: [{rules}]")).unwrap())
    }

    #[test]
    fn another_layout_is_the_same_version() {
        let one =
            version("{name: a, per: [ip], limit: 60 per minute, match: {method: [GET, POST]}}");
        let other =
            "\n  # a comment\n  {match: {method: [POST, GET]}, limit: '60/m', name: a, per: [ip]}";
        assert_eq!(version(other), one);
        assert_eq!(one.len(), 16);
    }

    #[test]
    fn whatever_changes_a_decision_changes_the_version() {
        let versions = [
            "",
            "{name: a, limit: 1/s}",
            "{name: b, limit: 1/s}",
            "{name: a, limit: 2/s}",
            "{name: a, limit: 1/s, burst: 2}",
            "{name: a, limit: 1/s, algorithm: fixed_window}",
            "{name: a, limit: 1/s, algorithm: leaky_bucket, queue: 3}",
            "{name: a, limit: 1/s, per: [ip]}",
            "{name: a, limit: 1/s, per: [ip, user]}",
            "{name: a, limit: 1/s, per: [ip | user]}",
            "{name: a, limit: 1/s, mode: shadow}",
            "{name: a, limit: 1/s, mode: off}",
            "{name: a, limit: 1/s, on_store_failure: deny}",
            "{name: a, limit: 1/s, accuracy: leased}",
            "{name: a, limit: 1/s, accuracy: split}",
            "{name: a, limit: 1/s, accuracy: synced}",
            "{name: a, limit: 1/s, accuracy: synced, sync: 1s}",
            "{name: a, limit: 1/s, accuracy: synced, max_ahead: 3}",
            "{name: a, limit: 1/s, hot: leased}",
            "{name: a, limit: 1/s, match: {path: /a}}",
            "{name: a, limit: 1/s, match: {path: /b}}",
            "{name: a, limit: 1/s, match: {path: [/a, /b, /c, /d, /e, /f, /g]}}",
            "{name: a, limit: 1/s, match: {path: [/a, /b, /c, /d, /e, /f, /h]}}",
            "{name: a, limit: 1/s, match: {path: {present: true}}}",
            "{name: a, limit: 1/s, match: {ip: {in: [10.0.0.0/8]}}}",
            "{name: a, limit: 1/s, per: [ip], penalty: {after: 5, within: 1m, block: 1m}}",
            "{name: a, limit: 1/s, per: [ip], penalty: {after: 5x, within: 1m, block: 1m}}",
            "{name: a, limit: 1/s, per: [ip], rollout: 10%}",
            "{name: a, limit: 1/s, per: [ip], rollout: 20%}",
            "{name: a, limit: 1/s, per: [ip], rollout: 100%}",
            "{name: a, limit: 1/s, per: [ip], overrides: [{match: {user: x}, limit: 2/s}]}",
            "{name: a, limit: 1/s, per: [ip], overrides: [{match: {user: x}, limit: 2/s, rollout: 10%}]}",
            "{name: a, limit: 1/s, tiers: {by: plan, limits: {pro: 2/s}}}",
            "{name: a, limit: 1/s, overrides: [{match: {user: x}, limit: 2/s}]}",
            "{name: a, limit: 1/s, overrides: [{match: {user: y}, limit: 2/s}]}",
            "{name: a, limit: 1/s, overrides: [{match: {user: x}, limit: 2/s, until: '2030-01-01T00:00:00Z'}]}",
            "{name: a, limit: 1/s}, {name: b, limit: 1/s}",
            "{name: b, limit: 1/s}, {name: a, limit: 1/s}",
        ];
        let different: HashSet<String> = versions.iter().map(|rules| version(rules)).collect();
        assert_eq!(different.len(), versions.len());
    }
}
