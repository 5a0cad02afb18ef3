//! Arguments of `tidegate simulate --log` and their results.

use std::io::Write;

use clap::Parser;
use serde_json::Value;

use crate::commands::{Arguments, Command, CommandError, CommandOutput, ExitStatus};

/// Runs `tidegate simulate` with a log and a rules file. Returns the exit status, stdout and stderr.
fn run_replay(
    log: &[u8],
    more: impl Fn(&str) -> Vec<String>,
) -> Result<(ExitStatus, String, String), CommandError> {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("access.log"), log).unwrap();
    let rules = "rules: [{name: each, per: [ip], limit: 2 per minute}]";
    std::fs::write(file("rules.yaml"), rules).unwrap();
    let mut all = ["tidegate", "simulate", "--log"].map(str::to_owned).to_vec();
    all.extend([file("access.log"), "--rules".to_owned(), file("rules.yaml")]);
    all.extend(more(folder.path().to_str().unwrap()));
    let Command::Simulate(command) = Arguments::try_parse_from(all).unwrap().command else {
        panic!("another command");
    };
    let (mut data, mut notes) = (Vec::new(), Vec::new());
    let status = command.run(&mut CommandOutput { data: &mut data, notes: &mut notes })?;
    let notes = String::from_utf8(notes).unwrap().replace(folder.path().to_str().unwrap(), "");
    Ok((status, String::from_utf8(data).unwrap(), notes))
}

const LINE: &str = "192.0.2.7 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 5\n";

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn parse_error(arguments: &[&str]) -> String {
    let all = ["tidegate", "simulate"].iter().chain(arguments);
    Arguments::try_parse_from(all).unwrap_err().to_string()
}

#[test]
fn plain_and_gzip_logs_are_replayed() {
    let plain = LINE.repeat(5);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(plain.as_bytes()).unwrap();
    for log in [plain.into_bytes(), gzip.finish().unwrap()] {
        let (status, json, notes) = run_replay(&log, |_| owned(&["--json"])).unwrap();
        assert_eq!((status, notes.as_str()), (ExitStatus::Success, ""));
        let found: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(found["outcome"]["admitted"], 2);
        assert_eq!(found["outcome"]["deniedMost"][0]["client"], "192.0.2.7");
    }
}

#[test]
fn unreadable_lines_are_reported_and_the_others_replayed() {
    let log = format!("{LINE}what is this\n{LINE}");
    let (_, table, notes) = run_replay(log.as_bytes(), |_| Vec::new()).unwrap();
    assert!(table.contains("2 requests on 3 lines"), "{table}");
    let wanted = "/access.log: 1 of 3 lines can't be read\n/access.log:2: found \"what is this\", \
                  wanted an address, a user, a time in brackets and a request in quotes\n";
    assert_eq!(notes, wanted);
}

#[test]
fn log_without_readable_lines_is_an_error() {
    let error = run_replay(b"what\n", |_| owned(&["--log-format", "json"])).unwrap_err();
    assert_eq!(error.status, ExitStatus::Negative);
    assert!(error.message.ends_with("access.log: no line can be read"), "{}", error.message);
    assert!(error.hints[0].contains("access.log:1: found"), "{:?}", error.hints);
    let error = run_replay(b"", |_| Vec::new()).unwrap_err();
    assert!(error.message.contains("no request"), "{}", error.message);
}

#[test]
fn plot_is_written_as_svg() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("day.svg").to_str().unwrap().to_owned();
    let plot = |_: &str| vec!["--plot".to_owned(), path.clone()];
    run_replay(LINE.repeat(9).as_bytes(), plot).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("<svg "));
}

#[test]
fn rules_are_compared_with_another_file() {
    let against = |folder: &str| {
        let path = format!("{folder}/old.yaml");
        std::fs::write(&path, "rules: [{name: each, per: [ip], limit: 3 per minute}]").unwrap();
        vec!["--against".to_owned(), path, "--top".to_owned(), "1".to_owned()]
    };
    let (_, table, _) = run_replay(LINE.repeat(5).as_bytes(), against).unwrap();
    assert!(table.contains("Newly denied: 1\n"), "{table}");
    assert!(table.contains("Newly admitted: 0\n"), "{table}");
}

#[test]
fn invalid_arguments_are_reported_with_the_wanted_value() {
    assert!(parse_error(&["--log", "a.log"]).contains("--rules <FILE>"));
    assert!(parse_error(&["--rules", "r.yaml", "--against", "o.yaml"]).contains("--log <FILE>"));
    let synthetic = ["--rules", "r.yaml", "--log", "a.log", "--rate", "5/s"];
    assert!(parse_error(&synthetic).contains("cannot be used with"));
    let error = run_replay(LINE.as_bytes(), |_| owned(&["--field", "tenant"])).unwrap_err();
    assert!(error.message.contains("--field must read like attribute=json.path"));
}
