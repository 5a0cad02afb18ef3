//! The record of one episode: answers, slots, faults, versions of the rules and node processes.

use std::time::{SystemTime, UNIX_EPOCH};

use super::faults::FaultKind;
use super::scenario::LaneLimit;

/// Microseconds since 1970, or a length of time in microseconds.
pub(crate) type Micros = i64;

/// Returns the time of the machine's wall clock. The time of Redis is this time plus the offset that the test set.
#[allow(
    clippy::disallowed_methods,
    reason = "Redis decides by the wall clock, so the check needs its time"
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
    /// The store was unreachable, and the rule has `on_store_failure: deny`.
    Unavailable,
    /// The store was unreachable, and the rule has `on_store_failure: allow`. Nothing was counted.
    PassedUncounted,
    /// The connection failed. The check may have been charged.
    Lost,
}

/// One check with the time before it was sent and the time after its answer was read. The decision is in between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckAnswer {
    pub(crate) sent: Micros,
    pub(crate) received: Micros,
    pub(crate) cost: u64,
    pub(crate) kind: AnswerKind,
}

/// An acquired slot of a limit in flight.
#[derive(Debug, Clone)]
pub(crate) struct SlotRecord {
    pub(crate) acquire_sent: Micros,
    pub(crate) acquire_received: Micros,
    /// Times of the last successful renewal: sent and received.
    pub(crate) renewed: Option<(Micros, Micros)>,
    /// Times of a renewal that was answered with 410 (gone): sent and received.
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
    /// A replica was promoted; charges on the old master may be lost.
    Failover {
        /// True if the old master could still answer after the promotion.
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
    /// Start of the push.
    pub(crate) pushed: Micros,
    /// Version number, if the push was confirmed.
    pub(crate) number: Option<u64>,
    /// Time when every node had this version or a later one.
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
    /// Offset of the store's clock from the machine's clock before the first fault.
    pub(crate) first_offset: Micros,
    pub(crate) lanes: Vec<LaneHistory>,
    pub(crate) faults: Vec<FaultRecord>,
    pub(crate) versions: Vec<RulesVersion>,
    /// Start and end of every node process.
    pub(crate) process_lifetimes: Vec<(Micros, Micros)>,
    /// Violations of guarantees other than bounds.
    pub(crate) broken: Vec<String>,
}
