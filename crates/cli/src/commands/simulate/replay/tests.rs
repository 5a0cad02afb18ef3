//! What is asked for about a log on the command line, and what is answered.

use std::io::Write;

use clap::Parser;
use serde_json::Value;

use crate::commands::{Arguments, Command, Ending, Failure, Output};

/// Runs `tidegate simulate` in a folder of two files: how it ended, what stands on stdout and what is told.
fn replayed(
    log: &[u8],
    more: impl Fn(&str) -> Vec<String>,
) -> Result<(Ending, String, String), Failure> {
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
    let ending = command.run(&mut Output { data: &mut data, notes: &mut notes })?;
    let told = String::from_utf8(notes).unwrap().replace(folder.path().to_str().unwrap(), "");
    Ok((ending, String::from_utf8(data).unwrap(), told))
}

const LINE: &str = "192.0.2.7 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 5\n";

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn misread(arguments: &[&str]) -> String {
    let all = ["tidegate", "simulate"].iter().chain(arguments);
    Arguments::try_parse_from(all).unwrap_err().to_string()
}

#[test]
fn a_log_is_replayed_plain_and_packed() {
    let plain = LINE.repeat(5);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(plain.as_bytes()).unwrap();
    for log in [plain.into_bytes(), gzip.finish().unwrap()] {
        let (ending, json, told) = replayed(&log, |_| words(&["--json"])).unwrap();
        assert_eq!((ending, told.as_str()), (Ending::Fine, ""));
        let found: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(found["outcome"]["admitted"], 2);
        assert_eq!(found["outcome"]["deniedMost"][0]["client"], "192.0.2.7");
    }
}

#[test]
fn lines_that_can_not_be_read_are_told_and_the_rest_is_replayed() {
    let log = format!("{LINE}what is this\n{LINE}");
    let (_, table, told) = replayed(log.as_bytes(), |_| Vec::new()).unwrap();
    assert!(table.contains("2 requests on 3 lines"), "{table}");
    let wanted = "/access.log: 1 of 3 lines can't be read\n/access.log:2: found \"what is this\", \
                  wanted an address, a user, a time in brackets and a request in quotes\n";
    assert_eq!(told, wanted);
}

#[test]
fn a_log_of_nothing_else_is_an_error() {
    let failure = replayed(b"what\n", |_| words(&["--log-format", "json"])).unwrap_err();
    assert_eq!(failure.ending, Ending::No);
    assert!(failure.message.ends_with("access.log: no line can be read"), "{}", failure.message);
    assert!(failure.hints[0].contains("access.log:1: found"), "{:?}", failure.hints);
    let failure = replayed(b"", |_| Vec::new()).unwrap_err();
    assert!(failure.message.contains("no request"), "{}", failure.message);
}

#[test]
fn plot_is_written_as_svg() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("day.svg").to_str().unwrap().to_owned();
    let plot = |_: &str| vec!["--plot".to_owned(), path.clone()];
    replayed(LINE.repeat(9).as_bytes(), plot).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("<svg "));
}

#[test]
fn rules_are_compared_with_those_of_another_file() {
    let against = |folder: &str| {
        let path = format!("{folder}/old.yaml");
        std::fs::write(&path, "rules: [{name: each, per: [ip], limit: 3 per minute}]").unwrap();
        vec!["--against".to_owned(), path, "--top".to_owned(), "1".to_owned()]
    };
    let (_, table, _) = replayed(LINE.repeat(5).as_bytes(), against).unwrap();
    assert!(table.contains("Newly denied: 1\n"), "{table}");
    assert!(table.contains("Newly admitted: 0\n"), "{table}");
}

#[test]
fn what_makes_no_sense_is_told_with_what_is_wanted() {
    assert!(misread(&["--log", "a.log"]).contains("--rules <FILE>"));
    assert!(misread(&["--rules", "r.yaml", "--against", "o.yaml"]).contains("--log <FILE>"));
    let made_up = ["--rules", "r.yaml", "--log", "a.log", "--rate", "5/s"];
    assert!(misread(&made_up).contains("cannot be used with"));
    let failure = replayed(LINE.as_bytes(), |_| words(&["--field", "tenant"])).unwrap_err();
    assert!(failure.message.contains("--field must read like attribute=json.path"));
}
