//! How a quota is counted: one file per algorithm, one shape for all of them.
//!
//! An algorithm is a [`Meter`]: numbers that were checked once, and a small integer state per
//! client. [`Limit`] is any of them, and what the rest of Tidegate speaks of. Adding one means a
//! file here, a variant in [`Algorithm`], [`Limit`] and perhaps [`State`], and a vector file.

mod bound;
mod client_states;
pub mod concurrency;
pub mod fixed_window;
pub mod flat_bucket;
pub mod leaky_bucket;
mod leasable;
mod limit;
mod pace;
pub mod sliding_log;
pub mod sliding_window;
mod terms;
pub mod token_bucket;

use std::fmt;

use crate::outcome::{Outcome, Slip, Verdict};
use crate::quota::Quota;
use crate::time::{Span, Timestamp};

pub use bound::Bound;
pub use client_states::ClientStates;
pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use flat_bucket::FlatBucket;
pub use leaky_bucket::LeakyBucket;
pub(crate) use leasable::LeasableAlgorithm;
pub use limit::{Limit, State};
pub use pace::Due;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use terms::Terms;
pub use token_bucket::TokenBucket;

/// Which algorithm counts a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A bucket that refills continuously and starts full.
    #[default]
    TokenBucket,
    /// A queue that is drained at a constant rate.
    LeakyBucket {
        /// How many may wait for their slot.
        queue: u64,
    },
    /// A counter per window, windows aligned to the Unix epoch.
    FixedWindow,
    /// Two counters, the older one weighted by how much of it the trailing window still covers.
    SlidingWindow,
    /// Every admission of the trailing window, remembered.
    SlidingLog,
    /// How many are in flight at once.
    Concurrency {
        /// After how long a holder that does not renew loses its slot.
        hold: Span,
    },
}

impl Algorithm {
    /// The name a rules file uses.
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

/// Counts one client's spending against one quota.
///
/// `advance` comes first; the other methods expect a state advanced to the instant they are given.
/// Costs are at least 1 and at most `capacity` wherever a cost is taken.
pub trait Meter: Sized {
    /// What is remembered of one client. The default says: nothing spent.
    type State: Clone + Default + Into<State>;

    /// This algorithm's own state, if that is what `state` holds.
    fn own(state: &mut State) -> Option<&mut Self::State>;

    /// The quota as it was given.
    fn quota(&self) -> &Quota;

    /// The most that can be spent at once.
    fn capacity(&self) -> u64;

    /// What is admitted at the most.
    fn bound(&self) -> Bound;

    /// Brings the state to `now`, dropping what is over, and returns the client's own time, which
    /// never runs backwards.
    fn advance(&self, state: &mut Self::State, now: Timestamp) -> Timestamp;

    /// Whether `cost` can be spent at `now`.
    fn admits(&self, state: &Self::State, now: Timestamp, cost: u64) -> bool;

    /// Spends `cost`, which was admitted, and returns what a refund of it has to name.
    fn spend(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Slip;

    /// How much could be spent at `now`.
    fn remaining(&self, state: &Self::State, now: Timestamp) -> u64;

    /// The first instant, `now` or later, that admits `cost` if nobody else comes.
    fn admits_at(&self, state: &Self::State, now: Timestamp, cost: u64) -> Timestamp;

    /// From when on all of the capacity can be spent if nobody comes.
    fn full_at(&self, state: &Self::State) -> Timestamp {
        self.whole_at(state)
    }

    /// From when on the state says no more than the default one.
    fn whole_at(&self, state: &Self::State) -> Timestamp;

    /// How long whoever is admitted at `now` has to wait for its turn.
    fn delay(&self, _state: &Self::State, _now: Timestamp) -> Span {
        Span::ZERO
    }

    /// Takes a spent `cost` back, as far as it still counts. Whether anything was taken back.
    fn refund(&self, state: &mut Self::State, now: Timestamp, slip: &Slip, cost: u64) -> bool;

    /// What a refund of the newest spending has to name. Only spending that a refund can still reach
    /// matters: with none, the slip gives nothing back.
    fn newest(&self, state: &Self::State, now: Timestamp) -> Slip;

    /// Gives back up to `cost` of what was spent last, without a slip. Whether anything was given back.
    fn give_back(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> bool {
        let slip = self.newest(state, now);
        self.refund(state, now, &slip, cost)
    }

    /// What a client of the limit `old` starts with under this one: never more than it had.
    fn adopt(&self, old: &Self, state: &Self::State, now: Timestamp) -> Self::State;

    /// Runs `work` on this algorithm's own state; a state that another one left counts as none.
    #[inline]
    fn on<R>(&self, state: &mut State, work: impl FnOnce(&mut Self::State) -> R) -> R {
        if Self::own(state).is_none() {
            *state = Self::State::default().into();
        }
        match Self::own(state) {
            Some(own) => work(own),
            None => work(&mut Self::State::default()),
        }
    }

    /// Spends `cost` if it fits, and tells how things stand. A cost of 0 only looks.
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
        let slip = self.spend(state, own_now, cost);
        Outcome {
            limit: self.capacity(),
            remaining: self.remaining(state, own_now),
            reset_after: self.full_at(state).since(now),
            verdict: Verdict::Allow { delay, slip: Some(slip) },
        }
    }

    /// Answers what [`charge`](Self::charge) would, and spends nothing. A cost of 0 asks for 1.
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
            verdict: Verdict::Allow { delay: self.delay(state, own_now), slip: None },
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
