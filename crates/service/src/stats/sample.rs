//! Everything that was counted until some moment, for who compares it with another.

use std::sync::Arc;

use tidegate_api::{CheckCounts, PerOutcome};
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
    pub(crate) checks: CheckCounts,
    /// Checks by how long they took, of all listeners.
    durations: [u64; BOUNDS.len() + 1],
    /// What each rule said.
    pub rules: Vec<(Arc<str>, PerOutcome<u64>)>,
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
        let checks = CheckCounts {
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

/// Returns the checks that were counted after `earlier`.
pub(crate) fn checks_since(now: &CheckCounts, earlier: &CheckCounts) -> CheckCounts {
    CheckCounts {
        allowed: since(now.allowed, earlier.allowed),
        denied: since(now.denied, earlier.denied),
        blocked: since(now.blocked, earlier.blocked),
        unavailable: since(now.unavailable, earlier.unavailable),
        invalid: since(now.invalid, earlier.invalid),
    }
}

/// Returns the number of each outcome.
pub(crate) fn per_outcome(number: impl Fn(Answer) -> u64) -> PerOutcome<u64> {
    PerOutcome {
        allowed: number(Answer::Allowed),
        denied: number(Answer::Denied),
        shadow_allowed: number(Answer::ShadowAllowed),
        shadow_denied: number(Answer::ShadowDenied),
        failed_open: number(Answer::FailedOpen),
        failed_closed: number(Answer::FailedClosed),
        blocked: number(Answer::Blocked),
    }
}

/// How far a counter got. One that stands lower than before began anew with its rule.
pub fn since(now: u64, earlier: u64) -> u64 {
    now.checked_sub(earlier).unwrap_or(now)
}
