//! The check itself: legal histories pass, one admission too many is found.

use super::check::{BoundViolation, violations};
use super::faults::FaultKind;
use super::history::{
    AnswerKind, CheckAnswer, EpisodeHistory, FaultEffect, FaultRecord, LaneHistory, Micros,
    RulesVersion, SlotRecord,
};
use super::scenario::{
    EpisodeScenario, LaneAccuracy, LaneLimit, LimitAlgorithm, LoadLane, LoadPattern, StoreTopology,
};

const MILLI: Micros = 1_000;
const SECOND: Micros = 1_000 * MILLI;
/// The start of a window of every length that is used here.
const START: Micros = 1_800_000_000 * SECOND;

/// A limit of 10 per second, and what was admitted under it.
struct Case {
    scenario: EpisodeScenario,
    history: EpisodeHistory,
}

impl Case {
    fn new(algorithm: LimitAlgorithm, accuracy: LaneAccuracy, nodes: usize) -> Self {
        let limit =
            LaneLimit { algorithm, amount: 10, window_millis: 1_000, burst_percent: 100, queue: 4 };
        let lane = LoadLane {
            name: "lane-0".to_owned(),
            limit,
            accuracy,
            allows_on_failure: false,
            load: LoadPattern::Over,
            max_cost: 1,
            first_node_percent: 50,
        };
        let scenario = EpisodeScenario {
            seed: 0,
            episode: 0,
            topology: StoreTopology::Single,
            node_skews: vec![0; nodes],
            timeout_millis: 50,
            remembers_denials: true,
            lanes: vec![lane],
            length_millis: 10_000,
            faults: Vec::new(),
            phase_millis: 0,
        };
        let first = RulesVersion {
            limits: vec![limit],
            pushed: START,
            number: Some(1),
            adopted: Some(START),
        };
        let history = EpisodeHistory {
            began: START,
            lanes: vec![LaneHistory::default()],
            versions: vec![first],
            node_lives: vec![(START, Micros::MAX); nodes],
            ..EpisodeHistory::default()
        };
        Self { scenario, history }
    }

    /// Admits so many, each between two instants, in milliseconds.
    fn admit(mut self, count: u64, sent: Micros, received: Micros) -> Self {
        let (sent, received) = (START + sent * MILLI, START + received * MILLI);
        let kind = AnswerKind::Admitted { delay_millis: 0 };
        let answer = CheckAnswer { sent, received, cost: 1, kind };
        self.history.lanes[0].answers.extend((0..count).map(|_| answer));
        self
    }

    fn fault(mut self, effect: FaultEffect, began: Micros, ended: Micros) -> Self {
        let (began, ended) = (START + began * MILLI, START + ended * MILLI);
        let (kind, note) = (FaultKind::StepClock, String::new());
        self.history.faults.push(FaultRecord { kind, note, began, ended, effect });
        self
    }

    fn step(self, before: Micros, after: Micros, at: Micros) -> Self {
        let effect = FaultEffect::ClockStep { before: before * MILLI, after: after * MILLI };
        self.fault(effect, at, at + 1)
    }

    fn push(mut self, change: impl Fn(&mut LaneLimit), pushed: Micros, adopted: Micros) -> Self {
        let mut limits = self.history.versions.last().unwrap().limits.clone();
        change(&mut limits[0]);
        self.history.versions.push(RulesVersion {
            limits,
            pushed: START + pushed * MILLI,
            number: Some(2),
            adopted: Some(START + adopted * MILLI),
        });
        self
    }

    fn found(&self) -> Option<BoundViolation> {
        violations(&self.scenario, &self.history).pop()
    }

    fn assert_legal(&self) {
        assert!(self.found().is_none(), "{:?}", self.found());
    }

    fn assert_excess(&self, admitted: u64, most: u64) {
        let found = self.found().expect("a violation");
        assert_eq!((found.admitted, found.most), (admitted, most), "{found:?}");
    }
}

