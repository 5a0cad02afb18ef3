//! Simulated fleets, with and without faults.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Limit, Quota, Span};
use tidegate_rules::{
    Accuracy, MaxAhead, OnStoreFailure, Rule, RuleSet, SyncInterval, SyncSettings,
};

use super::{load, loads, trial};
use crate::traffic::{TrafficLoad, TrafficShape};
use crate::*;
use tidegate_api::{OutageCounts, SimulationLine};

fn rule_with_accuracy(algorithm: Algorithm, quota: Quota, accuracy: Accuracy) -> Rule {
    let rule = Rule::new("limit", algorithm, quota).unwrap().with_per("client").unwrap();
    rule.with_accuracy(accuracy).unwrap()
}

fn synced(millis: u64, ahead: u64) -> Accuracy {
    let every = SyncInterval::new(Span::from_millis(millis)).unwrap();
    Accuracy::Synced(SyncSettings { every, max_ahead: MaxAhead::Tokens(ahead) })
}

/// Returns the report line of one rule on a fleet.
fn line(rule: Rule, faults: FaultPlan, load: TrafficLoad) -> SimulationLine {
    let system = SystemUnderTest::single_limit_fleet(rule, SyncPhase::Own, faults).unwrap();
    let mut lines = trial(system, None, load);
    assert_eq!(lines.len(), 1);
    lines.pop().unwrap()
}

/// Returns a load of one client at three nodes, with this rate per second, for ten seconds.
fn three_nodes(rate: u64) -> TrafficLoad {
    TrafficLoad { nodes: 3, ..load(TrafficShape::Steady, rate) }
}

fn outage(from: u64, until: u64) -> FaultPlan {
    let outage = StoreOutage { from: Span::from_secs(from), until: Span::from_secs(until) };
    FaultPlan { outage: Some(outage), ..FaultPlan::default() }
}

#[test]
fn leased_nodes_admit_nearly_the_whole_limit_and_never_more() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let quota = Quota::per_second(60);
        let exact = line(
            rule_with_accuracy(algorithm, quota, Accuracy::Exact),
            FaultPlan::default(),
            three_nodes(270),
        );
        let leased = line(
            rule_with_accuracy(algorithm, quota, Accuracy::Leased),
            FaultPlan::default(),
            three_nodes(270),
        );
        assert_eq!(leased.over, Some(0), "{leased:?}");
        let (found, wanted) = (leased.admitted, exact.admitted);
        assert!(found <= wanted && found * 10 >= wanted * 9, "{algorithm}: {found} of {wanted}");
    }
}

#[test]
fn shares_of_split_nodes_add_up_to_the_limit() {
    let rule = rule_with_accuracy(Algorithm::FixedWindow, Quota::per_second(61), Accuracy::Split);
    let line = line(rule, FaultPlan::default(), three_nodes(270));
    assert_eq!((line.admitted, line.over), (610, Some(0)), "{line:?}");
}

#[test]
fn split_shares_are_complete_at_the_start_of_a_long_window() {
    let rule = rule_with_accuracy(Algorithm::FixedWindow, Quota::per_hour(90), Accuracy::Split);
    assert_eq!(line(rule, FaultPlan::default(), three_nodes(90)).admitted, 90);
    let years = Quota::per_day(3).burst(900);
    let rule = rule_with_accuracy(Algorithm::TokenBucket, years, Accuracy::Split);
    assert_eq!(line(rule, FaultPlan::default(), three_nodes(90)).admitted, 900);
}

#[test]
fn clock_skew_does_not_change_decisions_of_the_store() {
    let apart = FaultPlan { clock_skew: Span::from_millis(700), ..FaultPlan::default() };
    for accuracy in [Accuracy::Exact, Accuracy::Leased] {
        let rule = || rule_with_accuracy(Algorithm::FixedWindow, Quota::per_second(60), accuracy);
        let (calm, skewed) = (
            line(rule(), FaultPlan::default(), three_nodes(270)),
            line(rule(), apart, three_nodes(270)),
        );
        assert_eq!((calm.admitted, calm.over), (skewed.admitted, Some(0)), "{accuracy}");
        assert_eq!(skewed.over, Some(0));
    }
}

