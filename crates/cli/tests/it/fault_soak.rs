//! Stated bounds under random faults: real nodes on real servers, faults by a seed, every answer recorded.
//!
//! An episode is a topology, some nodes, three rules with a load each, and faults at times of their own; all of it follows
//! from a seed and the episode's number. What was admitted is then compared with the bound that the documentation states
//! ([`bound`]), for every span and window, as far as an admission must lie in it ([`store_clock`]).
//!
//! `make test` runs a few episodes of fixed seeds; `make soak-faults SECONDS=600` runs new ones for so long;
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

use self::episode::EpisodeResult;
use self::history::now;
use self::report::SoakTotals;
use self::scenario::EpisodeScenario;

/// Seeds and episodes of the run in `make test`. Together they have every accuracy on one Redis, limits in flight, nodes that
/// are killed and paused, a Redis that is paused, restarted without data and set back, replies that are late, and pushes.
const SHORT_RUN: [(u64, u64); 5] = [(7, 35), (8, 50), (13, 45), (18, 50), (25, 8)];

#[allow(clippy::disallowed_methods, reason = "the settings of a soak run are for this test alone")]
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: found {text:?}, wanted a number")))
}

fn run(seed: u64, episode: u64) -> EpisodeResult {
    episode::run(EpisodeScenario::choose(seed, episode))
}

/// Reports episodes as they end, and panics after the last if one of them broke a promise.
#[allow(clippy::print_stderr, reason = "a run of minutes shows where it is")]
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
#[ignore = "runs for as long as it is told to: make soak-faults"]
fn stated_bounds_hold_under_random_faults() {
    let seed = setting("TIDEGATE_SEED").unwrap_or_else(|| now().unsigned_abs() / 1_000_000);
    if let Some(episode) = setting("TIDEGATE_SOAK_EPISODE") {
        return report(std::iter::once(run(seed, episode)));
    }
    let seconds = setting("TIDEGATE_SOAK_SECONDS").unwrap_or(600);
    let until = now() + i64::try_from(seconds).unwrap() * 1_000_000;
    eprintln!("seed {seed}, {seconds} s");
    report((0..).take_while(|_| now() < until).map(|episode| run(seed, episode)));
}