fn exact(algorithm: LimitAlgorithm) -> Case {
    Case::new(algorithm, LaneAccuracy::Exact, 2)
}

#[test]
fn token_bucket_admits_its_burst_and_its_refill_and_one_more_is_found() {
    let bucket = || exact(LimitAlgorithm::TokenBucket).admit(10, 0, 5).admit(5, 490, 500);
    bucket().assert_legal();
    bucket().admit(1, 490, 500).assert_excess(16, 15);
    // An admission that may have been later needs no refill that was not there.
    bucket().admit(1, 490, 600).assert_legal();
}

#[test]
fn fixed_window_counts_admissions_that_must_be_in_it() {
    let window = || exact(LimitAlgorithm::FixedWindow).admit(10, 990, 999).admit(10, 1_000, 1_005);
    window().assert_legal();
    window().admit(1, 1_500, 1_501).assert_excess(11, 10);
    window().admit(1, 1_990, 2_001).assert_legal();
}

#[test]
fn sliding_log_admits_its_amount_in_any_window() {
    let log = || exact(LimitAlgorithm::SlidingLog).admit(10, 500, 505);
    log().admit(10, 1_499, 1_506).assert_legal();
    log().admit(1, 1_400, 1_499).assert_excess(11, 10);
}

#[test]
fn sliding_window_weighs_the_window_before() {
    let window = || exact(LimitAlgorithm::SlidingWindow).admit(10, 900, 901);
    window().admit(5, 1_500, 1_501).assert_legal();
    window().admit(7, 1_500, 1_501).assert_excess(11, 10);
}

#[test]
fn leaky_bucket_queues_its_places_and_releases_one_in_an_interval() {
    let bucket = || exact(LimitAlgorithm::LeakyBucket);
    let delayed = |mut case: Case| {
        for (place, answer) in (0..).zip(&mut case.history.lanes[0].answers) {
            answer.kind = AnswerKind::Admitted { delay_millis: 100 * place };
        }
        case
    };
    delayed(bucket().admit(5, 0, 5)).assert_legal();
    delayed(bucket().admit(6, 0, 5)).assert_excess(6, 5);
    // Five at once, all of them released at once.
    bucket().admit(5, 0, 5).assert_excess(5, 1);
    // A request is released as a whole, whatever it costs; the next one waits for all of its cost.
    let mut costly = bucket().admit(1, 0, 5);
    costly.scenario.lanes[0].max_cost = 3;
    costly.history.lanes[0].answers[0].cost = 3;
    costly.assert_legal();
}

#[test]
fn store_that_lost_its_data_admits_one_more_limit_and_not_two() {
    let lost = || exact(LimitAlgorithm::FixedWindow).fault(FaultEffect::LostData, 300, 400);
    lost().admit(10, 100, 105).admit(10, 500, 505).assert_legal();
    lost().admit(10, 100, 105).admit(11, 500, 505).assert_excess(21, 20);
    // The next window has nothing to do with it.
    lost().admit(11, 1_500, 1_505).assert_excess(11, 10);
}

#[test]
fn clock_set_forward_counts_as_time_that_passed() {
    let bucket = || exact(LimitAlgorithm::TokenBucket).step(0, 500, 300).admit(10, 200, 201);
    bucket().admit(7, 401, 402).assert_legal();
    bucket().admit(8, 401, 402).assert_excess(18, 17);
}

#[test]
fn clock_set_back_gives_a_bucket_nothing() {
    let bucket = || exact(LimitAlgorithm::TokenBucket).step(0, -5_000, 300).admit(10, 200, 201);
    // It had healed and was dropped: time goes on from there.
    bucket().admit(10, 1_201, 1_202).assert_legal();
    bucket().admit(11, 1_201, 1_202).assert_excess(21, 20);
}

#[test]
fn windows_are_aligned_to_the_clock_of_the_store() {
    let mut ahead = exact(LimitAlgorithm::FixedWindow).admit(10, 400, 410).admit(10, 600, 610);
    assert!(ahead.found().is_some());
    ahead.history.first_offset = 500 * MILLI;
    ahead.assert_legal();
    ahead.admit(10, 1_400, 1_410).assert_excess(20, 10);
}

