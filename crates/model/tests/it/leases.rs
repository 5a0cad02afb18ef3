//! Invariants of the lease protocol in every reachable state of small fleets.

use tidegate_model::{explore, sound_scenarios};

/// Explores all states of a fleet. It admits at most its limit and the tokens that its store lost; used and leased
/// tokens in the store never exceed the limit; the whole limit becomes available again; and some state admits it at once.
fn assert_invariants(name: &str) {
    let scenario =
        sound_scenarios(false).into_iter().find(|scenario| scenario.name == name).unwrap();
    let explored = explore(&scenario.fleet, usize::MAX);
    println!("{name}: {explored}");
    assert!(explored.violation.is_none());
    assert!(explored.complete && explored.reaches_goal);
}

#[test]
fn bucket_bound_holds_with_crashes_and_late_lost_or_duplicated_messages() {
    assert_invariants("bucket: doubled messages, crashes");
}

#[test]
fn bucket_bound_holds_with_requests_that_the_store_decides() {
    assert_invariants("bucket: doubled messages, costs");
}

#[test]
fn bucket_bound_holds_with_clock_drift_within_the_margin() {
    assert_invariants("bucket: drifting clocks");
}

#[test]
fn bucket_exceeds_its_bound_by_at_most_the_lost_writes() {
    assert_invariants("bucket: lost writes");
}

#[test]
fn fixed_window_bound_holds_with_crashes_and_late_lost_or_duplicated_messages() {
    assert_invariants("fixed window: doubled messages, crashes");
}

#[test]
fn fixed_window_bound_holds_with_clock_drift_within_the_margin() {
    assert_invariants("fixed window: drifting clocks");
}

#[test]
fn fixed_window_exceeds_its_bound_by_at_most_the_lost_writes() {
    assert_invariants("fixed window: lost writes");
}

#[test]
fn sliding_window_bound_holds_with_crashes_and_late_lost_or_duplicated_messages() {
    assert_invariants("sliding window: doubled messages, crashes");
}

#[test]
fn sliding_window_bound_holds_with_clock_drift_within_the_margin() {
    assert_invariants("sliding window: drifting clocks");
}

#[test]
fn sliding_window_exceeds_its_bound_by_at_most_the_lost_writes() {
    assert_invariants("sliding window: lost writes");
}

#[test]
fn bucket_bound_holds_with_expiring_keys() {
    assert_invariants("bucket: keys that expire");
}

#[test]
fn fixed_window_bound_holds_with_expiring_keys() {
    assert_invariants("fixed window: keys that expire");
}

#[test]
fn sliding_window_bound_holds_with_expiring_keys() {
    assert_invariants("sliding window: keys that expire");
}

/// Shows that the other tests are able to fail.
#[test]
fn every_protocol_flaw_is_found_by_a_trace_that_admits_too_much() {
    for scenario in tidegate_model::flawed_scenarios() {
        let explored = explore(&scenario.fleet, usize::MAX);
        println!("{}: {explored}", scenario.name);
        let (invariant, _) = explored.violation.expect(scenario.name);
        assert_eq!(invariant, "admitted never exceeds the bound", "{}", scenario.name);
    }
}
