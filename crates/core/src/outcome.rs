//! The outcome of one limit for one request.

use crate::time::{Span, Timestamp};

/// The outcome of one limit for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The most that can be spent at once.
    pub limit: u64,
    /// The amount that could still be spent now.
    pub remaining: u64,
    /// The time until the limit is unused again without further requests.
    pub reset_after: Span,
    /// The verdict on the request.
    pub verdict: Verdict,
}

/// The verdict on a request, with the details of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Allow {
        /// The wait for its slot; only a leaky bucket has one.
        delay: Span,
        /// The token of a refund; `None` when nothing was spent.
        refund_token: Option<RefundToken>,
    },
    /// The request is denied.
    Deny {
        /// The wait until this cost would be admitted without other requests, never zero; `None` when
        /// it is more than the limit ever allows.
        retry_after: Option<Span>,
    },
}

/// Identifies a charge of a client, for its refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundToken {
    /// The time of the charge, by the store's clock. Of slots in flight it is their id, which is unique
    /// among those of one client.
    pub at: Timestamp,
    /// The end of its window, slot or hold, or when its bucket was to be full again.
    pub until: Timestamp,
    /// Parts of a microsecond after `until`, for buckets.
    pub parts: u64,
}

impl Outcome {
    /// Returns whether the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allow { .. })
    }

    /// Returns the wait of a denied request; `None` when it may pass, or never will.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.verdict {
            Verdict::Deny { retry_after } => retry_after,
            Verdict::Allow { .. } => None,
        }
    }

    /// Returns the wait of an admitted request for its slot.
    #[must_use]
    pub const fn delay(&self) -> Span {
        match self.verdict {
            Verdict::Allow { delay, .. } => delay,
            Verdict::Deny { .. } => Span::ZERO,
        }
    }

    /// Returns the token of a refund, if anything was spent.
    #[must_use]
    pub const fn refund_token(&self) -> Option<RefundToken> {
        match self.verdict {
            Verdict::Allow { refund_token, .. } => refund_token,
            Verdict::Deny { .. } => None,
        }
    }

    /// Returns the same outcome without its refund token, so that it can't be refunded.
    #[must_use]
    pub const fn non_refundable(mut self) -> Self {
        if let Verdict::Allow { refund_token, .. } = &mut self.verdict {
            *refund_token = None;
        }
        self
    }

    /// Returns whether this outcome is stricter than `other`: a denial before an allowance,
    /// of two denials the longer wait, of two allowances the one that leaves less, then the one that
    /// takes longer to be unused.
    #[must_use]
    pub fn is_stricter_than(&self, other: &Self) -> bool {
        match (&self.verdict, &other.verdict) {
            (Verdict::Deny { retry_after: mine }, Verdict::Deny { retry_after: theirs }) => {
                match (mine, theirs) {
                    (None, theirs) => theirs.is_some(),
                    (Some(_), None) => false,
                    (Some(mine), Some(theirs)) => mine > theirs,
                }
            }
            (Verdict::Deny { .. }, Verdict::Allow { .. }) => true,
            (Verdict::Allow { .. }, Verdict::Deny { .. }) => false,
            (Verdict::Allow { .. }, Verdict::Allow { .. }) => {
                (self.remaining, other.reset_after) < (other.remaining, self.reset_after)
            }
        }
    }
}

/// Returns the position of the strictest of several outcomes, the first of equals; `None` for none.
#[must_use]
pub fn strictest<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> Option<usize> {
    let mut best: Option<(usize, &Outcome)> = None;
    for (index, outcome) in outcomes.into_iter().enumerate() {
        if best.is_none_or(|(_, best)| outcome.is_stricter_than(best)) {
            best = Some((index, outcome));
        }
    }
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(remaining: u64, reset: u64) -> Outcome {
        let verdict = Verdict::Allow { delay: Span::ZERO, refund_token: None };
        Outcome { limit: 100, remaining, reset_after: Span::from_secs(reset), verdict }
    }

    fn deny(seconds: Option<u64>) -> Outcome {
        let verdict = Verdict::Deny { retry_after: seconds.map(Span::from_secs) };
        Outcome { limit: 100, remaining: 0, reset_after: Span::SECOND, verdict }
    }

    #[test]
    fn longest_wait_or_least_remaining_is_strictest() {
        assert_eq!(strictest([]), None);
        assert_eq!(strictest(&[allow(5, 1), allow(3, 1), allow(4, 1)]), Some(1));
        assert_eq!(strictest(&[allow(3, 1), allow(3, 9)]), Some(1));
        assert_eq!(strictest(&[allow(3, 1), allow(3, 1)]), Some(0));
        assert_eq!(strictest(&[allow(0, 1), deny(Some(1)), deny(Some(7))]), Some(2));
        assert_eq!(strictest(&[deny(Some(900)), deny(None), deny(Some(7))]), Some(1));
    }
}