#[test]
fn outage_applies_on_store_failure_of_the_rule() {
    let during = |answer| {
        let rule =
            rule_with_accuracy(Algorithm::FixedWindow, Quota::per_second(60), Accuracy::Exact);
        line(rule.with_on_store_failure(answer), outage(3, 5), three_nodes(270))
    };
    let deny = during(OnStoreFailure::Deny);
    assert_eq!(deny.outage, Some(OutageCounts { offered: 540, admitted: 0 }));
    assert_eq!((deny.admitted, deny.failed_closed), (8 * 60, Some(540)));
    let allow = during(OnStoreFailure::Allow);
    assert_eq!(allow.outage, Some(OutageCounts { offered: 540, admitted: 540 }));
    assert_eq!((allow.admitted, allow.failed_open), (8 * 60 + 540, Some(540)));
    let local = during(OnStoreFailure::Local);
    assert_eq!(local.outage, Some(OutageCounts { offered: 540, admitted: 120 }));
    assert_eq!((local.admitted, local.failed_local, local.over), (600, Some(540), Some(0)));
}

#[test]
fn split_limit_survives_a_short_outage_but_not_a_long_one() {
    let during = |from, until| {
        let rule =
            rule_with_accuracy(Algorithm::FixedWindow, Quota::per_second(60), Accuracy::Split);
        let rule = rule.with_on_store_failure(OnStoreFailure::Deny);
        let line = line(
            rule,
            outage(from, until),
            TrafficLoad { length: Span::from_secs(30), ..three_nodes(270) },
        );
        assert_eq!(line.over, Some(0));
        line.admitted
    };
    assert_eq!(during(3, 5), 30 * 60, "nodes know their shares for four seconds");
    let long = during(3, 20);
    // Shares end three seconds after the outage begins; new shares begin four seconds after it ends.
    assert!((10 * 60..=12 * 60).contains(&long), "{long}");
}

#[test]
fn independently_syncing_nodes_exceed_the_limit_by_at_most_max_ahead_each() {
    let rule = rule_with_accuracy(Algorithm::FixedWindow, Quota::per_second(60), synced(200, 6));
    let second = TrafficLoad { length: Span::SECOND, ..three_nodes(270) };
    let admitted = line(rule, FaultPlan::default(), second).admitted;
    assert!((60..=60 + 3 * 6).contains(&admitted), "{admitted}");
}

#[test]
fn rules_with_different_accuracies_are_charged_together() {
    let rules = "rules:
      - {name: each, per: [user], limit: 30 per second, algorithm: fixed_window, accuracy: leased}
      - {name: page, per: [user, path], limit: 90 per second, algorithm: fixed_window, accuracy: split}
      - {name: all, limit: 45 per second, algorithm: fixed_window}";
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let load = TrafficLoad { clients: 2, ..three_nodes(400) };
    let lines =
        trial(SystemUnderTest::rules_fleet(rules, Vec::new(), FaultPlan::default()), None, load);
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["it", "each", "page", "all"]);
    assert!(lines[1..].iter().all(|line| line.over == Some(0)), "{lines:?}");
    assert!((400..=450).contains(&lines[0].admitted), "{}", lines[0].admitted);
}

#[test]
fn same_seed_gives_the_same_fleet_report() {
    let run = |seed| {
        let load = TrafficLoad {
            clients: 20,
            seed,
            ..TrafficLoad { nodes: 3, ..load(TrafficShape::Zipf, 400) }
        };
        let rule =
            rule_with_accuracy(Algorithm::SlidingWindow, Quota::per_second(20), synced(50, 3));
        let leased =
            rule_with_accuracy(Algorithm::TokenBucket, Quota::per_second(20), Accuracy::Leased);
        let lines = [line(rule, outage(4, 6), load), line(leased, outage(4, 6), load)];
        serde_json::to_string(&lines).unwrap()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_accuracy_exceeds_its_stated_bound(
        algorithm in prop_oneof![
            Just(Algorithm::TokenBucket),
            Just(Algorithm::FixedWindow),
            Just(Algorithm::SlidingWindow),
        ],
        (load, quota) in loads(),
        skew in 0_u64..500,
        every in 10_u64..1_500,
        ahead in 1_u64..20,
    ) {
        let limit = Limit::new(algorithm, quota).unwrap();
        let shards = Accuracy::Sharded(2);
        let ways = [Accuracy::Leased, Accuracy::Split, shards, synced(every, ahead)];
        for accuracy in ways {
            if accuracy == shards && limit.quota().amount().min(limit.capacity()) < 2 {
                continue;
            }
            // In `split` the windows follow the node clocks, so the skew moves them.
            let skew = if accuracy == Accuracy::Split { 0 } else { skew };
            let faults = FaultPlan { clock_skew: Span::from_millis(skew), ..FaultPlan::default() };
            let line = line(rule_with_accuracy(algorithm, quota, accuracy), faults, load);
            let beyond = accuracy.bound(&limit).unwrap().overshoot(load.nodes);
            prop_assert!(line.over.unwrap() <= beyond, "{accuracy}: {beyond}, {line:?}");
        }
    }
}
