//! The production code on simulated networks, each determined by a seed.
//!
//! `TIDEGATE_SEED=17 cargo test -p tidegate-model --test it simulation -- --nocapture` runs one seed and
//! prints its trace, for each test: with leases, and with syncs.

mod admissions;
mod adversary;
mod fault_rates;
mod fleet;
mod keys;
mod rng;
mod synced;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;

use admissions::{excess, peaks, printed};
use adversary::Adversary;
use fleet::Fleet;
use keys::KeyTtl;
use rng::SimulationRng;
use tidegate_core::Algorithm;

#[allow(
    clippy::disallowed_methods,
    reason = "a soak sets the number of cases, a developer the seed"
)]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// Returns random seeds; `make test-all` and `make soak` set a larger number.
fn fresh_seeds() -> Range<u64> {
    let first = RandomState::new().hash_one(0) >> 8;
    let seeds = first..first + number("TIDEGATE_CASES").unwrap_or(400);
    println!("seeds {seeds:?}");
    seeds
}

/// Returns the excess over the bound in the fleet of a seed, and the tokens admitted from leases and in total.
fn run(seed: u64, drift: u64, ttl: KeyTtl) -> (Option<String>, u64, u64) {
    let mut fleet = Fleet::new(seed, drift, ttl, false);
    let admitted = fleet.run();
    let excess =
        excess(&fleet.limit, 0, &admitted).map(|one| format!("{one:?} of {:?}", fleet.limit));
    (excess, fleet.from_leases, admitted.iter().map(|one| one.cost).sum())
}

#[test]
fn leased_admissions_stay_within_the_bound_over_every_span() {
    if let Some(seed) = number("TIDEGATE_SEED") {
        let mut fleet = Fleet::new(seed, 100, KeyTtl::Settled, true);
        let admitted = fleet.run();
        fleet.trace().iter().for_each(|line| println!("{line}"));
        assert!(excess(&fleet.limit, 0, &admitted).is_none(), "seed {seed}");
        return;
    }
    let (mut ahead, mut total) = (0, 0);
    for seed in fresh_seeds() {
        let (excess, from_leases, admitted) = run(seed, 100, KeyTtl::Settled);
        assert!(excess.is_none(), "TIDEGATE_SEED={seed}: {}", excess.unwrap());
        (ahead, total) = (ahead + from_leases, total + admitted);
    }
    println!("{ahead} of {total} tokens were admitted from leases");
    // Otherwise the test would prove nothing. Over many seeds it is about a quarter.
    assert!(ahead > total / 10, "{ahead} of {total} tokens were admitted from leases");
}

/// Shows that the other test is able to fail.
#[test]
fn clock_drift_beyond_the_margin_exceeds_the_bound() {
    assert!((0..2_000).any(|seed| run(seed, 5, KeyTtl::Settled).0.is_some()));
}

#[test]
fn keys_that_expire_too_early_exceed_the_bound() {
    for ttl in [KeyTtl::LeaseEnd, KeyTtl::Unrenewed] {
        let found = (0..20_000).find(|seed| run(*seed, 100, ttl).0.is_some());
        println!("{ttl:?}: seed {found:?}");
        assert!(found.is_some(), "{ttl:?}");
    }
}

/// Returns the first excess over N times `max_ahead` in the synced fleet of a seed; whether it exceeded the limit at all, and
/// the tokens admitted without the store and in total.
fn run_synced(seed: u64) -> (Option<String>, bool, u64, u64) {
    let mut fleet = synced::Fleet::new(seed, false);
    let admitted = fleet.run();
    let over = excess_of(&fleet, &admitted);
    let mut periods = fleet.periods(&admitted).into_iter();
    let exceeds = periods.any(|(period, _)| excess(&fleet.limit, 0, period).is_some());
    (over, exceeds, fleet.alone, admitted.iter().map(|one| one.cost).sum())
}

fn excess_of(fleet: &synced::Fleet, admitted: &[admissions::Admission]) -> Option<String> {
    for (period, beyond) in fleet.periods(admitted) {
        if let Some(one) = excess(&fleet.limit, beyond, period) {
            return Some(format!("{one:?} of {:?} and {beyond}", fleet.limit));
        }
    }
    if fleet.has_steady_store() {
        let (most, aligned) = printed(fleet.accuracy(), &fleet.limit, fleet.nodes());
        let (any, in_window) = peaks(fleet.limit.quota().window().as_micros(), admitted);
        if any > most || aligned.is_some_and(|aligned| in_window > aligned) {
            return Some(format!("{any} and {in_window}, printed {most} and {aligned:?}"));
        }
    }
    None
}

#[test]
fn synced_nodes_exceed_the_bound_by_at_most_max_ahead_each() {
    if let Some(seed) = number("TIDEGATE_SEED") {
        let mut fleet = synced::Fleet::new(seed, true);
        let admitted = fleet.run();
        fleet.trace().iter().for_each(|line| println!("{line}"));
        let over = excess_of(&fleet, &admitted);
        assert!(over.is_none(), "seed {seed}: {}", over.unwrap());
        return;
    }
    let (mut alone, mut total, mut beyond) = (0, 0, 0);
    for seed in fresh_seeds() {
        let (over, exceeds, ahead, admitted) = run_synced(seed);
        assert!(over.is_none(), "TIDEGATE_SEED={seed}: {}", over.unwrap());
        (alone, total, beyond) = (alone + ahead, total + admitted, beyond + u64::from(exceeds));
    }
    println!(
        "{alone} of {total} tokens were admitted without the store, {beyond} fleets exceeded the limit"
    );
    // Otherwise the test would prove nothing. Over many seeds it is about a quarter.
    assert!(alone > total / 10 && beyond > 0, "{alone} of {total}, {beyond} beyond");
}

/// Regression: 532 were admitted in two seconds where 500 were printed.
#[test]
fn printed_bound_of_synced_holds_against_an_adversary_and_is_reached() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut reached = 0;
        for seed in 0..500 {
            let mut rng = SimulationRng::new(seed);
            let adversary = Adversary::new(&mut rng, algorithm);
            let limit = adversary.limit.clone();
            let (most, aligned) = printed(adversary.accuracy(), &limit, adversary.nodes());
            let admitted = adversary.run(&mut rng);
            let (any, in_window) = peaks(limit.quota().window().as_micros(), &admitted);
            assert!(any <= most, "{limit:?}, seed {seed}: {any}, printed {most}");
            assert!(aligned.is_none_or(|aligned| in_window <= aligned), "{limit:?}, seed {seed}");
            let full = aligned.is_some_and(|aligned| in_window == aligned);
            reached += u64::from(full && any == most);
        }
        // Two fixed windows that are exceeded by all nodes are adjacent in each of these fleets.
        assert!(algorithm != Algorithm::FixedWindow || reached == 500, "{reached}");
    }
}
