//! Printed reports of scenarios, and properties that hold for any traffic.

mod fleets;

use proptest::prelude::*;
use tidegate_api::SimulationLine;
use tidegate_core::{Algorithm, Limit, Quota, Span};
use tidegate_rules::{Accuracy, MaxAhead, RuleSet, SyncInterval, SyncSettings};

use super::plan::{RetryBehavior, Trial};
use super::spec::limit_rule;
use super::traffic::{TrafficLoad, TrafficShape};
use super::*;

fn run_scenario(scenario: Scenario) -> SimulationReport {
    scenario.plan().unwrap().run(&mut |_| {})
}

fn admitted(report: &SimulationReport) -> Vec<(&str, u64)> {
    report.result.lines.iter().map(|line| (line.name.as_str(), line.admitted)).collect()
}

/// Returns a system of one node with an exact limit.
fn exact(limit: &Limit) -> SystemUnderTest {
    SystemUnderTest::single_limit(limit_rule(limit).unwrap()).unwrap()
}

/// Returns a system of nodes with a synced limit.
fn syncing(limit: &Limit, synced: SyncSettings, phase: SyncPhase) -> SystemUnderTest {
    let rule = limit_rule(limit).unwrap().with_accuracy(Accuracy::Synced(synced)).unwrap();
    SystemUnderTest::single_limit_fleet(rule, phase, FaultPlan::default()).unwrap()
}

/// Returns one system under a load.
fn trial(
    system: SystemUnderTest,
    again: Option<RetryBehavior>,
    load: TrafficLoad,
) -> Vec<SimulationLine> {
    let trial = Trial { name: "it".to_owned(), system, retry: again, textbook: None };
    SimulationPlan { title: String::new(), about: Vec::new(), load, trials: vec![trial] }
        .run(&mut |_| {})
        .result
        .lines
}

fn load(shape: TrafficShape, rate: u64) -> TrafficLoad {
    let (rate, length) = (Quota::per_second(rate), Span::from_secs(10));
    TrafficLoad { shape, rate, clients: 1, nodes: 1, length, seed: 1 }
}

#[test]
fn boundary_attack_doubles_a_fixed_window_but_not_a_sliding_log() {
    let report = run_scenario(Scenario::BoundaryAttack);
    let found = admitted(&report);
    assert!(found.contains(&("fixed_window", 40)) && found.contains(&("sliding_log", 20)));
    let fixed = &report.result.lines[0];
    assert_eq!((fixed.most, fixed.within_seconds), (40, 0.15));
    assert_eq!(fixed.pace().unwrap().round(), 267.0);
    insta::assert_snapshot!("boundary-attack", report);
}

#[test]
fn nodes_that_sync_late_admit_as_much_as_the_textbook_expects() {
    let report = run_scenario(Scenario::SyncLag);
    let counts: Vec<u64> = report.result.lines.iter().map(|line| line.admitted).collect();
    assert_eq!(counts, [60, 108, 180, 132]);
    // In the last trial nodes sync one after the other: the first one sees the others' reports one sync later.
    assert!(report.result.lines[..3].iter().all(|line| line.textbook == Some(line.admitted)));
    insta::assert_snapshot!("sync-lag", report);
}

#[test]
fn synced_nodes_exceed_the_limit_by_at_most_max_ahead_each() {
    let limit = Limit::new(Algorithm::FixedWindow, Quota::per_second(60)).unwrap();
    let every = SyncInterval::new(Span::from_millis(500)).unwrap();
    let synced = SyncSettings { every, max_ahead: MaxAhead::Tokens(5) };
    for phase in [SyncPhase::Together, SyncPhase::InTurn] {
        let length = Span::from_millis(900);
        let load = TrafficLoad { nodes: 3, length, ..load(TrafficShape::Steady, 1_000) };
        let line = &trial(syncing(&limit, synced, phase), None, load)[0];
        assert_eq!(line.offered, 900);
        assert!((60..=75).contains(&line.admitted), "{phase:?}: {}", line.admitted);
    }
}

#[test]
fn burst_is_admitted_up_to_the_capacity() {
    let report = run_scenario(Scenario::Burst);
    assert_eq!(report.result.lines[0].admitted, 30);
    insta::assert_snapshot!("burst", report);
}

#[test]
fn guide_contains_the_printed_report() {
    let page = include_str!("../../../docs/guide/simulate.md");
    for scenario in [Scenario::BoundaryAttack, Scenario::SyncLag, Scenario::Burst] {
        let report = run_scenario(scenario).to_string();
        assert!(page.contains(&report), "{report}");
    }
}

#[test]
fn json_report_contains_the_timeline() {
    let json = serde_json::to_value(run_scenario(Scenario::SyncLag)).unwrap();
    assert_eq!(json["about"]["limit"], "60 per 1 s (fixed_window)");
    let line = &json["lines"][1];
    assert_eq!(
        (&line["admitted"], &line["over"], &line["textbook"]),
        (&108.into(), &48.into(), &108.into())
    );
    let pieces = line["timeline"]["admitted"].as_array().unwrap();
    assert_eq!(pieces.iter().map(|piece| piece.as_u64().unwrap()).sum::<u64>(), 108);
}

