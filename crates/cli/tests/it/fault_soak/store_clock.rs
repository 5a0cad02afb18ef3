//! The time by which the store decided, as far as the harness can know it.

use super::history::{AnswerKind, CheckAnswer, EpisodeHistory, FaultEffect, Micros};

/// An admission, with the intervals of time in which it must have been counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedAdmission {
    /// Key time: the store's time, except that a key's time never runs backwards while the key is there
    /// (docs/decisions/0005-redis-script.md). Windows are aligned to it.
    pub(crate) earliest: Micros,
    pub(crate) latest: Micros,
    /// Passed time: real time and all steps forward. No limit heals faster than this. A step back gives nothing, and takes
    /// nothing from a key that had healed and was dropped before.
    pub(crate) passed_from: Micros,
    pub(crate) passed_until: Micros,
    pub(crate) sent: Micros,
    pub(crate) received: Micros,
    pub(crate) cost: u64,
    pub(crate) delay_millis: u64,
}

#[derive(Debug, Clone, Copy)]
struct ClockStep {
    began: Micros,
    ended: Micros,
    offset: Micros,
    forward: Micros,
}

/// The offset of the store's clock from the machine's clock, over time.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoreClock {
    first_offset: Micros,
    steps: Vec<ClockStep>,
    /// Spans in which the time of a key can start anew: its data were lost, or its algorithm changed.
    resets: Vec<(Micros, Micros)>,
}

impl StoreClock {
    /// The clock of a lane that nodes decide by their own clocks, which no fault sets.
    pub(crate) fn of_nodes() -> Self {
        Self::default()
    }

    /// The clock of the store, for the keys of one lane.
    pub(crate) fn of(history: &EpisodeHistory, place: usize) -> Self {
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
            if pair[0].limits[place].algorithm != pair[1].limits[place].algorithm {
                let adopted = pair[1].adopted.unwrap_or(Micros::MAX);
                clock.resets.push((pair[1].pushed, adopted));
            }
        }
        clock
    }

    /// Periods of one offset: from when and until when it may have been in force.
    fn periods(&self) -> impl Iterator<Item = (Micros, Micros, Micros)> {
        let (began, ended) = (Micros::MIN, Micros::MIN);
        let first = ClockStep { began, ended, offset: self.first_offset, forward: 0 };
        let starts = std::iter::once(first).chain(self.steps.iter().copied());
        let ends = self.steps.iter().map(|step| step.ended).chain(std::iter::once(Micros::MAX));
        starts.zip(ends).map(|(start, end)| (start.began, end, start.offset))
    }

    /// The least that the store's clock can have shown in a span of real time.
    fn least(&self, from: Micros, until: Micros) -> Micros {
        let within = self.periods().filter(|(start, end, _)| *start <= until && *end >= from);
        within.map(|(start, _, offset)| start.max(from) + offset).min().unwrap()
    }

    /// The most that the store's clock can have shown up to an instant of real time.
    fn most(&self, until: Micros) -> Micros {
        let before = self.periods().filter(|(start, ..)| *start <= until);
        before.map(|(_, end, offset)| end.min(until) + offset).max().unwrap()
    }

    /// How far the clock was set forward in a span of real time, at the most.
    pub(crate) fn forward_within(&self, from: Micros, until: Micros) -> Micros {
        let steps = self.steps.iter().filter(|step| step.began <= until && step.ended >= from);
        steps.map(|step| step.forward).sum()
    }

    /// Steps back that a span of real time touches.
    pub(crate) fn steps_back_within(&self, from: Micros, until: Micros) -> u64 {
        let steps = self.steps.iter().filter(|step| step.began <= until && step.ended >= from);
        steps.filter(|step| step.forward == 0).count() as u64
    }

    /// Whether a key may have another time than the latest that it was counted at.
    fn is_reset(&self, from: Micros, until: Micros) -> bool {
        self.resets.iter().any(|(began, ended)| *began <= until && *ended >= from)
    }

    /// A time that a key has reached by earlier admissions, of which the store may not have counted `unreported` tokens.
    fn carried(
        &self,
        counted: &[CountedAdmission],
        sent: Micros,
        received: Micros,
        unreported: u64,
    ) -> Micros {
        // Without a step an earlier admission shows nothing.
        if self.steps.is_empty() {
            return Micros::MIN;
        }
        let is_before = |other: &&CountedAdmission| {
            other.received < sent && !self.is_reset(other.sent, received)
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

    /// Admissions with their times. `margin` is how far the clock that decides may be from the machine's, and
    /// `unreported` the number of tokens that nodes may have admitted before the store counts them.
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
            let carried = self.carried(&counted, sent, received, unreported);
            let over = self.steps.iter().filter(|step| step.ended <= sent);
            let begun = self.steps.iter().filter(|step| step.began <= received);
            counted.push(CountedAdmission {
                earliest: carried.max(self.least(sent, received) - margin),
                latest: self.most(received) + margin,
                passed_from: sent - margin + over.map(|step| step.forward).sum::<Micros>(),
                passed_until: received + margin + begun.map(|step| step.forward).sum::<Micros>(),
                sent,
                received,
                cost,
                delay_millis,
            });
        }
        counted
    }
}
