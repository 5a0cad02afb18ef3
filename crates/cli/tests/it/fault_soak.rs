//! Stated bounds under random faults: real nodes and real stores, seeded faults, and a record of every answer.
//!
//! An episode has a store topology, some nodes, three lanes (a rule with its load) and a schedule of faults. The seed and
//! the number of the episode determine all of it. After the episode, the admissions of every span and window are compared
//! with the bound that the documentation states ([`bound`]). An admission counts only if it must lie in the span, given
//! what is known about the clock of the store ([`store_clock`]).
//!
//! `make test` runs five episodes of fixed seeds. `make soak-faults SECONDS=600` runs random episodes for 600 seconds.
//! `make soak-faults SEED=17 EPISODE=4` repeats one episode.

mod bound;
mod check;
mod check_tests;
mod connection;
mod episode;
mod faults;
mod fleet;
mod history;
mod load;
mod random;
mod report;
mod scenario;
mod store_clock;

use tidegate_testkit::{Flavour, Tool, lacking};

use self::episode::EpisodeResult;
use self::history::now;
use self::report::SoakTotals;
use self::scenario::EpisodeScenario;

/// Seeds and episodes of the run in `make test`. Together they cover every accuracy on one Redis, limits in flight, killed
/// and paused nodes, late replies, pushes of rules, and a Redis that is paused, restarted empty or has its clock set back.
const SHORT_RUN: [(u64, u64); 5] = [(7, 35), (8, 50), (13, 45), (18, 50), (25, 8)];

#[allow(clippy::disallowed_methods, reason = "only this test reads the settings of a soak run")]
/// Returns a number from an environment variable, or `None` if it is unset or empty.
fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: found {text:?}, wanted a number")))
}

fn run(seed: u64, episode: u64) -> EpisodeResult {
    episode::run(EpisodeScenario::choose(seed, episode))
}

/// Prints each episode when it ends, and panics after the last one if a guarantee was broken.
#[allow(clippy::print_stderr, reason = "a run of several minutes shows its progress")]
fn report(results: impl Iterator<Item = EpisodeResult>) {
    let mut totals = SoakTotals::default();
    for result in results {
        totals.add(&result);
        eprintln!("{}", report::progress(&result));
        if result.failed() {
            eprintln!("{}", report::failure(&result));
        }
    }
    eprintln!("{}", totals.text());
    assert!(totals.failed.is_empty(), "{} episodes broke a stated bound", totals.failed.len());
}

#[test]
fn stated_bounds_hold_under_the_faults_of_fixed_seeds() {
    if lacking(&[Tool::Server(Flavour::Redis), Tool::Faketime]) {
        return;
    }
    let results = std::thread::scope(|scope| {
        let episodes = SHORT_RUN.map(|(seed, episode)| scope.spawn(move || run(seed, episode)));
        episodes.map(|episode| episode.join().unwrap())
    });
    report(results.into_iter());
}

#[test]
#[ignore = "runs for a configured time: make soak-faults"]
fn stated_bounds_hold_under_random_faults() {
    let seed = env_number("TIDEGATE_SEED").unwrap_or_else(|| now().unsigned_abs() / 1_000_000);
    if let Some(episode) = env_number("TIDEGATE_SOAK_EPISODE") {
        return report(std::iter::once(run(seed, episode)));
    }
    let seconds = env_number("TIDEGATE_SOAK_SECONDS").unwrap_or(600);
    let until = now() + i64::try_from(seconds).unwrap() * 1_000_000;
    eprintln!("seed {seed}, {seconds} s");
    report((0..).take_while(|_| now() < until).map(|episode| run(seed, episode)));
}
