//! Tests of the check: a legal history has no violation, and one more admission is reported.

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
/// The start of the load, which is also the start of a window of every length used here.
const START: Micros = 1_800_000_000 * SECOND;

/// A limit of 10 per second and its recorded history.
struct HistoryCase {
    scenario: EpisodeScenario,
    history: EpisodeHistory,
}

impl HistoryCase {
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
            caches_denials: true,
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
            process_lifetimes: vec![(START, Micros::MAX); nodes],
            ..EpisodeHistory::default()
        };
        Self { scenario, history }
    }

    /// Adds admissions that were sent and received at these times, in milliseconds after the start.
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

    /// Adds a clock step from one offset to another, in milliseconds.
    fn step_clock(self, before: Micros, after: Micros, at: Micros) -> Self {
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

    fn violation(&self) -> Option<BoundViolation> {
        violations(&self.scenario, &self.history).pop()
    }

    fn assert_legal(&self) {
        assert!(self.violation().is_none(), "{:?}", self.violation());
    }

    fn assert_excess(&self, admitted: u64, max: u64) {
        let violation = self.violation().expect("a violation");
        assert_eq!((violation.admitted, violation.max), (admitted, max), "{violation:?}");
    }
}

fn exact(algorithm: LimitAlgorithm) -> HistoryCase {
    HistoryCase::new(algorithm, LaneAccuracy::Exact, 2)
}

#[test]
fn token_bucket_admits_burst_and_refill_but_not_one_more() {
    let bucket = || exact(LimitAlgorithm::TokenBucket).admit(10, 0, 5).admit(5, 490, 500);
    bucket().assert_legal();
    bucket().admit(1, 490, 500).assert_excess(16, 15);
    // This admission may have been decided 100 ms later, after one more token was refilled.
    bucket().admit(1, 490, 600).assert_legal();
}

