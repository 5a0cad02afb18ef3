//! What is asked for on the command line, and what is answered.

use clap::{CommandFactory, Parser};
use serde_json::Value;

use crate::commands::{Arguments, Command, Ending, Failure, Output};

/// Runs `tidegate simulate` with these arguments: how it ended, and what stands on stdout.
fn simulated(arguments: &[&str]) -> Result<(Ending, String), Failure> {
    let all = ["tidegate", "simulate"].iter().chain(arguments);
    let Command::Simulate(command) = Arguments::try_parse_from(all).unwrap().command else {
        panic!("another command");
    };
    let (mut data, mut notes) = (Vec::new(), Vec::new());
    let ending = command.run(&mut Output { data: &mut data, notes: &mut notes })?;
    Ok((ending, String::from_utf8(data).unwrap()))
}

/// Each line of the table: its name and how many were admitted.
fn admitted(arguments: &[&str]) -> Vec<(String, u64)> {
    let (ending, json) = simulated(&[arguments, &["--json"]].concat()).unwrap();
    assert_eq!(ending, Ending::Fine);
    let report: Value = serde_json::from_str(&json).unwrap();
    let lines = report["lines"].as_array().unwrap().iter();
    lines
        .map(|line| (line["name"].as_str().unwrap().into(), line["admitted"].as_u64().unwrap()))
        .collect()
}

fn refused(arguments: &[&str]) -> String {
    let failure = simulated(arguments).unwrap_err();
    [vec![failure.message], failure.hints].concat().join("\n")
}

fn misread(arguments: &[&str]) -> String {
    let all = ["tidegate", "simulate"].iter().chain(arguments);
    Arguments::try_parse_from(all).unwrap_err().to_string()
}

#[test]
fn the_command_line_makes_sense() {
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
fn an_attack_begins_where_it_is_said_and_a_burst_is_as_large() {
    let attack = ["--limit", "20/s", "--traffic", "boundary", "--at", "5%", "--algorithm"];
    // Most of a second is enough to fill a bucket again.
    assert_eq!(admitted(&[&attack[..], &["token_bucket"]].concat())[0].1, 39);
    let burst = ["--limit", "20/s", "--traffic", "burst", "--count", "25", "--clients", "2"];
    assert_eq!(admitted(&burst), [("token_bucket".into(), 40)]);
    assert!(misread(&["--limit", "5/s", "--at", "100%"]).contains("from 0 to 99"));
}

#[test]
fn a_fleet_of_ones_own_admits_what_the_scenario_does() {
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
fn a_storm_shows_both_kinds_of_clients() {
    let storm = ["--limit", "5/s", "--traffic", "retry-storm", "--for", "10s"];
    let names: Vec<String> = admitted(&storm).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["token_bucket, back after 100 ms", "token_bucket, back after Retry-After"]);
}

#[test]
fn rules_meet_requests_that_have_what_they_match_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let rules =
        "rules: [{name: orders, match: {path: /v1/orders}, per: [ip], limit: 3 per minute}]";
    std::fs::write(&path, rules).unwrap();
    let path = path.to_str().unwrap();
    let none = refused(&["--rules", path]);
    assert!(none.contains("no rule applies to the requests\n-a path=/v1/orders"), "{none}");
    let found =
        admitted(&["--rules", path, "-a", "path=/v1/orders", "--clients", "4", "--for", "10s"]);
    assert_eq!(found, [("all rules".into(), 12), ("orders".into(), 12)]);
    std::fs::write(path, rules.replace("limit", "limmit")).unwrap();
    let wrong = refused(&["--rules", path]);
    assert!(wrong.contains("rules.yaml:1") && wrong.contains("limmit"), "{wrong}");
}

/// What the guide shows of fleets: each command, and what it prints.
const SHOWN: [&str; 2] = [
    "tidegate simulate --limit 60/s --algorithm fixed_window --nodes 3 --rate 270/s --for 1s \\\n    \
     --accuracy exact,leased,synced,split --sync 200ms,400ms --sync-phase own",
    "tidegate simulate --limit 20/s --algorithm fixed_window --nodes 3 --rate 90/s --for 30s \\\n    \
     --outage 10s..20s --on-store-failure allow,deny,local",
];

#[test]
fn the_guide_shows_what_fleets_make_of_it() {
    let page = include_str!("../../../../../docs/guide/simulate.md");
    let mut missing = String::new();
    for command in SHOWN {
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
fn rules_on_several_nodes_are_kept_by_their_accuracy() {
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
    let away = admitted(&[&load[..], &["--nodes", "3", "--outage", "0..20s"]].concat());
    assert_eq!(away[0].1, 0);
}

#[test]
fn a_picture_is_written_where_it_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("burst.svg");
    let (_, table) = simulated(&["burst", "--plot", path.to_str().unwrap()]).unwrap();
    assert!(table.starts_with("burst: "), "{table}");
    assert!(std::fs::read_to_string(path).unwrap().starts_with("<svg "));
    let nowhere = folder.path().join("no/such.svg");
    let told = refused(&["burst", "--plot", nowhere.to_str().unwrap()]);
    assert!(told.contains("such.svg: can't be written"), "{told}");
}

#[test]
fn what_makes_no_sense_is_told_with_what_is_wanted() {
    assert!(refused(&[]).contains("a scenario, --limit or --rules is wanted"));
    assert!(misread(&["burst", "--limit", "5/s"]).contains("cannot be used with"));
    assert!(misread(&["--rules", "r.yaml", "--sync", "1s"]).contains("cannot be used with"));
    assert!(misread(&["--limit", "5/s", "--sync", "5ms"]).contains("from 10 ms to 60 s"));
    assert!(misread(&["--limit", "5/s", "--rate", "20 in flight"]).contains("like 90/s"));
    assert!(misread(&["burst", "--plot", "burst.png"]).contains("ends in .svg is wanted"));
    assert!(misread(&["--limit", "5 per fortnight"]).contains("found \"fortnight\""));
    assert!(misread(&["--limit", "5/s", "--outage", "9s..3s"]).contains("like 10s..20s"));
    assert!(misread(&["--limit", "5/s", "--on-store-failure", "deny"]).contains("--outage"));
    let log = ["--limit", "5/s", "--algorithm", "sliding_log"];
    assert!(refused(&[&log[..], &["--sync", "1s"]].concat()).contains("found sliding_log"));
    assert!(refused(&[&log[..], &["--burst", "9"]].concat()).contains("burst needs algorithm"));
    assert!(refused(&[&log[..], &["--queue", "9"]].concat()).contains("queue needs"));
}
