//! Printed reports of replayed logs.

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

/// Returns one request of a client each second.
fn steady(client: &str, count: u64) -> String {
    (0..count).map(|second| format!("{{\"ts\":{second},\"ip\":\"{client}\"}}\n")).collect()
}

const EXAMPLE: &str = include_str!("../../../../docs/guide/replay/access.log");
const NEW: &str = include_str!("../../../../docs/guide/replay/new.yaml");
const OLD: &str = include_str!("../../../../docs/guide/replay/old.yaml");

#[test]
fn guide_contains_the_printed_report() {
    let page = include_str!("../../../../docs/guide/replay.md");
    for found in [replayed(EXAMPLE, NEW, None), replayed(EXAMPLE, NEW, Some(OLD))] {
        let found = found.to_string();
        assert!(page.contains(&found), "{found}");
    }
}

#[test]
fn report_compares_two_sets_of_rules() {
    insta::assert_snapshot!("compared", replayed(EXAMPLE, NEW, Some(OLD)));
}

#[test]
fn json_report_contains_all_fields() {
    let json = serde_json::to_value(replayed(EXAMPLE, NEW, Some(OLD))).unwrap();
    insta::assert_snapshot!(
        "json",
        serde_json::to_string_pretty(&without_timelines(json)).unwrap()
    );
}

/// Returns the JSON without timelines.
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
fn each_request_is_in_the_timeline_of_every_matching_rule() {
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
fn comparison_with_the_same_rules_shows_no_differences() {
    let found = replayed(EXAMPLE, NEW, Some(NEW));
    let differences = found.differences.unwrap();
    let counts = [differences.newly_denied, differences.newly_admitted].map(|newly| newly.requests);
    assert_eq!(counts, [0, 0]);
}

#[test]
fn possible_secrets_are_shown_as_hashes() {
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
fn control_characters_of_client_names_are_escaped() {
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
fn penalty_blocks_by_the_log_time() {
    let rule = "rules: [{name: a, per: [ip], limit: 1 per second, burst: 1, \
                penalty: {after: 3, within: 1m, block: 10s}}]";
    // Four requests in one second cause three denials and a block of ten seconds.
    let burst = "{\"ts\":0,\"ip\":\"192.0.2.7\"}\n".repeat(4);
    let found = replayed(&(burst + &steady("192.0.2.7", 30)), rule, None);
    let rule = &found.outcome.by_rule[0];
    assert!(rule.blocked >= 9, "{rule:?}");
    assert_eq!(rule.counts.denied, rule.decided);
    assert_eq!(found.outcome.counts.denied, rule.counts.denied);
}

#[test]
fn clients_without_the_attribute_share_one_row() {
    let rules =
        "rules: [{name: all, limit: 5 per hour}, {name: user, per: [user], limit: 5 per hour}]";
    let found = replayed(&steady("192.0.2.7", 10), rules, None).to_string();
    assert!(found.contains("all   all clients") && found.contains("user  without user"), "{found}");
}

#[test]
fn log_without_requests_is_an_error() {
    let one = || rules("new.yaml", "rules: [{name: a, per: [ip], limit: 1/s}]");
    let run = |log: &'static str| replay(one(), None).run(Cursor::new(log), &mut || {});
    assert!(matches!(run(""), Err(ReplayError::Empty)));
    assert!(matches!(run("\n\n"), Err(ReplayError::Empty)));
    assert!(matches!(run("what\nis this\n"), Err(ReplayError::AllBad(bad)) if bad.len() == 2));
}
