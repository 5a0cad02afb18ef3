//! Any limit: what the rest of Tidegate speaks of, whichever algorithm counts it.

use std::fmt;

use super::{
    Algorithm, Bound, Concurrency, Due, FixedWindow, LeakyBucket, Meter, SlidingLog, SlidingWindow,
    TokenBucket, concurrency, fixed_window, sliding_log, sliding_window, token_bucket,
};
use crate::decision::{Outcome, Slip};
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

/// A quota and the algorithm that counts it, checked and ready to decide.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Quota, Timestamp};
///
/// let limit = Limit::new(Algorithm::FixedWindow, Quota::per_second(20))?;
/// let mut client = limit.fresh();
/// let outcome = limit.charge(&mut client, Timestamp::from_secs(1_000), 20);
/// assert!(outcome.is_allowed());
/// assert_eq!(outcome.remaining, 0);
/// assert!(!limit.charge(&mut client, Timestamp::from_secs(1_000), 1).is_allowed());
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`LeakyBucket`].
    LeakyBucket(LeakyBucket),
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
    /// See [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// See [`SlidingLog`].
    SlidingLog(SlidingLog),
    /// See [`Concurrency`].
    Concurrency(Concurrency),
}

/// What is remembered of one client under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Of a token bucket.
    Tokens(token_bucket::Level),
    /// Of a leaky bucket: the end of the last slot.
    Queue(Due),
    /// Of a fixed window.
    Fixed(fixed_window::Count),
    /// Of a sliding window.
    Sliding(sliding_window::Counts),
    /// Of a sliding log.
    Log(sliding_log::Log),
    /// Of a limit in flight.
    Slots(concurrency::Slots),
}

/// Evaluates `$body` with whichever meter the limit has.
macro_rules! any_meter {
    ($limit:expr, $meter:ident => $body:expr) => {
        match $limit {
            Limit::TokenBucket($meter) => $body,
            Limit::LeakyBucket($meter) => $body,
            Limit::FixedWindow($meter) => $body,
            Limit::SlidingWindow($meter) => $body,
            Limit::SlidingLog($meter) => $body,
            Limit::Concurrency($meter) => $body,
        }
    };
}

/// Runs `work` with a meter and its own state.
#[inline]
fn with<M: Meter, R>(meter: &M, state: &mut State, work: impl FnOnce(&M, &mut M::State) -> R) -> R {
    meter.on(state, |own| work(meter, own))
}