#[test]
fn plot_has_a_panel_for_each_line_and_escapes_names() {
    let mut report = run_scenario(Scenario::Burst);
    report.result.lines[0].name = "<script>&".to_owned();
    let picture = TrafficPlot::from(&report).svg();
    assert_eq!(picture.matches("class=\"admitted\" d=").count(), report.result.lines.len());
    assert!(picture.contains("&lt;script&gt;&amp;") && !picture.contains("<script>"));
    assert!(picture.contains("prefers-color-scheme:dark"));
}

#[test]
fn clients_that_obey_retry_after_send_fewer_requests_and_get_as_many_admissions() {
    let limit = Limit::new(Algorithm::FixedWindow, Quota::per_second(20)).unwrap();
    let storm = |again| trial(exact(&limit), Some(again), load(TrafficShape::Steady, 40));
    let blind = storm(RetryBehavior::After(Span::from_millis(10)));
    let informed = storm(RetryBehavior::RetryAfter);
    assert!(
        informed[0].offered * 3 < blind[0].offered * 2,
        "{} {}",
        informed[0].offered,
        blind[0].offered
    );
    assert_eq!((informed[0].admitted, blind[0].admitted), (200, 200));
}

#[test]
fn all_matching_rules_are_charged_and_each_has_a_report_line() {
    let rules = "rules:
      - {name: each, per: [user], limit: 5 per second, algorithm: sliding_log}
      - {name: all, limit: 12 per second, algorithm: sliding_log}
      - {name: elsewhere, match: {path: /admin}, limit: 1 per second}";
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let load = TrafficLoad { clients: 4, length: Span::SECOND, ..load(TrafficShape::Steady, 40) };
    let lines = trial(SystemUnderTest::rules(rules, Vec::new()), None, load);
    let found: Vec<_> = lines
        .iter()
        .map(|line| (line.name.as_str(), line.offered, line.admitted, line.most, line.over))
        .collect();
    assert_eq!(
        found,
        [("it", 40, 12, 3, None), ("each", 40, 12, 3, Some(0)), ("all", 40, 12, 12, Some(0))]
    );
}

#[test]
fn same_seed_gives_the_same_report() {
    let limit = Limit::new(Algorithm::TokenBucket, Quota::per_second(2)).unwrap();
    let day = |seed| {
        let load = TrafficLoad { clients: 100, seed, ..load(TrafficShape::Zipf, 200) };
        serde_json::to_string(&trial(exact(&limit), None, load)).unwrap()
    };
    assert_eq!(day(5), day(5));
    assert_ne!(day(5), day(6));
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::TokenBucket),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
        (0_u64..20).prop_map(|queue| Algorithm::LeakyBucket { queue }),
    ]
}

fn loads() -> impl Strategy<Value = (TrafficLoad, Quota)> {
    let quota = (1_u64..50, 50_u64..3_000);
    (quota, 0_u8..5, 1_u64..300, 1_u64..5, 1_u64..4, any::<u64>(), 1_u64..100).prop_map(
        |((amount, millis), shape, rate, clients, nodes, seed, percent)| {
            let window = Span::from_millis(millis);
            let shape = match shape {
                0 => TrafficShape::Steady,
                1 => TrafficShape::Bursty,
                2 => TrafficShape::Zipf,
                3 => TrafficShape::Boundary { amount, window, percent },
                _ => TrafficShape::Once { count: rate },
            };
            let (rate, length) = (Quota::per_second(rate), Span::from_secs(12));
            (TrafficLoad { shape, rate, clients, nodes, length, seed }, Quota::per(amount, window))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exact_limit_never_exceeds_its_bound(
        algorithm in algorithms(),
        (load, quota) in loads(),
        again in prop_oneof![
            Just(None),
            Just(Some(RetryBehavior::RetryAfter)),
            Just(Some(RetryBehavior::After(Span::from_millis(100)))),
        ],
    ) {
        let limit = Limit::new(algorithm, quota).unwrap();
        for line in trial(exact(&limit), again, load) {
            prop_assert_eq!(line.over, Some(0), "{:?}", line);
            prop_assert_eq!(line.admitted + line.denied, line.offered);
        }
    }

    #[test]
    fn random_synced_fleets_exceed_the_limit_by_at_most_max_ahead_each(
        algorithm in prop_oneof![
            Just(Algorithm::TokenBucket),
            Just(Algorithm::FixedWindow),
            Just(Algorithm::SlidingWindow),
        ],
        (load, quota) in loads(),
        every in 10_u64..1_500,
        ahead in 1_u64..20,
    ) {
        let limit = Limit::new(algorithm, quota).unwrap();
        let every = SyncInterval::new(Span::from_millis(every)).unwrap();
        let synced = SyncSettings { every, max_ahead: MaxAhead::Tokens(ahead) };
        for phase in [SyncPhase::Together, SyncPhase::InTurn] {
            for line in trial(syncing(&limit, synced, phase), None, load) {
                let printed = Accuracy::Synced(synced).bound(&limit).unwrap();
                prop_assert!(line.over.unwrap() <= printed.overshoot(load.nodes), "{:?}", line);
            }
        }
    }
}
