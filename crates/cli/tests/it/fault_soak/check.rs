//! Compares recorded admissions with the stated bound.

use super::bound::{StatedBound, stated_bound};
use super::history::{EpisodeHistory, FaultEffect, LaneHistory, Micros};
use super::scenario::{EpisodeScenario, LaneAccuracy, LimitAlgorithm, StoreTopology};
use super::store_clock::{CountedAdmission, StoreClock};

/// Maximum difference between a node's clock and the wall clock. A node reads the wall clock only at its start. The
/// machine adjusts its wall clock by up to 500 parts per million, which is 10 ms in 20 seconds.
const NODE_CLOCK_MARGIN: Micros = 10_000;

/// Maximum number of span starts that are checked for one lane. With more admissions, every n-th start is checked.
const MAX_SPAN_STARTS: usize = 3_000;

/// A stated bound that was exceeded.
#[derive(Debug, Clone)]
pub(crate) struct BoundViolation {
    pub(crate) lane_index: usize,
    pub(crate) bound: &'static str,
    pub(crate) admitted: u64,
    pub(crate) max: u64,
    /// The real time between the first request and the last answer.
    pub(crate) from: Micros,
    pub(crate) until: Micros,
    /// Reasons of the allowances that are part of `max`.
    pub(crate) allowances: Vec<&'static str>,
}

impl BoundViolation {
    fn excess(&self) -> u64 {
        self.admitted - self.max
    }
}

/// Returns the worst violation of each lane.
pub(crate) fn violations(
    scenario: &EpisodeScenario,
    history: &EpisodeHistory,
) -> Vec<BoundViolation> {
    let lanes = scenario.lanes.iter().zip(&history.lanes).enumerate();
    lanes
        .filter_map(|(lane_index, (lane, answers))| {
            let bound = stated_bound(scenario, lane_index, history);
            // redis.md, "How exact, and how fast": windows of `split` follow the clocks of the nodes.
            let by_node_clocks =
                scenario.topology == StoreTopology::Memory || lane.accuracy == LaneAccuracy::Split;
            let clock = if by_node_clocks {
                StoreClock::without_steps()
            } else {
                StoreClock::for_lane(history, lane_index)
            };
            let margin = if by_node_clocks { NODE_CLOCK_MARGIN } else { 0 };
            let check = LaneCheck { lane_index, bound: &bound, clock: &clock, history };
            check.worst(answers, margin)
        })
        .collect()
}

struct LaneCheck<'a> {
    lane_index: usize,
    bound: &'a StatedBound,
    clock: &'a StoreClock,
    history: &'a EpisodeHistory,
}

