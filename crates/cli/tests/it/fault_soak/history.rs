//! Everything that happened in one episode.

use std::time::{SystemTime, UNIX_EPOCH};

use super::faults::FaultKind;
use super::scenario::LaneLimit;

/// Microseconds since 1970.
pub(crate) type Micros = i64;

/// The machine's wall clock. Redis reads the same one, so its time is this plus the offset that the harness gave it.
#[allow(
    clippy::disallowed_methods,
    reason = "Redis decides by this clock, and the check is about its time"
)]
pub(crate) fn now() -> Micros {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Micros::try_from(passed.as_micros()).unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    Admitted {
        delay_millis: u64,
    },
    Denied,
    /// The rule denies while the store cannot be asked.
    Unavailable,
    /// The rule allows while the store cannot be asked; nothing was counted.
    PassedUncounted,
    /// The connection failed. The check may have been charged.
    Lost,
}

/// One check with the time before it was sent and the time after its answer was read. It was decided in between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckAnswer {
    pub(crate) sent: Micros,
    pub(crate) received: Micros,
    pub(crate) cost: u64,
    pub(crate) kind: AnswerKind,
}

/// A slot in flight that was acquired.
#[derive(Debug, Clone)]
pub(crate) struct SlotRecord {
    pub(crate) acquire_sent: Micros,
    pub(crate) acquire_received: Micros,
    /// A renewal that succeeded: sent and received.
    pub(crate) renewed: Option<(Micros, Micros)>,
    /// When a renewal was answered with "gone": sent and received.
    pub(crate) refused: Option<(Micros, Micros)>,
    pub(crate) release_sent: Option<Micros>,
}

/// Effect of a fault on the stated bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultEffect {
    /// No bound changes.
    None,
    /// The store lost acknowledged charges of some keys.
    LostData,
    /// A replica took over; the old master may have lost charges.
    Failover {
        /// Whether the old master could go on answering.
        old_master_lived: bool,
    },
    /// The store's clock was set from one offset to another, in microseconds.
    ClockStep { before: Micros, after: Micros },
}

#[derive(Debug, Clone)]
pub(crate) struct FaultRecord {
    pub(crate) kind: FaultKind,
    pub(crate) note: String,
    pub(crate) began: Micros,
    pub(crate) ended: Micros,
    pub(crate) effect: FaultEffect,
}

/// One version of the rules document.
#[derive(Debug, Clone)]
pub(crate) struct RulesVersion {
    pub(crate) limits: Vec<LaneLimit>,
    /// When its push began.
    pub(crate) pushed: Micros,
    /// Its number, if the push was confirmed.
    pub(crate) number: Option<u64>,
    /// When every node was seen to have it or a later one.
    pub(crate) adopted: Option<Micros>,
}

/// Answers of one lane.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaneHistory {
    pub(crate) answers: Vec<CheckAnswer>,
    pub(crate) slots: Vec<SlotRecord>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct EpisodeHistory {
    pub(crate) began: Micros,
    /// How far the store's clock was ahead of the machine's before any fault.
    pub(crate) first_offset: Micros,
    pub(crate) lanes: Vec<LaneHistory>,
    pub(crate) faults: Vec<FaultRecord>,
    pub(crate) versions: Vec<RulesVersion>,
    /// When each process of a node could answer: from its start to its end.
    pub(crate) node_lives: Vec<(Micros, Micros)>,
    /// Promises other than bounds that were broken.
    pub(crate) broken: Vec<String>,
}
