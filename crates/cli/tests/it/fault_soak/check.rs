//! Admissions beside the stated bound.

use super::bound::{StatedBound, stated_bound};
use super::history::{EpisodeHistory, FaultEffect, LaneHistory, Micros};
use super::scenario::{EpisodeScenario, LaneAccuracy, LimitAlgorithm, StoreTopology};
use super::store_clock::{CountedAdmission, StoreClock};

/// Nodes keep time by a clock that is set once, at their start. A machine that corrects its wall clock slowly, by up to
/// 500 parts in a million, is off from it by this after 20 seconds.
const NODE_CLOCK_MARGIN: Micros = 10_000;

/// Starts of spans that are tried for one lane. With more admissions, some are left out.
const MAX_SPAN_STARTS: usize = 3_000;

/// A stated bound that was exceeded.
#[derive(Debug, Clone)]
pub(crate) struct BoundViolation {
    pub(crate) place: usize,
    pub(crate) bound: &'static str,
    pub(crate) admitted: u64,
    pub(crate) most: u64,
    /// The real time between the first request and the last answer.
    pub(crate) from: Micros,
    pub(crate) until: Micros,
    /// Allowances that are part of `most`.
    pub(crate) allowances: Vec<&'static str>,
}

impl BoundViolation {
    fn excess(&self) -> u64 {
        self.admitted - self.most
    }
}

/// The worst violation of each lane.
pub(crate) fn violations(
    scenario: &EpisodeScenario,
    history: &EpisodeHistory,
) -> Vec<BoundViolation> {
    let lanes = scenario.lanes.iter().zip(&history.lanes).enumerate();
    lanes
        .filter_map(|(place, (lane, answers))| {
            let bound = stated_bound(scenario, place, history);
            // redis.md, "How exact, and how fast": windows of `split` follow the nodes' clocks.
            let by_nodes =
                scenario.topology == StoreTopology::Memory || lane.accuracy == LaneAccuracy::Split;
            let clock =
                if by_nodes { StoreClock::of_nodes() } else { StoreClock::of(history, place) };
            let margin = if by_nodes { NODE_CLOCK_MARGIN } else { 0 };
            let check = LaneCheck { place, bound: &bound, clock: &clock, history };
            check.worst(answers, margin)
        })
        .collect()
}

struct LaneCheck<'a> {
    place: usize,
    bound: &'a StatedBound,
    clock: &'a StoreClock,
    history: &'a EpisodeHistory,
}