#[test]
fn fixed_window_counts_only_admissions_that_must_lie_in_it() {
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
fn sliding_window_weights_the_previous_window() {
    let window = || exact(LimitAlgorithm::SlidingWindow).admit(10, 900, 901);
    window().admit(5, 1_500, 1_501).assert_legal();
    window().admit(7, 1_500, 1_501).assert_excess(11, 10);
}

#[test]
fn leaky_bucket_bounds_queued_requests_and_releases_per_interval() {
    let bucket = || exact(LimitAlgorithm::LeakyBucket);
    let delayed = |mut case: HistoryCase| {
        for (index, answer) in (0..).zip(&mut case.history.lanes[0].answers) {
            answer.kind = AnswerKind::Admitted { delay_millis: 100 * index };
        }
        case
    };
    delayed(bucket().admit(5, 0, 5)).assert_legal();
    delayed(bucket().admit(6, 0, 5)).assert_excess(6, 5);
    // Without delays, all five are released at once.
    bucket().admit(5, 0, 5).assert_excess(5, 1);
    // A request of cost 3 is released as a whole; only the next request waits.
    let mut costly = bucket().admit(1, 0, 5);
    costly.scenario.lanes[0].max_cost = 3;
    costly.history.lanes[0].answers[0].cost = 3;
    costly.assert_legal();
}

#[test]
fn lost_store_data_allows_one_more_limit_but_not_two() {
    let lost = || exact(LimitAlgorithm::FixedWindow).fault(FaultEffect::LostData, 300, 400);
    lost().admit(10, 100, 105).admit(10, 500, 505).assert_legal();
    lost().admit(10, 100, 105).admit(11, 500, 505).assert_excess(21, 20);
    // The allowance does not extend to the next window.
    lost().admit(11, 1_500, 1_505).assert_excess(11, 10);
}

#[test]
fn clock_set_forward_counts_as_elapsed_time() {
    let bucket = || exact(LimitAlgorithm::TokenBucket).step_clock(0, 500, 300).admit(10, 200, 201);
    bucket().admit(7, 401, 402).assert_legal();
    bucket().admit(8, 401, 402).assert_excess(18, 17);
}

#[test]
fn clock_set_back_refills_no_bucket() {
    let bucket =
        || exact(LimitAlgorithm::TokenBucket).step_clock(0, -5_000, 300).admit(10, 200, 201);
    // After 1 s the full bucket has expired in the store, so the key starts again at the new time.
    bucket().admit(10, 1_201, 1_202).assert_legal();
    bucket().admit(11, 1_201, 1_202).assert_excess(21, 20);
}

#[test]
fn windows_are_aligned_to_the_clock_of_the_store() {
    let mut ahead = exact(LimitAlgorithm::FixedWindow).admit(10, 400, 410).admit(10, 600, 610);
    assert!(ahead.violation().is_some());
    ahead.history.first_offset = 500 * MILLI;
    ahead.assert_legal();
    ahead.admit(10, 1_400, 1_410).assert_excess(20, 10);
}

#[test]
fn key_time_restarts_at_store_time_after_an_algorithm_change() {
    let change = |limit: &mut LaneLimit| limit.algorithm = LimitAlgorithm::SlidingWindow;
    let back =
        exact(LimitAlgorithm::FixedWindow).step_clock(0, -4_000, 5_100).push(change, 5_200, 5_300);
    back.admit(10, 5_010, 5_020).admit(10, 6_100, 6_150).admit(10, 8_100, 8_150).assert_legal();
}

#[test]
fn key_stays_in_its_window_when_the_clock_is_set_back() {
    let back =
        || exact(LimitAlgorithm::FixedWindow).step_clock(0, -800, 5_500).admit(6, 5_100, 5_105);
    back().admit(4, 5_600, 5_605).assert_legal();
    // The store's clock is in the previous window again, but the key stays in its window.
    back().admit(5, 5_600, 5_605).assert_excess(11, 10);
}

#[test]
fn leased_limit_allows_extra_tokens_only_after_a_step_forward() {
    let leased = || HistoryCase::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Leased, 2);
    leased().admit(11, 100, 101).assert_excess(11, 10);
    let stepped = || leased().step_clock(0, 3_000, 500).admit(10, 100, 101).admit(10, 600, 601);
    stepped().admit(10, 650, 651).assert_legal();
    stepped().admit(11, 650, 651).assert_excess(21, 20);
    leased().step_clock(0, 3_000, 500).admit(11, 5_100, 5_101).assert_excess(11, 10);
}

#[test]
fn synced_limit_allows_max_ahead_for_each_node_process() {
    let accuracy = LaneAccuracy::Synced { max_ahead: 3, sync_millis: 200 };
    let synced = || HistoryCase::new(LimitAlgorithm::FixedWindow, accuracy, 2);
    synced().admit(16, 100, 101).assert_legal();
    synced().admit(17, 100, 101).assert_excess(17, 16);
    synced().step_clock(0, 3_000, 50).admit(22, 100, 101).assert_legal();
    synced().step_clock(0, 3_000, 50).admit(23, 100, 101).assert_excess(23, 22);
    synced().admit(16, 900, 901).admit(16, 1_100, 1_101).admit(16, 2_100, 2_101).assert_legal();
    let mut restarted = synced().admit(19, 100, 101);
    restarted.history.process_lifetimes.push((START + 50 * MILLI, Micros::MAX));
    restarted.assert_legal();
}

#[test]
fn synced_key_keeps_the_time_of_admissions_known_to_the_store() {
    let accuracy = LaneAccuracy::Synced { max_ahead: 3, sync_millis: 200 };
    let back =
        || HistoryCase::new(LimitAlgorithm::FixedWindow, accuracy, 2).step_clock(0, -800, 5_500);
    // Two nodes may have six unsynced tokens when the clock is set back. The seventh must have opened the window.
    back().admit(7, 5_100, 5_105).admit(10, 5_600, 5_605).assert_excess(17, 16);
    back().admit(6, 5_100, 5_105).admit(11, 5_600, 5_605).assert_legal();
}

#[test]
fn unreported_leased_tokens_open_no_window_in_the_store() {
    let leased = HistoryCase::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Leased, 2);
    leased.step_clock(0, -800, 5_500).admit(6, 5_100, 5_105).admit(10, 5_600, 5_605).assert_legal();
}

