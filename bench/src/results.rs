//! Result files, in the folder that `TIDEGATE_RESULTS` names.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::json;

/// File with one JSON object per line: the results that have a goal.
const GOALS_FILE: &str = "goals.jsonl";

/// Saves a file. Without a folder for results, nothing is saved.
///
/// # Panics
/// The file cannot be written.
pub fn save(name: &str, text: &str) {
    let Some(file) = path(name) else { return };
    fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Prints and saves a result that has a goal. A later result with the same name and goal replaces an earlier one in the report.
///
/// # Panics
/// The file cannot be written.
#[allow(clippy::print_stdout, reason = "the results are the output of a measurement")]
pub fn record_goal(name: &str, goal: &str, measured: &str, is_met: bool) {
    let verdict = if is_met { "met" } else { "not met" };
    println!("goal: {name}: {goal}: {measured}: {verdict}");
    let Some(file) = path(GOALS_FILE) else { return };
    let line = json!({"name": name, "goal": goal, "measured": measured, "verdict": verdict});
    let opened = OpenOptions::new().create(true).append(true).open(&file);
    let written = opened.and_then(|mut goals| writeln!(goals, "{line}"));
    written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn path(name: &str) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("TIDEGATE_RESULTS")?).join(name))
}