impl Limit {
    /// Checks that the quota suits the algorithm and that every store can count it exactly.
    ///
    /// # Errors
    /// The number that is out of range, or a burst or queue that the algorithm does not have.
    pub fn new(algorithm: Algorithm, quota: Quota) -> Result<Self, QuotaError> {
        let in_flight = matches!(algorithm, Algorithm::Concurrency { .. });
        if quota.is_in_flight() && !in_flight {
            return Err(QuotaError::InFlight { algorithm: algorithm.name() });
        }
        Ok(match algorithm {
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::new(quota)?),
            Algorithm::LeakyBucket { queue } => Self::LeakyBucket(LeakyBucket::new(quota, queue)?),
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::new(quota)?),
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(quota)?),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::new(quota)?),
            Algorithm::Concurrency { hold } => Self::Concurrency(Concurrency::new(quota, hold)?),
        })
    }

    /// The algorithm, with its queue or hold if it has one.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::TokenBucket(_) => Algorithm::TokenBucket,
            Self::LeakyBucket(bucket) => Algorithm::LeakyBucket { queue: bucket.queue() },
            Self::FixedWindow(_) => Algorithm::FixedWindow,
            Self::SlidingWindow(_) => Algorithm::SlidingWindow,
            Self::SlidingLog(_) => Algorithm::SlidingLog,
            Self::Concurrency(meter) => Algorithm::Concurrency { hold: meter.hold() },
        }
    }

    /// The quota as it was given.
    #[must_use]
    pub fn quota(&self) -> &Quota {
        any_meter!(self, meter => meter.quota())
    }

    /// The most that can be spent at once: a bucket's burst, else the amount.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        any_meter!(self, meter => meter.capacity())
    }

    /// What this limit lets through at the most.
    #[must_use]
    pub fn bound(&self) -> Bound {
        any_meter!(self, meter => meter.bound())
    }

    /// The state of a client that has spent nothing.
    #[must_use]
    pub fn fresh(&self) -> State {
        fn fresh<M: Meter>(_: &M) -> State {
            M::State::default().into()
        }
        any_meter!(self, meter => fresh(meter))
    }

    /// Whether `cost` fits at `now`. A cost of 0 asks for 1.
    pub fn admits(&self, state: &mut State, now: Timestamp, cost: u64) -> bool {
        fn admits<M: Meter>(meter: &M, state: &mut M::State, now: Timestamp, cost: u64) -> bool {
            let cost = cost.max(1);
            let own_now = meter.advance(state, now);
            cost <= meter.capacity() && meter.admits(state, own_now, cost)
        }
        any_meter!(self, meter => with(meter, state, |meter, own| admits(meter, own, now, cost)))
    }

    /// Spends `cost` if it fits, and tells how things stand. A cost of 0 only looks.
    pub fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Outcome {
        any_meter!(self, meter => with(meter, state, |meter, own| meter.charge(own, now, cost)))
    }

    /// Answers what [`charge`](Self::charge) would, and spends nothing. A cost of 0 asks for 1.
    pub fn peek(&self, state: &mut State, now: Timestamp, cost: u64) -> Outcome {
        any_meter!(self, meter => with(meter, state, |meter, own| meter.peek(own, now, cost)))
    }

    /// Takes back a charge of `cost` that was made under the limit `charged`, as far as it still
    /// counts: never above full, never from another window than its own. Whether anything was
    /// taken back.
    ///
    /// A bucket whose numbers changed since gives nothing back, nor does a window of another length. Slots
    /// in flight are released under any such limit, and only by the slip that names them.
    pub fn refund(
        &self,
        state: &mut State,
        now: Timestamp,
        charged: &Self,
        slip: &Slip,
        cost: u64,
    ) -> bool {
        fn refund<M: Meter>(
            meter: &M,
            state: &mut M::State,
            now: Timestamp,
            slip: &Slip,
            cost: u64,
        ) -> bool {
            let own_now = meter.advance(state, now);
            meter.refund(state, own_now, slip, cost)
        }
        self.shares_state_with(charged)
            && any_meter!(self, meter => with(meter, state, |meter, own| refund(meter, own, now, slip, cost)))
    }

    /// Gives back up to `cost` of what was spent last under the limit `charged`, for who has no slip:
    /// at most that limit's capacity at once, never above full, and from no window but the current
    /// one. Whether anything was given back.
    ///
    /// A leaky bucket gives back its last slots, all that the cost takes or none: those that have begun
    /// were released. Slots in flight are given back by name only. As for a [`refund`](Self::refund), a bucket whose numbers changed since gives
    /// nothing back, nor does a window of another length.
    pub fn give_back(&self, state: &mut State, now: Timestamp, charged: &Self, cost: u64) -> bool {
        fn give_back<M: Meter>(meter: &M, state: &mut M::State, now: Timestamp, cost: u64) -> bool {
            let own_now = meter.advance(state, now);
            meter.give_back(state, own_now, cost)
        }
        let cost = cost.min(charged.capacity());
        self.shares_state_with(charged)
            && any_meter!(self, meter => with(meter, state, |meter, own| give_back(meter, own, now, cost)))
    }

    /// Returns whether a client has one state under both limits, so that a charge under one can be
    /// refunded under the other: windows of one length, all limits in flight, and equal buckets.
    #[must_use]
    pub fn shares_state_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::TokenBucket(mine), Self::TokenBucket(theirs)) => mine == theirs,
            (Self::LeakyBucket(mine), Self::LeakyBucket(theirs)) => mine.shares_slots_with(theirs),
            (Self::FixedWindow(_), Self::FixedWindow(_))
            | (Self::SlidingWindow(_), Self::SlidingWindow(_))
            | (Self::SlidingLog(_), Self::SlidingLog(_)) => {
                self.quota().window() == other.quota().window()
            }
            (Self::Concurrency(_), Self::Concurrency(_)) => true,
            _ => false,
        }
    }

    /// The part of this limit that is the `index`-th of `of` nodes' own: shares add up to the whole.
    ///
    /// A node whose part of the amount or of the burst is nothing admits nothing.
    #[must_use]
    pub fn share(&self, index: u64, of: u64) -> Self {
        let of = of.max(1);
        let part = |whole: u64| whole / of + u64::from(index < whole % of);
        let quota = self.quota();
        let burst = quota.explicit_burst().map(part);
        let amount = if burst == Some(0) { 0 } else { part(quota.amount()) };
        let algorithm = match self.algorithm() {
            // A queue of so many has room for one more: that one is shared out too.
            Algorithm::LeakyBucket { queue } => {
                Algorithm::LeakyBucket { queue: part(queue.saturating_add(1)).saturating_sub(1) }
            }
            other => other,
        };
        let per = |amount| match quota.is_in_flight() {
            true => Quota::in_flight(amount),
            false => Quota::per(amount, quota.window()),
        };
        let whole = per(amount);
        let shared = match burst.filter(|_| amount > 0) {
            Some(burst) => whole.burst(burst),
            None => whole,
        };
        // A smaller amount refills a burst more slowly, perhaps too slowly to be counted.
        let share = Self::new(algorithm, shared)
            .or_else(|_| Self::new(algorithm, per(0)))
            .unwrap_or_else(|_| self.clone());
        let patience = match self {
            Self::LeakyBucket(bucket) => bucket.patience(),
            _ => None,
        };
        patience.and_then(|patience| share.waiting_at_most(patience)).unwrap_or(share)
    }

    /// From when on the state says no more than a fresh one.
    pub fn whole_at(&self, state: &mut State) -> Timestamp {
        any_meter!(self, meter => with(meter, state, |meter, own| meter.whole_at(own)))
    }

    /// What a client of the limit `old` starts with under this one.
    ///
    /// A token bucket keeps the fraction that is used, a window keeps its count, a log its entries, a leaky
    /// bucket its slots. When the algorithm itself changes, so many as were used count as spent just
    /// now. Nobody gains a burst, and nobody loses more than one token to rounding. Slots in flight stay
    /// held; what was spent per time says nothing about who is in flight, nor the other way round, so
    /// between those two a client starts anew.
    #[must_use]
    pub fn adopt(&self, old: &Self, state: &State, now: Timestamp) -> State {
        match (self, old, state) {
            (Self::TokenBucket(new), Self::TokenBucket(old), State::Tokens(own)) => {
                new.adopt(old, own, now).into()
            }
            (Self::LeakyBucket(new), Self::LeakyBucket(old), State::Queue(own)) => {
                new.adopt(old, own, now).into()
            }
            (Self::FixedWindow(new), Self::FixedWindow(old), State::Fixed(own)) => {
                new.adopt(old, own, now).into()
            }
            (Self::SlidingWindow(new), Self::SlidingWindow(old), State::Sliding(own)) => {
                new.adopt(old, own, now).into()
            }
            (Self::SlidingLog(new), Self::SlidingLog(old), State::Log(own)) => {
                new.adopt(old, own, now).into()
            }
            (Self::Concurrency(new), Self::Concurrency(old), State::Slots(own)) => {
                new.adopt(old, own, now).into()
            }
            (Self::Concurrency(_), ..) | (_, Self::Concurrency(_), _) => self.fresh(),
            _ => {
                // What there is no time to wait for is not used up.
                let seen = old.unhurried().peek(&mut state.clone(), now, 0);
                let used = seen.limit.saturating_sub(seen.remaining).min(self.capacity());
                let mut fresh = self.fresh();
                self.charge(&mut fresh, now, used);
                fresh
            }
        }
    }
}

/// `100 per 60 s, burst 200 (token_bucket)`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.quota())?;
        if let Self::LeakyBucket(bucket) = self {
            write!(f, ", queue {}", bucket.queue())?;
        }
        if let Self::Concurrency(meter) = self {
            write!(f, ", hold {}", meter.hold())?;
        }
        write!(f, " ({})", self.algorithm())
    }
}
