//! What is told of logs, as it is printed.

use std::io::Cursor;

use serde_json::Value;

use super::report::ReplayTimeline;
use super::*;

fn rules(name: &str, text: &str) -> (String, RuleSet) {
    (name.to_owned(), RuleSet::parse(name, text).unwrap())
}

fn replay(rules: (String, RuleSet), against: Option<(String, RuleSet)>) -> Replay {
    Replay {
        log: "access.log".to_owned(),
        format: LogFormat::Auto,
        fixed: Vec::new(),
        fields: Vec::new(),
        rules,
        against,
        top: 20,
    }
}

fn replayed(log: &str, text: &str, against: Option<&str>) -> ReplayReport {
    let against = against.map(|text| rules("old.yaml", text));
    replay(rules("new.yaml", text), against).run(Cursor::new(log.to_owned()), &mut || {}).unwrap()
}

/// One request of a client each second.
fn steady(client: &str, count: u64) -> String {
    (0..count).map(|second| format!("{{\"ts\":{second},\"ip\":\"{client}\"}}\n")).collect()
}

const EXAMPLE: &str = include_str!("../../../../docs/guide/replay/access.log");
const NEW: &str = include_str!("../../../../docs/guide/replay/new.yaml");
const OLD: &str = include_str!("../../../../docs/guide/replay/old.yaml");

#[test]
fn the_guide_shows_what_is_printed() {
    let page = include_str!("../../../../docs/guide/replay.md");
    for found in [replayed(EXAMPLE, NEW, None), replayed(EXAMPLE, NEW, Some(OLD))] {
        let found = found.to_string();
        assert!(page.contains(&found), "{found}");
    }
}

#[test]
fn two_sets_of_rules_are_compared() {
    insta::assert_snapshot!("compared", replayed(EXAMPLE, NEW, Some(OLD)));
}

#[test]
fn all_of_it_is_in_json() {
    let json = serde_json::to_value(replayed(EXAMPLE, NEW, Some(OLD))).unwrap();
    insta::assert_snapshot!(
        "json",
        serde_json::to_string_pretty(&without_timelines(json)).unwrap()
    );
}

/// The same without what is as long as a day.
fn without_timelines(mut json: Value) -> Value {
    match &mut json {
        Value::Object(object) => {
            object.retain(|name, _| name != "timeline");
            object.values_mut().for_each(|value| *value = without_timelines(value.take()));
        }
        Value::Array(array) => {
            array.iter_mut().for_each(|value| *value = without_timelines(value.take()));
        }
        _ => {}
    }
    json
}

#[test]
fn each_request_is_in_the_timeline_of_every_rule_that_it_met() {
    let found = replayed(EXAMPLE, NEW, Some(OLD));
    let all = found.outcome.by_rule.iter().map(|rule| &rule.counts);
    for counts in all.chain([&found.outcome.counts, &found.against.unwrap().counts]) {
        let sum = |pieces: &[u64]| pieces.iter().sum::<u64>();
        let ReplayTimeline { offered, admitted, .. } = &counts.timeline;
        assert_eq!((sum(offered), sum(admitted)), (counts.offered, counts.admitted));
    }
    let differences = found.differences.unwrap();
    for newly in [differences.newly_denied, differences.newly_admitted] {
        assert_eq!(newly.timeline.iter().sum::<u64>(), newly.requests);
        assert_eq!(newly.by_rule.iter().map(|rule| rule.requests).sum::<u64>(), newly.requests);
    }
}

#[test]
fn the_same_rules_do_not_differ() {
    let found = replayed(EXAMPLE, NEW, Some(NEW));
    let differences = found.differences.unwrap();
    let counts = [differences.newly_denied, differences.newly_admitted].map(|newly| newly.requests);
    assert_eq!(counts, [0, 0]);
}

#[test]
fn what_may_be_a_secret_is_shown_as_a_hash() {
    let log: String = (0..4)
        .map(|at| {
            format!("{{\"ts\":{at},\"header.x-api-key\":\"sk-live-1\",\"user\":\"alice\"}}\n")
        })
        .collect();
    let found = replayed(&log, "rules: [{name: a, per: [api_key, user], limit: 1 per hour}]", None);
    let json = serde_json::to_string(&found).unwrap();
    for text in [found.to_string(), json] {
        assert!(text.contains("api_key+user#"), "{text}");
        assert!(!text.contains("sk-live") && !text.contains("alice"), "{text}");
    }
    let most = &found.outcome.denied_most[0];
    assert_eq!((most.denied, most.offered), (3, 4));
}

#[test]
fn a_terminal_is_told_nothing_by_a_client() {
    let found = replayed(
        &r#"{"ts":1,"ip":"\u001b[31mred"}
"#
        .repeat(3),
        "rules: [{name: a, per: [ip], limit: 1 per hour}]",
        None,
    );
    assert_eq!(found.outcome.denied_most[0].denied, 2);
    assert!(found.to_string().contains("\u{fffd}[31mred"), "{found}");
}

#[test]
fn a_penalty_blocks_in_the_time_of_the_log() {
    let rule = "rules: [{name: a, per: [ip], limit: 1 per second, burst: 1, \
                penalty: {after: 3, within: 1m, block: 10s}}]";
    // Four in one second are three denials; then it is blocked for ten seconds.
    let burst = "{\"ts\":0,\"ip\":\"192.0.2.7\"}\n".repeat(4);
    let found = replayed(&(burst + &steady("192.0.2.7", 30)), rule, None);
    let rule = &found.outcome.by_rule[0];
    assert!(rule.blocked >= 9, "{rule:?}");
    assert_eq!(rule.counts.denied, rule.decided);
    assert_eq!(found.outcome.counts.denied, rule.counts.denied);
}

#[test]
fn all_clients_of_one_bucket_are_everybody_and_those_without_a_name_share_one() {
    let rules =
        "rules: [{name: all, limit: 5 per hour}, {name: user, per: [user], limit: 5 per hour}]";
    let found = replayed(&steady("192.0.2.7", 10), rules, None).to_string();
    assert!(found.contains("all   everybody") && found.contains("user  without user"), "{found}");
}

#[test]
fn a_log_without_a_request_is_told_as_that() {
    let one = || rules("new.yaml", "rules: [{name: a, per: [ip], limit: 1/s}]");
    let run = |log: &'static str| replay(one(), None).run(Cursor::new(log), &mut || {});
    assert!(matches!(run(""), Err(ReplayError::Empty)));
    assert!(matches!(run("\n\n"), Err(ReplayError::Empty)));
    assert!(matches!(run("what\nis this\n"), Err(ReplayError::AllBad(bad)) if bad.len() == 2));
}
