//! Algorithms that count a quota: one file for each, one trait for all of them.
//!
//! An algorithm implements [`Meter`]: parameters that are validated once, and a small integer state per client. The
//! rest of Tidegate uses [`Limit`], which is any of them. A new algorithm needs a file here, a variant in
//! [`Algorithm`], [`Limit`] and perhaps [`State`], and a vector file.

mod bound;
mod client_states;
pub mod concurrency;
pub mod fixed_window;
pub mod flat_bucket;
mod heap_use;
pub mod leaky_bucket;
mod leasable;
mod limit;
mod refill_rate;
pub mod sliding_log;
pub mod sliding_window;
mod terms;
pub mod token_bucket;

use std::fmt;

use crate::outcome::{Outcome, RefundToken, Verdict};
use crate::quota::Quota;
use crate::time::{Span, Timestamp};

pub use bound::Bound;
pub use client_states::ClientStates;
pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use flat_bucket::FlatBucket;
pub use heap_use::HeapUse;
pub use leaky_bucket::LeakyBucket;
pub(crate) use leasable::LeasableAlgorithm;
pub use limit::{Limit, State};
pub use refill_rate::PreciseTime;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use terms::ChargeTerms;
pub use token_bucket::TokenBucket;

/// An algorithm that counts a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A bucket that refills continuously and starts full.
    #[default]
    TokenBucket,
    /// A queue that is drained at a constant rate.
    LeakyBucket {
        /// Number of requests that may wait for their slot.
        queue: u64,
    },
    /// A counter per window, windows aligned to the Unix epoch.
    FixedWindow,
    /// Two counters. The older one is weighted by the part of its window that the trailing window still covers.
    SlidingWindow,
    /// A log of every admission in the trailing window.
    SlidingLog,
    /// A count of requests in flight.
    Concurrency {
        /// Time after which a slot expires unless it is renewed.
        hold: Span,
    },
}

impl Algorithm {
    /// Returns the name that rules files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::Concurrency { .. } => "concurrency",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An algorithm with its parameters, which counts the usage of one client at a time.
///
/// Callers call `advance` first: the other methods expect a state that was advanced to the instant they are given. A
/// cost is from 1 to `capacity`, unless the method allows others.
pub trait Meter: Sized {
    /// The state of one client. The default is a client that has spent nothing.
    type State: Clone + Default + Into<State>;

    /// Returns this algorithm's own state; `None` if `state` belongs to another algorithm.
    fn own_state(state: &mut State) -> Option<&mut Self::State>;

    /// Returns the quota.
    fn quota(&self) -> &Quota;

    /// Returns the most that can be spent at once.
    fn capacity(&self) -> u64;

    /// Returns the most that is admitted.
    fn bound(&self) -> Bound;

    /// Advances the state to `now` and drops what no longer counts. Returns the client's own time, which never runs
    /// backwards.
    fn advance(&self, state: &mut Self::State, now: Timestamp) -> Timestamp;

    /// Returns whether `cost` can be spent at `now`.
    fn admits(&self, state: &Self::State, now: Timestamp, cost: u64) -> bool;

    /// Spends `cost`, which was admitted. Returns the token that refunds it.
    fn spend(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> RefundToken;

    /// Returns the amount that could be spent at `now`.
    fn remaining(&self, state: &Self::State, now: Timestamp) -> u64;

    /// Returns the first instant, `now` or later, that admits `cost` if there are no other requests.
    fn admits_at(&self, state: &Self::State, now: Timestamp, cost: u64) -> Timestamp;

    /// Returns the time from which on the whole capacity can be spent if there are no other requests.
    fn full_at(&self, state: &Self::State) -> Timestamp {
        self.expires_at(state)
    }

    /// Returns the time from which on the state decides like the default one, so that a store can drop it.
    fn expires_at(&self, state: &Self::State) -> Timestamp;

    /// Returns the time that a request admitted at `now` has to wait for its slot.
    fn delay(&self, _state: &Self::State, _now: Timestamp) -> Span {
        Span::ZERO
    }

    /// Refunds a spent `cost`, as far as it still counts. Returns whether anything was refunded.
    fn refund(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool;

    /// Returns the token that refunds the latest charge. If no charge can be refunded any more, the token refunds
    /// nothing.
    fn latest_refund_token(&self, state: &Self::State, now: Timestamp) -> RefundToken;

    /// Refunds up to `cost` of the latest charges, without a refund token. Returns whether anything was refunded.
    fn refund_latest(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> bool {
        let refund_token = self.latest_refund_token(state, now);
        self.refund(state, now, &refund_token, cost)
    }

    /// Converts a client's state under the limit `old` to this one. The client never gets more than it had.
    fn migrate(&self, old: &Self, state: &Self::State, now: Timestamp) -> Self::State;

    /// Runs `work` on this algorithm's own state. The state of another algorithm is replaced by a fresh one.
    #[inline]
    fn with_own_state<R>(&self, state: &mut State, work: impl FnOnce(&mut Self::State) -> R) -> R {
        if Self::own_state(state).is_none() {
            *state = Self::State::default().into();
        }
        match Self::own_state(state) {
            Some(own) => work(own),
            None => work(&mut Self::State::default()),
        }
    }

    /// Spends `cost` if it fits, and returns the outcome. A cost of 0 only peeks.
    #[inline]
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Outcome {
        if cost == 0 || cost > self.capacity() {
            return self.peek(state, now, cost);
        }
        let own_now = self.advance(state, now);
        if !self.admits(state, own_now, cost) {
            return self.denied(state, now, own_now, cost);
        }
        let delay = self.delay(state, own_now);
        let refund_token = self.spend(state, own_now, cost);
        Outcome {
            limit: self.capacity(),
            remaining: self.remaining(state, own_now),
            reset_after: self.full_at(state).since(now),
            verdict: Verdict::Allow { delay, refund_token: Some(refund_token) },
        }
    }

    /// Returns the outcome that [`charge`](Self::charge) would have, and spends nothing. A cost of 0 counts as 1.
    #[inline]
    fn peek(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Outcome {
        let cost = cost.max(1);
        let own_now = self.advance(state, now);
        if cost > self.capacity() {
            return Outcome {
                limit: self.capacity(),
                remaining: self.remaining(state, own_now),
                reset_after: self.full_at(state).since(now),
                verdict: Verdict::Deny { retry_after: None },
            };
        }
        if !self.admits(state, own_now, cost) {
            return self.denied(state, now, own_now, cost);
        }
        Outcome {
            limit: self.capacity(),
            remaining: self.remaining(state, own_now),
            reset_after: self.full_at(state).since(now),
            verdict: Verdict::Allow { delay: self.delay(state, own_now), refund_token: None },
        }
    }

    #[doc(hidden)]
    #[inline]
    fn denied(
        &self,
        state: &Self::State,
        now: Timestamp,
        own_now: Timestamp,
        cost: u64,
    ) -> Outcome {
        let wait = self.admits_at(state, own_now, cost).since(now);
        Outcome {
            limit: self.capacity(),
            remaining: self.remaining(state, own_now),
            reset_after: self.full_at(state).since(now),
            verdict: Verdict::Deny { retry_after: Some(wait.max(Span::MICROSECOND)) },
        }
    }
}