impl LaneCheck<'_> {
    /// Returns the violation with the largest excess.
    fn worst(&self, answers: &LaneHistory, margin: Micros) -> Option<BoundViolation> {
        if self.bound.has_only(LimitAlgorithm::Concurrency) {
            return self.slots_in_flight(answers);
        }
        let admissions = self.clock.count(&answers.answers, margin, self.bound.unreported);
        let max = |length, from, until| {
            // After a step back, a key that had expired can enter the same window again (0005).
            let repeated_windows =
                self.clock.steps_back_within(from, until) * self.bound.max_window_amount();
            self.bound.max_in_span(length, from, until) + repeated_windows
        };
        let spans = self.spans(&admissions, "any span", max);
        let releases = self.bound.has_only(LimitAlgorithm::LeakyBucket).then(|| {
            let releases = release_times(&admissions);
            let max = |length, from, until| self.bound.max_releases(length, from, until);
            self.spans(&releases, "releases in any span", max)
        });
        let windows = self.windows(&admissions);
        let weights = self.weights(&admissions);
        let found = [spans, releases.flatten(), windows, weights];
        found.into_iter().flatten().max_by_key(BoundViolation::excess)
    }

    fn violation(
        &self,
        bound: &'static str,
        (admitted, max): (u64, u64),
        (from, until): (Micros, Micros),
    ) -> BoundViolation {
        let allowances =
            self.bound.allowances_within(from, until).map(|allowance| allowance.reason).collect();
        BoundViolation {
            lane_index: self.lane_index,
            bound,
            admitted,
            max,
            from,
            until,
            allowances,
        }
    }

    /// Compares every span between two admissions. An admission counts if it must have been made within the span.
    fn spans(
        &self,
        admissions: &[CountedAdmission],
        name: &'static str,
        max: impl Fn(Micros, Micros, Micros) -> u64,
    ) -> Option<BoundViolation> {
        let mut by_end = admissions.to_vec();
        by_end.sort_by_key(|admission| admission.elapsed_until);
        let mut starts: Vec<Micros> =
            admissions.iter().map(|admission| admission.elapsed_from).collect();
        starts.sort_unstable();
        starts.dedup();
        let step = starts.len() / MAX_SPAN_STARTS + 1;
        let releases = name.starts_with("releases");
        let mut worst: Option<BoundViolation> = None;
        for start in starts.into_iter().step_by(step) {
            let (mut sum, mut from, mut until) = (0, Micros::MAX, Micros::MIN);
            for admission in by_end.iter().filter(|admission| admission.elapsed_from >= start) {
                sum += admission.cost;
                from = from.min(admission.sent);
                until = until.max(admission.received);
                let length = admission.elapsed_until - start;
                if !releases && sum <= self.bound.smallest_span_bound(length) {
                    continue;
                }
                let max = max(length, from, until);
                if sum > max && worst.as_ref().is_none_or(|worst| sum - max > worst.excess()) {
                    worst = Some(self.violation(name, (sum, max), (from, until)));
                }
            }
        }
        worst
    }

    /// Compares every window that is aligned to the clock. An admission counts if it must have been made within the window.
    fn windows(&self, admissions: &[CountedAdmission]) -> Option<BoundViolation> {
        let mut worst: Option<BoundViolation> = None;
        for (sum, from, until) in self.by_window(admissions).into_iter().map(total) {
            let Some(max) = self.bound.max_in_window(from, until) else { continue };
            if sum > max && worst.as_ref().is_none_or(|worst| sum - max > worst.excess()) {
                worst = Some(self.violation(
                    "a window aligned to the clock",
                    (sum, max),
                    (from, until),
                ));
            }
        }
        worst
    }

    /// Groups admissions by the window that they must lie in, in order of time.
    fn by_window(&self, admissions: &[CountedAdmission]) -> Vec<Vec<CountedAdmission>> {
        let window = self.bound.window();
        let mut sorted: Vec<&CountedAdmission> = (admissions.iter())
            .filter(|admission| {
                admission.earliest.div_euclid(window) == admission.latest.div_euclid(window)
            })
            .collect();
        sorted.sort_by_key(|admission| admission.latest);
        let same = |a: &&CountedAdmission, b: &&CountedAdmission| {
            a.latest.div_euclid(window) == b.latest.div_euclid(window)
        };
        sorted
            .chunk_by(same)
            .map(|chunk| chunk.iter().map(|admission| **admission).collect())
            .collect()
    }

    /// Compares the weighted count of the previous window plus the count of the current one, at each admission of a
    /// sliding window.
    fn weights(&self, admissions: &[CountedAdmission]) -> Option<BoundViolation> {
        if !self.bound.respects_weight || !self.bound.has_only(LimitAlgorithm::SlidingWindow) {
            return None;
        }
        let window = self.bound.window();
        let windows = self.by_window(admissions);
        let mut worst: Option<BoundViolation> = None;
        for pair in windows.windows(2) {
            let number = pair[1][0].latest.div_euclid(window);
            if pair[0][0].latest.div_euclid(window) + 1 != number {
                continue;
            }
            let (previous, from, _) = total(pair[0].clone());
            let (mut current, mut until) = (0, Micros::MIN);
            for admission in &pair[1] {
                current += admission.cost;
                until = until.max(admission.received);
                let left = ((number + 1) * window - admission.latest).unsigned_abs();
                // Rounded down, because a fraction of a token is not a violation.
                let carried =
                    u128::from(previous) * u128::from(left) / u128::from(window.unsigned_abs());
                let sum = current + u64::try_from(carried).unwrap();
                let Some(max) = self.bound.max_in_window(from, until) else { continue };
                if sum > max && worst.as_ref().is_none_or(|worst| sum - max > worst.excess()) {
                    worst = Some(self.violation("two weighted windows", (sum, max), (from, until)));
                }
            }
        }
        worst
    }

    /// Compares the number of slots that must have been held at each instant.
    fn slots_in_flight(&self, answers: &LaneHistory) -> Option<BoundViolation> {
        let hold = self.bound.window();
        let losses = self.history.faults.iter().filter(|fault| {
            matches!(fault.effect, FaultEffect::LostData | FaultEffect::Failover { .. })
        });
        let losses: Vec<(Micros, Micros)> = losses.map(|loss| (loss.began, loss.ended)).collect();
        let mut changes: Vec<(Micros, i64, Micros)> = Vec::new();
        for slot in &answers.slots {
            let from = slot.acquire_received;
            // 0015: a slot expires after `hold` by the store's clock. A renewal after that time inserts the slot again,
            // beside slots that were admitted in between, so it must not count.
            let free_from = |taken: Micros| {
                taken + hold - self.clock.forward_within(slot.acquire_sent, taken + hold)
            };
            let mut until = free_from(slot.acquire_sent);
            if let Some((sent, received)) = slot.renewed
                && received < until
            {
                until = free_from(sent);
            }
            // 0015: a slot must not be lost before `hold` has passed since it was acquired or renewed.
            if let Some((_, refused)) = slot.refused
                && refused < until
                && !losses
                    .iter()
                    .any(|(began, ended)| *began <= refused && *ended >= slot.acquire_sent)
            {
                let span = (slot.acquire_sent, refused);
                return Some(self.violation("slots lost before their hold ends", (1, 0), span));
            }
            until = until.min(slot.release_sent.unwrap_or(Micros::MAX));
            until = until.min(slot.refused.map_or(Micros::MAX, |(sent, _)| sent));
            // A store that loses data loses the slot, which can be acquired once more.
            let lost = losses.iter().filter(|(_, ended)| *ended >= slot.acquire_sent);
            until = until.min(lost.map(|(began, _)| *began).min().unwrap_or(Micros::MAX));
            if from < until {
                changes.push((from, 1, slot.acquire_sent));
                changes.push((until, -1, slot.acquire_sent));
            }
        }
        // At the same instant, the sort puts ends before starts.
        changes.sort_unstable();
        let (mut held, mut worst) = (0_i64, None::<BoundViolation>);
        let max = self.bound.max_in_flight();
        for (at, change, sent) in changes {
            held += change;
            let count = u64::try_from(held).unwrap();
            if count > max && worst.as_ref().is_none_or(|worst| count - max > worst.excess()) {
                let counts = (count, max);
                worst = Some(self.violation("slots in flight at an instant", counts, (sent, at)));
            }
        }
        worst
    }
}

/// Returns the sum of costs, and the real time of the first request and of the last answer.
fn total(admissions: Vec<CountedAdmission>) -> (u64, Micros, Micros) {
    let from = admissions.iter().map(|admission| admission.sent).min().unwrap_or(Micros::MAX);
    let until = admissions.iter().map(|admission| admission.received).max().unwrap_or(Micros::MIN);
    (admissions.iter().map(|admission| admission.cost).sum(), from, until)
}

/// Returns the releases of a leaky bucket: each admission, later by its delay. Delays are rounded up to a millisecond.
fn release_times(admissions: &[CountedAdmission]) -> Vec<CountedAdmission> {
    let release = |admission: &CountedAdmission| {
        let delay = Micros::try_from(admission.delay_millis).unwrap() * 1_000;
        let elapsed_from = admission.elapsed_from + (delay - 1_000).max(0);
        CountedAdmission {
            elapsed_from,
            elapsed_until: admission.elapsed_until + delay,
            ..*admission
        }
    };
    admissions.iter().map(release).collect()
}
