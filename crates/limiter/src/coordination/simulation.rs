//! Simulated fleets under random faults, repeatable by seed.
//!
//! Nodes join, crash, pause and leave. Heartbeats and replies are lost or late, clocks drift, and the store
//! loses its list of nodes. In all cases the active shares add up to at most the limit, and admitted requests
//! stay within it.

mod faults;
mod fleet;

use proptest::prelude::*;
use tidegate_core::{Algorithm, Limit, Quota, Span};

use self::faults::{FaultPlan, FaultRng};
use self::fleet::SimulatedFleet;

/// The limit of the fleet. It is prime, so no fleet of several nodes can split it evenly.
const AMOUNT: u64 = 103;
/// The largest error of a node's clock, in 1/10,000 of the time that passes: 1 %.
const CLOCK_DRIFT: u64 = 100;

fn limit(algorithm: Algorithm, amount: u64, window: Span) -> Limit {
    Limit::new(algorithm, Quota::per(amount, window)).unwrap()
}

/// Returns the bound of a token bucket under clock drift. A clock that is 1 % too fast refills buckets 1 % faster; the
/// bound allows 2 %, rounded up.
fn drift_bound(window: Span) -> Limit {
    let quota = Quota::per(AMOUNT * 102 / 100 + 1, window).burst(AMOUNT);
    Limit::new(Algorithm::TokenBucket, quota).unwrap()
}

proptest! {
    #[test]
    fn split_bucket_stays_within_its_bound_under_random_faults(seed: u64) {
        let faults = FaultPlan::random(&mut FaultRng::new(!seed), CLOCK_DRIFT);
        for window in [1, 30] {
            let window = Span::from_secs(window);
            let bucket = limit(Algorithm::TokenBucket, AMOUNT, window);
            SimulatedFleet::new(seed, faults, bucket, drift_bound(window)).run();
        }
    }

    #[test]
    fn split_windows_stay_within_their_bounds_under_random_faults(seed: u64) {
        // No drift: windows are aligned to the nodes' clocks.
        let faults = FaultPlan::random(&mut FaultRng::new(!seed), 0);
        // The bound of a split sliding window is that of a fixed one: at most the limit in each aligned window.
        for (algorithm, bound) in [
            (Algorithm::FixedWindow, Algorithm::FixedWindow),
            (Algorithm::SlidingWindow, Algorithm::FixedWindow),
            (Algorithm::SlidingLog, Algorithm::SlidingLog),
        ] {
            for window in [2, 9] {
                let window = Span::from_secs(window);
                let (split, bound) = (limit(algorithm, AMOUNT, window), limit(bound, AMOUNT, window));
                SimulatedFleet::new(seed, faults, split, bound).run();
            }
        }
    }
}

proptest! {
    #[test]
    fn share_without_the_store_stays_when_nodes_restart_and_the_store_loses_its_list(seed: u64) {
        let faults =
            FaultPlan { store_resets: 50, restarts: 20, clock_drift: CLOCK_DRIFT, ..FaultPlan::NONE };
        let bucket = limit(Algorithm::TokenBucket, AMOUNT, Span::SECOND);
        let bound = drift_bound(Span::SECOND);
        SimulatedFleet::new(seed, faults, bucket, bound).run_with_outages_at_any_time();
    }
}

#[test]
fn shares_add_up_to_the_whole_limit_without_faults() {
    let bucket = limit(Algorithm::TokenBucket, AMOUNT, Span::SECOND);
    let fleet = SimulatedFleet::new(1, FaultPlan::NONE, bucket.clone(), bucket).run();
    let parts = fleet.active_parts();
    assert_eq!(parts.len(), 3);
    assert_eq!(parts.iter().map(Limit::capacity).sum::<u64>(), AMOUNT);
    assert!(fleet.admitted > 0);
}
