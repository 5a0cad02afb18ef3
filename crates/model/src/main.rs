//! Explores every scenario and prints the results: `make model`. Arguments select the scenarios with such a prefix.

use std::process::ExitCode;
use std::time::Instant;

use tidegate_model::{ModelScenario, explore, flawed_scenarios, sound_scenarios};

/// Maximum number of states in memory.
const MAX_STATES: usize = 60_000_000;

#[allow(clippy::print_stdout, reason = "the result goes to stdout")]
#[allow(clippy::disallowed_methods, reason = "measures the run time; the model has no clock")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let selected = |scenario: &ModelScenario| {
        words.is_empty() || words.iter().any(|word| scenario.name.starts_with(word))
    };
    let mut passed = true;
    for scenario in sound_scenarios(true).into_iter().chain(flawed_scenarios()).filter(selected) {
        let start = Instant::now();
        let explored = explore(&scenario.fleet, MAX_STATES);
        println!("{}: {explored} ({:.1?})", scenario.name, start.elapsed());
        passed &= match scenario.fleet.flaw {
            None => explored.complete && explored.reaches_goal && explored.violation.is_none(),
            Some(_) => explored.violation.is_some(),
        };
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
