//! The books: what was asked and answered, entered once per call.

use tidegate::{Decision, Limiter, Request, Ruling, Timestamp};

use super::{Ending, Via};
use crate::metrics::{Metrics, Sources};
use crate::store::AnyStore;
use crate::top::Top;

/// Most rules of one check whose client is counted among the busiest.
const RANKED: usize = 4;

/// What a server knows of the calls that it has answered.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) metrics: Metrics,
    pub(crate) top: Top,
}

/// When a call began and ended, and which door it came through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) via: Via,
    pub(super) began: Timestamp,
    pub(super) at: Timestamp,
}

impl Books {
    pub(super) fn new(limiter: &Limiter<AnyStore>) -> Self {
        Self { metrics: Metrics::new(limiter.rules(), limiter.clock().now()), top: Top::new() }
    }

    /// Enters a call: one request and its decision, or several that were decided together. Of those the
    /// strictest is how the call ended.
    #[inline]
    pub(super) fn enter<'d, 'q: 'd>(
        &self,
        limiter: &Limiter<AnyStore>,
        answered: Answered,
        decided: impl IntoIterator<Item = (&'d Request<'q>, &'d Decision)>,
    ) {
        let (mut ending, mut blocked) = (Ending::Allowed, false);
        for (request, decision) in decided {
            ending = ending.or(Ending::of(decision.ruling()));
            blocked |= decision.block().is_some();
            self.decided(limiter, request, decision, answered.at);
        }
        let took = answered.at.since(answered.began);
        self.metrics.answered(answered.via, ending, blocked, took);
    }

    #[inline]
    fn decided(
        &self,
        limiter: &Limiter<AnyStore>,
        request: &Request<'_>,
        decision: &Decision,
        at: Timestamp,
    ) {
        let rules = limiter.rules();
        self.metrics.decided(rules, decision);
        for policy in decision.policies().iter().take(RANKED) {
            if let Some(place) = self.metrics.place(&policy.rule)
                && let Some(rule) = rules.rules().get(place)
            {
                let denied = !policy.outcome.is_allowed();
                self.top.note(place, rule, request, denied, at, limiter.blocks());
            }
        }
    }

    /// Where the rest of the metrics comes from.
    pub(crate) fn sources<'a>(&self, limiter: &'a Limiter<AnyStore>, ready: bool) -> Sources<'a> {
        Sources { limiter, ready, missed: self.top.missed() }
    }
}

impl Ending {
    pub(super) const fn of(ruling: Ruling) -> Self {
        match ruling {
            Ruling::Allow => Self::Allowed,
            Ruling::Deny => Self::Denied,
            Ruling::Unavailable => Self::Unavailable,
        }
    }

    /// The stricter of two decisions: who is over its share is told so, also when another rule could
    /// not be asked.
    const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Denied, _) | (_, Self::Allowed) => self,
            (Self::Unavailable, Self::Unavailable) => self,
            _ => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_has_the_last_word() {
        use Ending::{Allowed, Denied, Unavailable};
        for (one, other, both) in [
            (Allowed, Allowed, Allowed),
            (Allowed, Denied, Denied),
            (Allowed, Unavailable, Unavailable),
            (Denied, Unavailable, Denied),
        ] {
            assert_eq!((one.or(other), other.or(one)), (both, both));
        }
    }
}
