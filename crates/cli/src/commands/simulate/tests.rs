//! Arguments of `tidegate simulate` and their results.

use clap::{CommandFactory, Parser};
use serde_json::Value;

use crate::commands::{Arguments, Command, CommandError, CommandOutput, ExitStatus};

/// Runs `tidegate simulate` with these arguments. Returns the exit status and stdout.
fn simulated(arguments: &[&str]) -> Result<(ExitStatus, String), CommandError> {
    let all = ["tidegate", "simulate"].iter().chain(arguments);
    let Command::Simulate(command) = Arguments::try_parse_from(all).unwrap().command else {
        panic!("another command");
    };
    let (mut data, mut notes) = (Vec::new(), Vec::new());
    let status = command.run(&mut CommandOutput { data: &mut data, notes: &mut notes })?;
    Ok((status, String::from_utf8(data).unwrap()))
}

/// Returns the name and the admissions of each line of the table.
fn admitted(arguments: &[&str]) -> Vec<(String, u64)> {
    let (status, json) = simulated(&[arguments, &["--json"]].concat()).unwrap();
    assert_eq!(status, ExitStatus::Success);
    let report: Value = serde_json::from_str(&json).unwrap();
    let lines = report["lines"].as_array().unwrap().iter();
    lines
        .map(|line| (line["name"].as_str().unwrap().into(), line["admitted"].as_u64().unwrap()))
        .collect()
}

fn error_of(arguments: &[&str]) -> String {
    let error = simulated(arguments).unwrap_err();
    [vec![error.message], error.hints].concat().join("\n")
}

fn parse_error(arguments: &[&str]) -> String {
    let all = ["tidegate", "simulate"].iter().chain(arguments);
    Arguments::try_parse_from(all).unwrap_err().to_string()
}

#[test]
fn command_line_definition_is_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn algorithms_are_compared_under_the_same_traffic() {
    let found = admitted(&[
        "--limit",
        "20 per second",
        "--algorithm",
        "fixed_window,sliding_log",
        "--traffic",
        "boundary",
    ]);
    assert_eq!(found, [("fixed_window".into(), 40), ("sliding_log".into(), 20)]);
}

#[test]
fn attack_position_and_burst_size_can_be_set() {
    let attack = ["--limit", "20/s", "--traffic", "boundary", "--at", "5%", "--algorithm"];
    // 95 % of a second refills almost the whole bucket.
    assert_eq!(admitted(&[&attack[..], &["token_bucket"]].concat())[0].1, 39);
    let burst = ["--limit", "20/s", "--traffic", "burst", "--count", "25", "--clients", "2"];
    assert_eq!(admitted(&burst), [("token_bucket".into(), 40)]);
    assert!(parse_error(&["--limit", "5/s", "--at", "100%"]).contains("from 0 to 99"));
}

#[test]
fn fleet_from_arguments_admits_the_same_as_the_scenario() {
    let found = admitted(&[
        "--limit",
        "60/s",
        "--algorithm",
        "fixed_window",
        "--nodes",
        "3",
        "--sync",
        "0,400ms,1s",
        "--max-ahead",
        "unbounded",
        "--rate",
        "270",
        "--for",
        "1s",
    ]);
    let counts: Vec<u64> = found.into_iter().map(|(_, admitted)| admitted).collect();
    assert_eq!(counts, [60, 108, 180]);
}

#[test]
fn retry_storm_compares_both_retry_behaviors() {
    let storm = ["--limit", "5/s", "--traffic", "retry-storm", "--for", "10s"];
    let names: Vec<String> = admitted(&storm).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["token_bucket, back after 100 ms", "token_bucket, back after Retry-After"]);
}

#[test]
fn rules_apply_to_requests_with_matching_attributes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let rules =
        "rules: [{name: orders, match: {path: /v1/orders}, per: [ip], limit: 3 per minute}]";
    std::fs::write(&path, rules).unwrap();
    let path = path.to_str().unwrap();
    let none = error_of(&["--rules", path]);
    assert!(none.contains("no rule applies to the requests\n-a path=/v1/orders"), "{none}");
    let found =
        admitted(&["--rules", path, "-a", "path=/v1/orders", "--clients", "4", "--for", "10s"]);
    assert_eq!(found, [("all rules".into(), 12), ("orders".into(), 12)]);
    std::fs::write(path, rules.replace("limit", "limmit")).unwrap();
    let wrong = error_of(&["--rules", path]);
    assert!(wrong.contains("rules.yaml:1") && wrong.contains("limmit"), "{wrong}");
}