#[test]
fn split_limit_follows_the_clocks_of_the_nodes() {
    let split = || {
        HistoryCase::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Split, 2).step_clock(0, 300, 50)
    };
    split().admit(10, 800, 810).admit(10, 1_100, 1_110).assert_legal();
    split().admit(10, 5_100, 5_110).admit(1, 5_800, 5_810).assert_excess(11, 10);
}

#[test]
fn split_limit_has_no_allowance_for_lost_store_data() {
    let split = HistoryCase::new(LimitAlgorithm::FixedWindow, LaneAccuracy::Split, 2);
    split.fault(FaultEffect::LostData, 300, 400).admit(11, 350, 360).assert_excess(11, 10);
}

#[test]
fn limit_is_in_force_from_its_push_until_every_node_has_a_later_one() {
    let raised = || {
        let change = |limit: &mut LaneLimit| limit.amount = 15;
        exact(LimitAlgorithm::FixedWindow).push(change, 400, 600)
    };
    raised().admit(15, 100, 450).assert_legal();
    raised().admit(16, 100, 450).assert_excess(16, 15);
    raised().admit(11, 100, 350).assert_excess(11, 10);
    // A bucket has one bound for each of its limits.
    let bucket = || exact(LimitAlgorithm::TokenBucket).push(|limit| limit.amount = 20, 400, 600);
    bucket().admit(10, 300, 301).admit(26, 500, 501).assert_legal();
    bucket().admit(10, 300, 301).admit(27, 500, 501).assert_excess(37, 36);
    bucket().admit(10, 300, 301).admit(2, 390, 399).assert_excess(12, 10);
    let lowered = exact(LimitAlgorithm::FixedWindow).push(|limit| limit.amount = 5, 400, 1_200);
    lowered.admit(10, 1_000, 1_100).admit(6, 2_000, 2_100).assert_excess(6, 5);
}

#[test]
fn span_across_an_algorithm_change_has_the_sum_of_both_bounds() {
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
fn slots_count_only_while_they_must_be_held() {
    let in_flight = |slots: &[SlotRecord]| {
        let mut case = exact(LimitAlgorithm::Concurrency);
        case.history.lanes[0].slots = slots.to_vec();
        case
    };
    let ten: Vec<SlotRecord> = (0..10).map(|_| slot(0, None)).collect();
    let ten_and = |slot: SlotRecord| [ten.as_slice(), &[slot]].concat();
    in_flight(&ten).assert_legal();
    in_flight(&ten_and(slot(500, None))).assert_excess(11, 10);
    // The hold of the others has ended.
    in_flight(&ten_and(slot(1_000, None))).assert_legal();
    let mut renewed = ten_and(slot(1_000, None));
    let renewal = |sent, received| Some((START + sent * MILLI, START + received * MILLI));
    renewed[..10].iter_mut().for_each(|slot| slot.renewed = renewal(500, 505));
    in_flight(&renewed).assert_excess(11, 10);
    // The slot may have expired before this renewal, so another slot may have been admitted.
    renewed[0].renewed = renewal(995, 1_010);
    in_flight(&renewed).assert_legal();
    in_flight(&ten_and(slot(500, None))).fault(FaultEffect::LostData, 300, 400).assert_legal();
    let mut released = ten_and(slot(500, None));
    released[0].release_sent = Some(START + 400 * MILLI);
    in_flight(&released).assert_legal();
    in_flight(&ten_and(slot(500, None))).step_clock(0, 700, 200).assert_legal();
    let mut refused = vec![slot(0, None)];
    refused[0].refused = Some((START + 800 * MILLI, START + 900 * MILLI));
    in_flight(&refused).assert_excess(1, 0);
    in_flight(&refused).fault(FaultEffect::LostData, 300, 400).assert_legal();
    refused[0].refused = Some((START + 950 * MILLI, START + 1_001 * MILLI));
    in_flight(&refused).assert_legal();
}
