//! Hashes of the canonical form of rules: nodes with the same rules have the same version.

use tidegate_rules::{Override, Rule, RuleSet};

/// Returns the version of a set of rules: 16 hexadecimal digits of the hash of all fields, in the order of the rules.
pub(crate) fn hash_rules(rules: &RuleSet) -> String {
    let mut hasher = blake3::Hasher::new();
    for rule in rules.rules() {
        rule.canonical().encode(|_, bytes| {
            hasher.update(bytes);
        });
    }
    hasher.finalize().to_hex().as_str()[..16].to_owned()
}

/// Returns the name and the hash of each field of a rule, in a fixed order.
pub(crate) fn hash_fields(rule: &Rule) -> Vec<(&'static str, blake3::Hash)> {
    let mut hashers: Vec<(&'static str, blake3::Hasher)> = Vec::new();
    rule.canonical().encode(|field, bytes| {
        if hashers.last().is_none_or(|(last, _)| *last != field) {
            hashers.push((field, blake3::Hasher::new()));
        }
        if let Some((_, hasher)) = hashers.last_mut() {
            hasher.update(bytes);
        }
    });
    hashers.into_iter().map(|(field, hasher)| (field, hasher.finalize())).collect()
}

/// Returns the hash of one override.
pub(crate) fn hash_override(item: &Override) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    item.encode(|bytes| {
        hasher.update(bytes);
    });
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn version(rules: &str) -> String {
        hash_rules(&RuleSet::parse("", &format!("rules: [{rules}]")).unwrap())
    }

    #[test]
    fn layout_and_comments_do_not_change_the_version() {
        let one =
            version("{name: a, per: [ip], limit: 60 per minute, match: {method: [GET, POST]}}");
        let other =
            "\n  # a comment\n  {match: {method: [POST, GET]}, limit: '60/m', name: a, per: [ip]}";
        assert_eq!(version(other), one);
        assert_eq!(one.len(), 16);
    }

    #[test]
    fn every_change_of_a_decision_changes_the_version() {
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

    /// During an update, nodes of two releases compare their versions.
    #[test]
    fn version_is_the_same_in_every_release() {
        let rules = "
            {name: a, limit: 100/s, burst: 200, per: [user | ip, path], rollout: 12.5%,
             match: {path: [/v1/**, /a], method: GET, ip: {in: [10.0.0.0/8]}, user: {present: true}, bot: {absent: true}},
             tiers: {by: claim.plan, limits: {pro: 500 per minute, free: 1/s}},
             overrides: [{match: {api_key: k1}, limit: 5/s, until: '2030-01-01T00:00:00Z', rollout: 10%}, {match: {}, limit: 6/s}],
             accuracy: synced, sync: 1s, max_ahead: 20, on_store_failure: local, penalty: {after: 10x, within: 1m, block: 10m}},
            {name: b, limit: 3/s, algorithm: leaky_bucket, queue: 3, mode: shadow, on_store_failure: deny},
            {name: c, limit: 3 in flight, hold: 5m, mode: off},
            {name: d, limit: 9/s, shards: 4}, {name: e, limit: 9/s, hot: leased}";
        assert_eq!(version(rules), "33865510c75317e0");
    }
}