#[test]
fn changed_algorithm_counts_from_the_time_of_the_store() {
    let change = |limit: &mut LaneLimit| limit.algorithm = LimitAlgorithm::SlidingWindow;
    let back = exact(LimitAlgorithm::FixedWindow).step(0, -4_000, 5_100).push(change, 5_200, 5_300);
    back.admit(10, 5_010, 5_020).admit(10, 6_100, 6_150).admit(10, 8_100, 8_150).assert_legal();
}

#[test]
fn clock_set_back_keeps_the_window_of_a_key() {
    let back = || exact(LimitAlgorithm::FixedWindow).step(0, -800, 5_500).admit(6, 5_100, 5_105);
    back().admit(4, 5_600, 5_605).assert_legal();
    // The store shows the window before, and the key stays in its own.
    back().admit(5, 5_600, 5_605).assert_excess(11, 10);
}

#[test]
fn leased_limit_has_no_allowance_but_held_tokens_after_a_step_forward() {
    let leased = || Case::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Leased, 2);
    leased().admit(11, 100, 101).assert_excess(11, 10);
    let stepped = || leased().step(0, 3_000, 500).admit(10, 100, 101).admit(10, 600, 601);
    stepped().admit(10, 650, 651).assert_legal();
    stepped().admit(11, 650, 651).assert_excess(21, 20);
    leased().step(0, 3_000, 500).admit(11, 5_100, 5_101).assert_excess(11, 10);
}

#[test]
fn synced_limit_may_be_ahead_on_each_node_that_ran() {
    let accuracy = LaneAccuracy::Synced { max_ahead: 3, sync_millis: 200 };
    let synced = || Case::new(LimitAlgorithm::FixedWindow, accuracy, 2);
    synced().admit(16, 100, 101).assert_legal();
    synced().admit(17, 100, 101).assert_excess(17, 16);
    synced().step(0, 3_000, 50).admit(22, 100, 101).assert_legal();
    synced().step(0, 3_000, 50).admit(23, 100, 101).assert_excess(23, 22);
    synced().admit(16, 900, 901).admit(16, 1_100, 1_101).admit(16, 2_100, 2_101).assert_legal();
    let mut restarted = synced().admit(19, 100, 101);
    restarted.history.node_lives.push((START + 50 * MILLI, Micros::MAX));
    restarted.assert_legal();
}

#[test]
fn synced_limit_has_the_time_of_admissions_that_the_store_must_know() {
    let accuracy = LaneAccuracy::Synced { max_ahead: 3, sync_millis: 200 };
    let back = || Case::new(LimitAlgorithm::FixedWindow, accuracy, 2).step(0, -800, 5_500);
    // Six of seven may be unknown to the store when its clock is set back; the seventh has opened the window.
    back().admit(7, 5_100, 5_105).admit(10, 5_600, 5_605).assert_excess(17, 16);
    back().admit(6, 5_100, 5_105).admit(11, 5_600, 5_605).assert_legal();
}

#[test]
fn leased_tokens_that_were_not_reported_open_no_window_in_the_store() {
    let leased = Case::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Leased, 2);
    leased.step(0, -800, 5_500).admit(6, 5_100, 5_105).admit(10, 5_600, 5_605).assert_legal();
}

#[test]
fn split_limit_follows_the_clocks_of_the_nodes() {
    let split = || Case::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Split, 2).step(0, 300, 50);
    split().admit(10, 800, 810).admit(10, 1_100, 1_110).assert_legal();
    split().admit(10, 5_100, 5_110).admit(1, 5_800, 5_810).assert_excess(11, 10);
}

#[test]
fn split_limit_keeps_its_bound_without_the_data_of_the_store() {
    let split = Case::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Split, 2);
    split.fault(FaultEffect::LostData, 300, 400).admit(11, 350, 360).assert_excess(11, 10);
}