/// Commands of the guide. The guide also contains their output.
const GUIDE_COMMANDS: [&str; 2] = [
    "tidegate simulate --limit 60/s --algorithm fixed_window --nodes 3 --rate 270/s --for 1s \\\n    \
     --accuracy exact,leased,synced,split --sync 200ms,400ms --sync-phase own",
    "tidegate simulate --limit 20/s --algorithm fixed_window --nodes 3 --rate 90/s --for 30s \\\n    \
     --outage 10s..20s --on-store-failure allow,deny,local",
];

#[test]
fn guide_contains_the_output_of_its_commands() {
    let page = include_str!("../../../../../docs/guide/simulate.md");
    let mut missing = String::new();
    for command in GUIDE_COMMANDS {
        let words: Vec<&str> = command.split_whitespace().filter(|word| *word != "\\").collect();
        let (_, table) = simulated(&words[2..]).unwrap();
        let shown = format!("```sh\n{command}\n```\n\n```text\n{table}```\n");
        if !page.contains(&shown) {
            missing += &shown;
        }
    }
    assert!(missing.is_empty(), "{missing}");
}

#[test]
fn rules_on_several_nodes_use_their_accuracy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let rules = "rules: [{name: api, per: [user], limit: 30 per hour, algorithm: fixed_window, \
                 accuracy: synced, max_ahead: 5, on_store_failure: deny}]";
    std::fs::write(&path, rules).unwrap();
    let path = path.to_str().unwrap();
    let load = ["--rules", path, "--rate", "90/s", "--for", "10s"];
    assert_eq!(admitted(&load)[0].1, 30);
    let fleet = admitted(&[&load[..], &["--nodes", "3"]].concat());
    assert!((31..=45).contains(&fleet[0].1), "{fleet:?}");
    let outage = admitted(&[&load[..], &["--nodes", "3", "--outage", "0..20s"]].concat());
    assert_eq!(outage[0].1, 0);
}

#[test]
fn plot_is_written_to_the_given_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("burst.svg");
    let (_, table) = simulated(&["burst", "--plot", path.to_str().unwrap()]).unwrap();
    assert!(table.starts_with("burst: "), "{table}");
    assert!(std::fs::read_to_string(path).unwrap().starts_with("<svg "));
    let nowhere = folder.path().join("no/such.svg");
    let error = error_of(&["burst", "--plot", nowhere.to_str().unwrap()]);
    assert!(error.contains("such.svg: can't be written"), "{error}");
}

#[test]
fn invalid_arguments_are_reported_with_the_wanted_value() {
    assert!(error_of(&[]).contains("a scenario, --limit or --rules is wanted"));
    assert!(parse_error(&["burst", "--limit", "5/s"]).contains("cannot be used with"));
    assert!(parse_error(&["--rules", "r.yaml", "--sync", "1s"]).contains("cannot be used with"));
    assert!(parse_error(&["--limit", "5/s", "--sync", "5ms"]).contains("from 10 ms to 60 s"));
    assert!(parse_error(&["--limit", "5/s", "--rate", "20 in flight"]).contains("like 90/s"));
    assert!(parse_error(&["burst", "--plot", "burst.png"]).contains("ends in .svg is wanted"));
    assert!(parse_error(&["--limit", "5 per fortnight"]).contains("found \"fortnight\""));
    assert!(parse_error(&["--limit", "5/s", "--outage", "9s..3s"]).contains("like 10s..20s"));
    assert!(parse_error(&["--limit", "5/s", "--on-store-failure", "deny"]).contains("--outage"));
    let log = ["--limit", "5/s", "--algorithm", "sliding_log"];
    assert!(error_of(&[&log[..], &["--sync", "1s"]].concat()).contains("found sliding_log"));
    assert!(error_of(&[&log[..], &["--burst", "9"]].concat()).contains("burst needs algorithm"));
    assert!(error_of(&[&log[..], &["--queue", "9"]].concat()).contains("queue needs"));
}
