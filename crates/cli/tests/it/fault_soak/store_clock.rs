//! The time by which the store decided an admission, as an interval that the test can prove.

use super::history::{AnswerKind, CheckAnswer, EpisodeHistory, FaultEffect, Micros};

/// An admission with the intervals of time in which the store must have counted it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedAdmission {
    /// Start of the interval in key time. Key time is the store's time, but never decreases while the key exists
    /// (docs/decisions/0005-redis-script.md). Windows are aligned to it.
    pub(crate) earliest: Micros,
    /// End of the interval in key time.
    pub(crate) latest: Micros,
    /// Start of the interval in elapsed time, which is real time plus all steps forward. No limit refills faster. A step
    /// back does not change it: a key that has expired before restarts at the store's time.
    pub(crate) elapsed_from: Micros,
    /// End of the interval in elapsed time.
    pub(crate) elapsed_until: Micros,
    pub(crate) sent: Micros,
    pub(crate) received: Micros,
    pub(crate) cost: u64,
    pub(crate) delay_millis: u64,
}

/// A step of the store's clock.
#[derive(Debug, Clone, Copy)]
struct ClockStep {
    began: Micros,
    ended: Micros,
    /// Offset from the machine's clock after the step.
    offset: Micros,
    /// Length of a step forward; 0 for a step back.
    forward: Micros,
}

/// The steps of the store's clock during an episode.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoreClock {
    first_offset: Micros,
    steps: Vec<ClockStep>,
    /// Spans in which the time of a key may restart, because its data were lost or its algorithm changed.
    resets: Vec<(Micros, Micros)>,
}

impl StoreClock {
    /// Returns the clock of a lane that is decided by the clocks of the nodes. No fault changes these.
    pub(crate) fn without_steps() -> Self {
        Self::default()
    }

    /// Returns the clock of the store for the keys of one lane.
    pub(crate) fn for_lane(history: &EpisodeHistory, lane_index: usize) -> Self {
        let mut clock = Self { first_offset: history.first_offset, ..Self::default() };
        for fault in &history.faults {
            let (began, ended) = (fault.began, fault.ended);
            match fault.effect {
                FaultEffect::ClockStep { before, after } => {
                    let forward = (after - before).max(0);
                    clock.steps.push(ClockStep { began, ended, offset: after, forward });
                }
                FaultEffect::LostData | FaultEffect::Failover { .. } => {
                    clock.resets.push((began, ended));
                }
                FaultEffect::None => {}
            }
        }
        for pair in history.versions.windows(2) {
            if pair[0].limits[lane_index].algorithm != pair[1].limits[lane_index].algorithm {
                let adopted = pair[1].adopted.unwrap_or(Micros::MAX);
                clock.resets.push((pair[1].pushed, adopted));
            }
        }
        clock
    }

    /// Returns the start, the end and the offset of each period between two steps.
    fn periods(&self) -> impl Iterator<Item = (Micros, Micros, Micros)> {
        let (began, ended) = (Micros::MIN, Micros::MIN);
        let first = ClockStep { began, ended, offset: self.first_offset, forward: 0 };
        let starts = std::iter::once(first).chain(self.steps.iter().copied());
        let ends = self.steps.iter().map(|step| step.ended).chain(std::iter::once(Micros::MAX));
        starts.zip(ends).map(|(start, end)| (start.began, end, start.offset))
    }

    /// Returns the earliest time that the store's clock can have had in a span of real time.
    fn earliest_time(&self, from: Micros, until: Micros) -> Micros {
        let within = self.periods().filter(|(start, end, _)| *start <= until && *end >= from);
        within.map(|(start, _, offset)| start.max(from) + offset).min().unwrap()
    }

    /// Returns the latest time that the store's clock can have had until an instant of real time.
    fn latest_time(&self, until: Micros) -> Micros {
        let before = self.periods().filter(|(start, ..)| *start <= until);
        before.map(|(_, end, offset)| end.min(until) + offset).max().unwrap()
    }

    /// Returns the maximum total of steps forward in a span of real time.
    pub(crate) fn forward_within(&self, from: Micros, until: Micros) -> Micros {
        let steps = self.steps.iter().filter(|step| step.began <= until && step.ended >= from);
        steps.map(|step| step.forward).sum()
    }

    /// Returns the number of steps back that overlap a span of real time.
    pub(crate) fn steps_back_within(&self, from: Micros, until: Micros) -> u64 {
        let steps = self.steps.iter().filter(|step| step.began <= until && step.ended >= from);
        steps.filter(|step| step.forward == 0).count() as u64
    }

    /// Returns whether the time of a key may have restarted in a span of real time.
    fn may_have_reset(&self, from: Micros, until: Micros) -> bool {
        self.resets.iter().any(|(began, ended)| *began <= until && *ended >= from)
    }

    /// Returns the time that a key has certainly reached by earlier admissions. The store may not have counted up to
    /// `unreported` tokens of them.
    fn reached_time(
        &self,
        counted: &[CountedAdmission],
        sent: Micros,
        received: Micros,
        unreported: u64,
    ) -> Micros {
        // Without a step, earlier admissions do not narrow the interval.
        if self.steps.is_empty() {
            return Micros::MIN;
        }
        let is_before = |other: &&CountedAdmission| {
            other.received < sent && !self.may_have_reset(other.sent, received)
        };
        let (mut sum, mut reached) = (0, Micros::MAX);
        for other in counted.iter().rev().filter(is_before) {
            sum += other.cost;
            reached = reached.min(other.earliest);
            if sum > unreported {
                return reached;
            }
        }
        Micros::MIN
    }

    /// Returns the admissions with their intervals. `margin` is the maximum difference between the deciding clock and the
    /// machine's clock. `unreported` is the number of tokens that nodes may admit before the store counts them.
    pub(crate) fn count(
        &self,
        answers: &[CheckAnswer],
        margin: Micros,
        unreported: u64,
    ) -> Vec<CountedAdmission> {
        let mut sorted: Vec<&CheckAnswer> = answers.iter().collect();
        sorted.sort_by_key(|answer| answer.sent);
        let mut counted: Vec<CountedAdmission> = Vec::new();
        for answer in sorted {
            let AnswerKind::Admitted { delay_millis } = answer.kind else { continue };
            let CheckAnswer { sent, received, cost, .. } = *answer;
            let reached = self.reached_time(&counted, sent, received, unreported);
            let finished = self.steps.iter().filter(|step| step.ended <= sent);
            let begun = self.steps.iter().filter(|step| step.began <= received);
            counted.push(CountedAdmission {
                earliest: reached.max(self.earliest_time(sent, received) - margin),
                latest: self.latest_time(received) + margin,
                elapsed_from: sent - margin + finished.map(|step| step.forward).sum::<Micros>(),
                elapsed_until: received + margin + begun.map(|step| step.forward).sum::<Micros>(),
                sent,
                received,
                cost,
                delay_millis,
            });
        }
        counted
    }
}
