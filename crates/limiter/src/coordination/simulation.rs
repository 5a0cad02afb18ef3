//! Fleets of nodes as they ship, under a weather that a seed decides: nodes join, crash, pause and leave,
//! pulses and answers are late or lost, clocks drift, and the store forgets everybody. Whatever happens,
//! shares of those who use one add up to the limit at the most, and what is admitted stays within it.

mod weather;
mod world;

use proptest::prelude::*;
use tidegate_core::{Algorithm, Limit, Quota, Span};

use self::weather::{CALM, Chance, Weather};
use self::world::World;

const AMOUNT: u64 = 103;

fn limit(algorithm: Algorithm, amount: u64, window: Span) -> Limit {
    Limit::new(algorithm, Quota::per(amount, window)).unwrap()
}

proptest! {
    #[test]
    fn a_split_bucket_stays_within_its_bound_whatever_happens(seed: u64) {
        let weather = Weather::of(&mut Chance::new(!seed), 100);
        for window in [1, 30] {
            let window = Span::from_secs(window);
            let bucket = limit(Algorithm::TokenBucket, AMOUNT, window);
            // Clocks that are one part in a hundred too fast fill buckets as much faster.
            let quota = Quota::per(AMOUNT * 102 / 100 + 1, window).burst(AMOUNT);
            let oracle = Limit::new(Algorithm::TokenBucket, quota).unwrap();
            World::new(seed, weather, bucket, oracle).run();
        }
    }

    #[test]
    fn split_windows_stay_within_their_bounds_whatever_happens(seed: u64) {
        // Windows are by the nodes' clocks: those agree here.
        let weather = Weather::of(&mut Chance::new(!seed), 0);
        for (algorithm, judge) in [
            (Algorithm::FixedWindow, Algorithm::FixedWindow),
            (Algorithm::SlidingWindow, Algorithm::FixedWindow),
            (Algorithm::SlidingLog, Algorithm::SlidingLog),
        ] {
            for window in [2, 9] {
                let window = Span::from_secs(window);
                let (split, oracle) = (limit(algorithm, AMOUNT, window), limit(judge, AMOUNT, window));
                World::new(seed, weather, split, oracle).run();
            }
        }
    }
}

proptest! {
    #[test]
    fn share_without_the_store_stays_when_nodes_restart_and_the_store_loses_its_list(seed: u64) {
        let weather = Weather { forgets: 50, restarts: 20, drift: 100, ..CALM };
        let bucket = limit(Algorithm::TokenBucket, AMOUNT, Span::SECOND);
        let quota = Quota::per(AMOUNT * 102 / 100 + 1, Span::SECOND).burst(AMOUNT);
        let oracle = Limit::new(Algorithm::TokenBucket, quota).unwrap();
        World::new(seed, weather, bucket, oracle).run_with_outages_at_any_time();
    }
}

#[test]
fn in_calm_weather_all_of_the_limit_is_somebody_s() {
    let bucket = limit(Algorithm::TokenBucket, AMOUNT, Span::SECOND);
    let world = World::new(1, CALM, bucket.clone(), bucket).run();
    let parts = world.parts();
    assert_eq!(parts.len(), 3);
    assert_eq!(parts.iter().map(Limit::capacity).sum::<u64>(), AMOUNT);
    assert!(world.admitted > 0);
}