impl LaneCheck<'_> {
    fn worst(&self, answers: &LaneHistory, margin: Micros) -> Option<BoundViolation> {
        if self.bound.is_only(LimitAlgorithm::Concurrency) {
            return self.slots_in_flight(answers);
        }
        let admissions = self.clock.count(&answers.answers, margin, self.bound.unreported);
        let most = |length, from, until| {
            // A window that a key left and lost can be entered again after a step back (0005).
            let again = self.clock.steps_back_within(from, until) * self.bound.window_amount();
            self.bound.most_in_span(length, from, until) + again
        };
        let spans = self.spans(&admissions, "any span", most);
        let releases = self.bound.is_only(LimitAlgorithm::LeakyBucket).then(|| {
            let releases = released(&admissions);
            let most = |length, from, until| self.bound.most_releases(length, from, until);
            self.spans(&releases, "releases in any span", most)
        });
        let windows = self.windows(&admissions);
        let weights = self.weights(&admissions);
        let found = [spans, releases.flatten(), windows, weights];
        found.into_iter().flatten().max_by_key(BoundViolation::excess)
    }

    fn violation(
        &self,
        bound: &'static str,
        (admitted, most): (u64, u64),
        (from, until): (Micros, Micros),
    ) -> BoundViolation {
        let allowances = self.bound.allowed(from, until).map(|one| one.reason).collect();
        BoundViolation { place: self.place, bound, admitted, most, from, until, allowances }
    }

    /// Compares every span between two admissions. An admission counts if it must have been made within the span.
    fn spans(
        &self,
        admissions: &[CountedAdmission],
        name: &'static str,
        most: impl Fn(Micros, Micros, Micros) -> u64,
    ) -> Option<BoundViolation> {
        let mut by_end = admissions.to_vec();
        by_end.sort_by_key(|admission| admission.passed_until);
        let mut starts: Vec<Micros> = admissions.iter().map(|one| one.passed_from).collect();
        starts.sort_unstable();
        starts.dedup();
        let step = starts.len() / MAX_SPAN_STARTS + 1;
        let releases = name.starts_with("releases");
        let mut worst: Option<BoundViolation> = None;
        for start in starts.into_iter().step_by(step) {
            let (mut sum, mut from, mut until) = (0, Micros::MAX, Micros::MIN);
            for one in by_end.iter().filter(|one| one.passed_from >= start) {
                sum += one.cost;
                from = from.min(one.sent);
                until = until.max(one.received);
                let length = one.passed_until - start;
                if !releases && sum <= self.bound.least_in_span(length) {
                    continue;
                }
                let most = most(length, from, until);
                if sum > most && worst.as_ref().is_none_or(|worst| sum - most > worst.excess()) {
                    worst = Some(self.violation(name, (sum, most), (from, until)));
                }
            }
        }
        worst
    }

    /// Compares every window aligned to the clock. An admission counts if it must have been made within the window.
    fn windows(&self, admissions: &[CountedAdmission]) -> Option<BoundViolation> {
        let mut worst: Option<BoundViolation> = None;
        for (sum, from, until) in self.by_window(admissions).into_iter().map(total) {
            let Some(most) = self.bound.most_in_window(from, until) else { continue };
            if sum > most && worst.as_ref().is_none_or(|worst| sum - most > worst.excess()) {
                worst = Some(self.violation(
                    "a window aligned to the clock",
                    (sum, most),
                    (from, until),
                ));
            }
        }
        worst
    }

    /// Admissions that must be in one window, in order of time.
    fn by_window(&self, admissions: &[CountedAdmission]) -> Vec<Vec<CountedAdmission>> {
        let window = self.bound.window();
        let mut sorted: Vec<&CountedAdmission> = (admissions.iter())
            .filter(|one| one.earliest.div_euclid(window) == one.latest.div_euclid(window))
            .collect();
        sorted.sort_by_key(|one| one.latest);
        let same = |a: &&CountedAdmission, b: &&CountedAdmission| {
            a.latest.div_euclid(window) == b.latest.div_euclid(window)
        };
        sorted.chunk_by(same).map(|chunk| chunk.iter().map(|one| **one).collect()).collect()
    }

    /// Compares the weight of the window before and the count of the current one, at each admission of a sliding window.
    fn weights(&self, admissions: &[CountedAdmission]) -> Option<BoundViolation> {
        if !self.bound.keeps_weight || !self.bound.is_only(LimitAlgorithm::SlidingWindow) {
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
            for one in &pair[1] {
                current += one.cost;
                until = until.max(one.received);
                let left = ((number + 1) * window - one.latest).unsigned_abs();
                // Rounded down, so that a fraction of a token is no violation.
                let carried =
                    u128::from(previous) * u128::from(left) / u128::from(window.unsigned_abs());
                let sum = current + u64::try_from(carried).unwrap();
                let Some(most) = self.bound.most_in_window(from, until) else { continue };
                if sum > most && worst.as_ref().is_none_or(|worst| sum - most > worst.excess()) {
                    worst =
                        Some(self.violation("two weighted windows", (sum, most), (from, until)));
                }
            }
        }
        worst
    }

    /// Compares the slots that must have been held at each instant.
    fn slots_in_flight(&self, answers: &LaneHistory) -> Option<BoundViolation> {
        let hold = self.bound.window();
        let losses = self.history.faults.iter().filter(|fault| {
            matches!(fault.effect, FaultEffect::LostData | FaultEffect::Failover { .. })
        });
        let losses: Vec<(Micros, Micros)> = losses.map(|loss| (loss.began, loss.ended)).collect();
        let mut changes: Vec<(Micros, i64, Micros)> = Vec::new();
        for slot in &answers.slots {
            let from = slot.acquire_received;
            // 0015: free after `hold` at the latest, by the store's clock. A renewal that may have been later than that
            // inserts the slot again, beside those that were admitted meanwhile.
            let free_from = |taken: Micros| {
                taken + hold - self.clock.forward_within(slot.acquire_sent, taken + hold)
            };
            let mut until = free_from(slot.acquire_sent);
            if let Some((sent, received)) = slot.renewed
                && received < until
            {
                until = free_from(sent);
            }
            // 0015: a slot is held until it is released, and lost after `hold` unless it is renewed.
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
            // A store that loses data loses the slot: it can be taken once more.
            let lost = losses.iter().filter(|(_, ended)| *ended >= slot.acquire_sent);
            until = until.min(lost.map(|(began, _)| *began).min().unwrap_or(Micros::MAX));
            if from < until {
                changes.push((from, 1, slot.acquire_sent));
                changes.push((until, -1, slot.acquire_sent));
            }
        }
        // At one instant, ends come before starts.
        changes.sort_unstable();
        let (mut held, mut worst) = (0_i64, None::<BoundViolation>);
        let most = self.bound.most_in_flight();
        for (at, change, sent) in changes {
            held += change;
            let count = u64::try_from(held).unwrap();
            if count > most && worst.as_ref().is_none_or(|worst| count - most > worst.excess()) {
                let counts = (count, most);
                worst = Some(self.violation("slots in flight at an instant", counts, (sent, at)));
            }
        }
        worst
    }
}

/// Sum of costs, and the real time between the first request and the last answer.
fn total(admissions: Vec<CountedAdmission>) -> (u64, Micros, Micros) {
    let from = admissions.iter().map(|one| one.sent).min().unwrap_or(Micros::MAX);
    let until = admissions.iter().map(|one| one.received).max().unwrap_or(Micros::MIN);
    (admissions.iter().map(|one| one.cost).sum(), from, until)
}

/// Releases of a leaky bucket: after the delay of each admission, which is rounded up to a millisecond.
fn released(admissions: &[CountedAdmission]) -> Vec<CountedAdmission> {
    let release = |one: &CountedAdmission| {
        let delay = Micros::try_from(one.delay_millis).unwrap() * 1_000;
        let passed_from = one.passed_from + (delay - 1_000).max(0);
        CountedAdmission { passed_from, passed_until: one.passed_until + delay, ..*one }
    };
    admissions.iter().map(release).collect()
}
