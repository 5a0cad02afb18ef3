//! Samples of all counters, and differences of two samples.

use std::sync::Arc;

use tidegate_api::{CheckCounts, PerOutcome};
use tidegate_core::CallStatus;

use crate::active_rules::ActiveRules;
use crate::call::Protocol;
use crate::stats::latency::BOUNDS_MICROS;
use crate::stats::quantile::quantile;
use crate::stats::rule_counts::OutcomeKind;
use crate::stats::{ALLOW_LISTED_COUNTER, BLOCKED_COUNTER, ServerCounters};

/// The counters of the process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSample {
    pub(crate) checks: CheckCounts,
    /// Checks of all listeners by bucket of the duration histogram.
    durations: [u64; BOUNDS_MICROS.len() + 1],
    /// The outcomes of each rule.
    pub rules: Vec<(Arc<str>, PerOutcome<u64>)>,
}

impl ServerCounters {
    /// Returns a sample of the counters.
    pub fn sample(&self, active_rules: &ActiveRules) -> CounterSample {
        let total = |counter| -> u64 {
            Protocol::ALL
                .into_iter()
                .map(|protocol| self.checks.total(protocol as usize, counter))
                .sum()
        };
        let with_status = |status: CallStatus| total(status as usize);
        let checks = CheckCounts {
            allowed: with_status(CallStatus::Allowed) + total(ALLOW_LISTED_COUNTER),
            denied: with_status(CallStatus::Denied),
            blocked: total(BLOCKED_COUNTER),
            unavailable: with_status(CallStatus::Unavailable),
            invalid: with_status(CallStatus::Invalid)
                + with_status(CallStatus::UnknownRule)
                + with_status(CallStatus::Gone),
        };
        CounterSample {
            checks,
            durations: self.durations.buckets(Protocol::ALL.len()),
            rules: self.rules.totals(active_rules.counter_ids(), active_rules.limiter().rules()),
        }
    }
}

impl CounterSample {
    /// Returns a percentile of the duration of checks counter_delta an earlier sample, in microseconds; `None` if there were no
    /// checks.
    pub(crate) fn percentile_micros_since(&self, earlier: &Self, percent: u64) -> Option<u64> {
        let counts: [u64; BOUNDS_MICROS.len() + 1] = std::array::from_fn(|bucket| {
            counter_delta(self.durations[bucket], earlier.durations[bucket])
        });
        quantile(&BOUNDS_MICROS, &counts, percent)
    }
}

/// Returns the checks that were counted between two samples.
pub(crate) fn checks_delta(now: &CheckCounts, earlier: &CheckCounts) -> CheckCounts {
    CheckCounts {
        allowed: counter_delta(now.allowed, earlier.allowed),
        denied: counter_delta(now.denied, earlier.denied),
        blocked: counter_delta(now.blocked, earlier.blocked),
        unavailable: counter_delta(now.unavailable, earlier.unavailable),
        invalid: counter_delta(now.invalid, earlier.invalid),
    }
}

/// Returns the numbers of all outcomes.
pub(crate) fn per_outcome(number: impl Fn(OutcomeKind) -> u64) -> PerOutcome<u64> {
    PerOutcome {
        allowed: number(OutcomeKind::Allowed),
        denied: number(OutcomeKind::Denied),
        shadow_allowed: number(OutcomeKind::ShadowAllowed),
        shadow_denied: number(OutcomeKind::ShadowDenied),
        failed_open: number(OutcomeKind::FailedOpen),
        failed_closed: number(OutcomeKind::FailedClosed),
        blocked: number(OutcomeKind::Blocked),
    }
}

/// Returns the increase of a counter. A counter below its earlier value was reset together with its rule, so its whole
/// value is the increase.
pub(crate) fn counter_delta(now: u64, earlier: u64) -> u64 {
    now.checked_sub(earlier).unwrap_or(now)
}
