//! Everything that was counted until some moment, for who compares it with another.

use std::sync::Arc;

use serde::Serialize;
use tidegate_core::CallStatus;

use crate::active_rules::ActiveRules;
use crate::call::Protocol;
use crate::stats::latency::BOUNDS;
use crate::stats::quantile::quantile;
use crate::stats::rule_counts::Answer;
use crate::stats::{BLOCKED, ServerCounters};

/// What had been counted at some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub(crate) checks: Checks,
    /// Checks by how long they took, of all doors.
    durations: [u64; BOUNDS.len() + 1],
    /// What each rule said.
    pub rules: Vec<(Arc<str>, PerOutcome<u64>)>,
}

/// Checks of all doors by their answer, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checks {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) blocked: u64,
    pub(crate) unavailable: u64,
    /// Calls that could not be understood, or were about what is not there.
    pub(crate) invalid: u64,
}

/// Something for each answer that a rule may give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PerOutcome<T> {
    pub(crate) allowed: T,
    pub(crate) denied: T,
    pub(crate) shadow_allowed: T,
    pub(crate) shadow_denied: T,
    pub(crate) failed_open: T,
    pub(crate) failed_closed: T,
    pub(crate) blocked: T,
}

impl ServerCounters {
    /// What has been counted so far.
    pub fn sample(&self, active_rules: &ActiveRules) -> Sample {
        let total = |counter| -> u64 {
            Protocol::ALL
                .into_iter()
                .map(|protocol| self.checks.total(protocol as usize, counter))
                .sum()
        };
        let ended = |ending: CallStatus| total(ending as usize);
        let checks = Checks {
            allowed: ended(CallStatus::Allowed),
            denied: ended(CallStatus::Denied),
            blocked: total(BLOCKED),
            unavailable: ended(CallStatus::Unavailable),
            invalid: ended(CallStatus::Invalid)
                + ended(CallStatus::UnknownRule)
                + ended(CallStatus::Gone),
        };
        Sample {
            checks,
            durations: self.durations.buckets(Protocol::ALL.len()),
            rules: self.rules.said(active_rules.counter_ids(), active_rules.limiter().rules()),
        }
    }
}

impl Sample {
    /// How long so many in a hundred checks took at most since an earlier sample, in microseconds; nothing
    /// if there were none.
    pub(crate) fn micros_since(&self, earlier: &Self, percent: u64) -> Option<u64> {
        let counts: [u64; BOUNDS.len() + 1] =
            std::array::from_fn(|bucket| since(self.durations[bucket], earlier.durations[bucket]));
        quantile(&BOUNDS, &counts, percent)
    }
}

impl Checks {
    /// How many there were after `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            allowed: since(self.allowed, earlier.allowed),
            denied: since(self.denied, earlier.denied),
            blocked: since(self.blocked, earlier.blocked),
            unavailable: since(self.unavailable, earlier.unavailable),
            invalid: since(self.invalid, earlier.invalid),
        }
    }
}

impl<T> PerOutcome<T> {
    /// Asks about each answer.
    pub(crate) fn of(tell: impl Fn(Answer) -> T) -> Self {
        Self {
            allowed: tell(Answer::Allowed),
            denied: tell(Answer::Denied),
            shadow_allowed: tell(Answer::ShadowAllowed),
            shadow_denied: tell(Answer::ShadowDenied),
            failed_open: tell(Answer::FailedOpen),
            failed_closed: tell(Answer::FailedClosed),
            blocked: tell(Answer::Blocked),
        }
    }

    /// The same of something else.
    pub(crate) fn map<U>(self, make: impl Fn(T) -> U) -> PerOutcome<U> {
        PerOutcome {
            allowed: make(self.allowed),
            denied: make(self.denied),
            shadow_allowed: make(self.shadow_allowed),
            shadow_denied: make(self.shadow_denied),
            failed_open: make(self.failed_open),
            failed_closed: make(self.failed_closed),
            blocked: make(self.blocked),
        }
    }
}

impl PerOutcome<u64> {
    /// How often each was given after `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            allowed: since(self.allowed, earlier.allowed),
            denied: since(self.denied, earlier.denied),
            shadow_allowed: since(self.shadow_allowed, earlier.shadow_allowed),
            shadow_denied: since(self.shadow_denied, earlier.shadow_denied),
            failed_open: since(self.failed_open, earlier.failed_open),
            failed_closed: since(self.failed_closed, earlier.failed_closed),
            blocked: since(self.blocked, earlier.blocked),
        }
    }

    /// Whether any was given.
    pub(crate) fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// How far a counter got. One that stands lower than before began anew with its rule.
pub fn since(now: u64, earlier: u64) -> u64 {
    now.checked_sub(earlier).unwrap_or(now)
}
