//! Explores every fleet and prints what was seen: `make model`. Words pick those that
//! begin with one of them.

use std::process::ExitCode;
use std::time::Instant;

use tidegate_model::{Scenario, explore, flawed, sound};

/// More states than this are not kept in memory.
const MOST: usize = 60_000_000;

#[allow(clippy::print_stdout, reason = "what was seen is what this is for")]
#[allow(clippy::disallowed_methods, reason = "it measures itself; the model has no clock")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let picked = |scenario: &Scenario| {
        words.is_empty() || words.iter().any(|word| scenario.name.starts_with(word))
    };
    let mut fine = true;
    for scenario in sound(true).into_iter().chain(flawed()).filter(picked) {
        let start = Instant::now();
        let explored = explore(&scenario.fleet, MOST);
        println!("{}: {explored} ({:.1?})", scenario.name, start.elapsed());
        fine &= match scenario.fleet.flaw {
            None => explored.whole && explored.wanted && explored.broken.is_none(),
            Some(_) => explored.broken.is_some(),
        };
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
