//! Stated bounds under random faults: real nodes on real servers, faults by a seed, every answer recorded.
//!
//! An episode is a topology, some nodes, three rules with a load each, and faults at times of their own; all of it follows
//! from a seed and the episode's number. What was admitted is then compared with the bound that the documentation states
//! ([`bound`]), for every span and window, as far as an admission must lie in it ([`store_clock`]).
//!
//! `make test` runs a few episodes of a fixed seed; `make soak-faults SECONDS=600` runs new ones for so long;
//! `make soak-faults SEED=17 EPISODE=4` runs one again.

mod bound;
mod check;
mod check_tests;
mod episode;
mod faults;
mod fleet;
mod history;
mod load;
mod random;
mod report;
mod scenario;
mod store_clock;
mod wire;

use tidegate_testkit::{Flavour, Tool, lacking};

use self::history::now;
use self::report::SoakTotals;
use self::scenario::EpisodeScenario;

/// Seed of the run in `make test`, and the episodes of it: together all accuracies and most kinds of faults on one Redis.
const SHORT_SEED: u64 = 18;
const SHORT_EPISODES: [u64; 3] = [0, 1, 2];

#[allow(clippy::disallowed_methods, reason = "the settings of a soak run are for this test alone")]
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: found {text:?}, wanted a number")))
}

/// Runs episodes and panics at the end if one of them broke a promise.
fn soak(seed: u64, episodes: impl Iterator<Item = u64>) {
    let mut totals = SoakTotals::default();
    let mut failures = String::new();
    for episode in episodes {
        let result = episode::run(EpisodeScenario::choose(seed, episode));
        totals.add(&result);
        eprintln!("{}", report::progress(&result));
        if result.failed() {
            let failure = report::failure(&result);
            eprintln!("{failure}");
            failures.push_str(&failure);
        }
    }
    eprintln!("seed {seed}\n{}", totals.text());
    assert!(totals.failed.is_empty(), "{failures}\n{}", totals.text());
}

#[test]
fn stated_bounds_hold_under_the_faults_of_a_fixed_seed() {
    if lacking(&[Tool::Server(Flavour::Redis), Tool::Faketime]) {
        return;
    }
    soak(SHORT_SEED, SHORT_EPISODES.into_iter());
}

#[test]
#[ignore = "runs for as long as it is told to: make soak-faults"]
fn stated_bounds_hold_under_random_faults() {
    let seed = setting("TIDEGATE_SEED").unwrap_or_else(|| now().unsigned_abs() / 1_000_000);
    if let Some(episode) = setting("TIDEGATE_SOAK_EPISODE") {
        return soak(seed, std::iter::once(episode));
    }
    let seconds = setting("TIDEGATE_SOAK_SECONDS").unwrap_or(600);
    let until = now() + i64::try_from(seconds).unwrap() * 1_000_000;
    eprintln!("seed {seed}, {seconds} s");
    soak(seed, (0..).take_while(|_| now() < until));
}