#[test]
fn pushed_limit_counts_from_the_push_until_the_last_node_has_a_later_one() {
    let raised = || {
        let change = |limit: &mut LaneLimit| limit.amount = 15;
        exact(LimitAlgorithm::FixedWindow).push(change, 400, 600)
    };
    raised().admit(15, 100, 450).assert_legal();
    raised().admit(16, 100, 450).assert_excess(16, 15);
    raised().admit(11, 100, 350).assert_excess(11, 10);
    // A bucket keeps its own bound under each of its limits.
    let bucket = || exact(LimitAlgorithm::TokenBucket).push(|limit| limit.amount = 20, 400, 600);
    bucket().admit(10, 300, 301).admit(26, 500, 501).assert_legal();
    bucket().admit(10, 300, 301).admit(27, 500, 501).assert_excess(37, 36);
    bucket().admit(10, 300, 301).admit(2, 390, 399).assert_excess(12, 10);
    let lowered = exact(LimitAlgorithm::FixedWindow).push(|limit| limit.amount = 5, 400, 1_200);
    lowered.admit(10, 1_000, 1_100).admit(6, 2_000, 2_100).assert_excess(6, 5);
}

#[test]
fn changed_algorithm_adds_the_bounds_of_both_in_spans_that_have_both() {
    let changed = || {
        let change = |limit: &mut LaneLimit| limit.algorithm = LimitAlgorithm::TokenBucket;
        exact(LimitAlgorithm::SlidingLog).push(change, 400, 600)
    };
    changed().admit(10, 300, 310).admit(11, 500, 510).assert_legal();
    changed().admit(30, 500, 510).assert_excess(30, 20);
    changed().admit(11, 300, 310).assert_excess(11, 10);
}

fn slot(acquired: Micros, released: Option<Micros>) -> SlotRecord {
    SlotRecord {
        acquire_sent: START + acquired * MILLI,
        acquire_received: START + (acquired + 5) * MILLI,
        renewed: None,
        refused: None,
        release_sent: released.map(|at| START + at * MILLI),
    }
}

#[test]
fn slots_are_counted_while_they_must_be_held() {
    let in_flight = |slots: &[SlotRecord]| {
        let mut case = exact(LimitAlgorithm::Concurrency);
        case.history.lanes[0].slots = slots.to_vec();
        case
    };
    let ten: Vec<SlotRecord> = (0..10).map(|_| slot(0, None)).collect();
    let with = |one: SlotRecord| [ten.as_slice(), &[one]].concat();
    in_flight(&ten).assert_legal();
    in_flight(&with(slot(500, None))).assert_excess(11, 10);
    // After the hold of the others.
    in_flight(&with(slot(1_000, None))).assert_legal();
    let mut renewed = with(slot(1_000, None));
    let renewal = |sent, received| Some((START + sent * MILLI, START + received * MILLI));
    renewed[..10].iter_mut().for_each(|slot| slot.renewed = renewal(500, 505));
    in_flight(&renewed).assert_excess(11, 10);
    // Renewed when it may have expired: others may have been admitted before.
    renewed[0].renewed = renewal(995, 1_010);
    in_flight(&renewed).assert_legal();
    in_flight(&with(slot(500, None))).fault(FaultEffect::LostData, 300, 400).assert_legal();
    let mut released = with(slot(500, None));
    released[0].release_sent = Some(START + 400 * MILLI);
    in_flight(&released).assert_legal();
    in_flight(&with(slot(500, None))).step(0, 700, 200).assert_legal();
    let mut refused = vec![slot(0, None)];
    refused[0].refused = Some((START + 800 * MILLI, START + 900 * MILLI));
    in_flight(&refused).assert_excess(1, 0);
    in_flight(&refused).fault(FaultEffect::LostData, 300, 400).assert_legal();
    refused[0].refused = Some((START + 950 * MILLI, START + 1_001 * MILLI));
    in_flight(&refused).assert_legal();
}
