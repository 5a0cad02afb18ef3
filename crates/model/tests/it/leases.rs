//! What small fleets promise, in every state that they can get into.

use tidegate_model::{explore, sound};

/// Explores a fleet, all of it. It admits no more than its limit and what its store lost; its store
/// promises no more than there is; from wherever it got to, all tokens can be had again after a
/// while; and somewhere on the way all were admitted at once.
fn keeps_every_promise(name: &str) {
    let scenario = sound(false).into_iter().find(|scenario| scenario.name == name).unwrap();
    let explored = explore(&scenario.fleet, usize::MAX);
    println!("{name}: {explored}");
    assert!(explored.broken.is_none());
    assert!(explored.whole && explored.wanted);
}

#[test]
fn a_bucket_keeps_its_bound_through_crashes_and_messages_that_are_late_lost_or_doubled() {
    keeps_every_promise("bucket: doubled messages, crashes");
}

#[test]
fn a_bucket_keeps_its_bound_when_some_ask_for_every_request() {
    keeps_every_promise("bucket: doubled messages, costs");
}

#[test]
fn a_bucket_keeps_its_bound_while_clocks_drift_within_the_margin() {
    keeps_every_promise("bucket: drifting clocks");
}

#[test]
fn a_store_that_loses_writes_costs_a_bucket_no_more_than_they_said() {
    keeps_every_promise("bucket: lost writes");
}

#[test]
fn a_fixed_window_keeps_its_bound_through_crashes_and_messages_that_are_late_lost_or_doubled() {
    keeps_every_promise("fixed window: doubled messages, crashes");
}

#[test]
fn a_fixed_window_keeps_its_bound_while_clocks_drift_within_the_margin() {
    keeps_every_promise("fixed window: drifting clocks");
}

#[test]
fn a_store_that_loses_writes_costs_a_fixed_window_no_more_than_they_said() {
    keeps_every_promise("fixed window: lost writes");
}

#[test]
fn a_sliding_window_keeps_its_bound_through_crashes_and_messages_that_are_late_lost_or_doubled() {
    keeps_every_promise("sliding window: doubled messages, crashes");
}

#[test]
fn a_sliding_window_keeps_its_bound_while_clocks_drift_within_the_margin() {
    keeps_every_promise("sliding window: drifting clocks");
}

#[test]
fn a_store_that_loses_writes_costs_a_sliding_window_no_more_than_they_said() {
    keeps_every_promise("sliding window: lost writes");
}

#[test]
fn a_bucket_keeps_its_bound_while_its_keys_expire() {
    keeps_every_promise("bucket: keys that expire");
}

#[test]
fn a_fixed_window_keeps_its_bound_while_its_keys_expire() {
    keeps_every_promise("fixed window: keys that expire");
}

#[test]
fn a_sliding_window_keeps_its_bound_while_its_keys_expire() {
    keeps_every_promise("sliding window: keys that expire");
}

/// What shows that the others could fail.
#[test]
fn a_rule_that_is_not_kept_is_found_out_by_a_trace_that_admits_too_much() {
    for scenario in tidegate_model::flawed() {
        let explored = explore(&scenario.fleet, usize::MAX);
        println!("{}: {explored}", scenario.name);
        let (promise, _) = explored.broken.expect(scenario.name);
        assert_eq!(promise, "admitted never exceeds the bound", "{}", scenario.name);
    }
}
