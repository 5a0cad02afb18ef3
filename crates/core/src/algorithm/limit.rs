//! A limit with any of the algorithms.

use std::fmt;

use super::{
    Algorithm, Bound, ChargeTerms, Concurrency, FixedWindow, LeakyBucket, LeasableAlgorithm, Meter,
    PreciseTime, SlidingLog, SlidingWindow, TokenBucket, concurrency, fixed_window, sliding_log,
    sliding_window, token_bucket,
};
use crate::outcome::{Outcome, RefundToken};
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// A quota and the algorithm that counts it, validated.
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

/// The state of one client under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The state of a token bucket.
    Tokens(token_bucket::BucketLevel),
    /// The state of a leaky bucket: the end of the last slot.
    Queue(PreciseTime),
    /// The state of a fixed window.
    Fixed(fixed_window::WindowCount),
    /// The state of a sliding window.
    Sliding(sliding_window::WindowCounts),
    /// The state of a sliding log.
    Log(sliding_log::AdmissionLog),
    /// The state of a limit in flight.
    Slots(concurrency::SlotSet),
}

/// Evaluates `$body` with the meter of the limit.
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
    meter.with_own_state(state, |own| work(meter, own))
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

    /// Returns the algorithm, with its queue or hold if it has one.
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

    /// Returns the most that this limit admits.
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

    /// Returns whether `cost` fits at `now`. A cost of 0 counts as 1.
    pub fn admits(&self, state: &mut State, now: Timestamp, cost: u64) -> bool {
        fn admits<M: Meter>(meter: &M, state: &mut M::State, now: Timestamp, cost: u64) -> bool {
            let cost = cost.max(1);
            let own_now = meter.advance(state, now);
            cost <= meter.capacity() && meter.admits(state, own_now, cost)
        }
        any_meter!(self, meter => with(meter, state, |meter, own| admits(meter, own, now, cost)))
    }

    /// Spends `cost` if it fits, and returns the outcome. A cost of 0 only peeks.
    pub fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Outcome {
        any_meter!(self, meter => with(meter, state, |meter, own| meter.charge(own, now, cost)))
    }

    /// Returns the outcome that [`charge`](Self::charge) would have, and spends nothing. A cost of 0 counts as 1.
    pub fn peek(&self, state: &mut State, now: Timestamp, cost: u64) -> Outcome {
        any_meter!(self, meter => with(meter, state, |meter, own| meter.peek(own, now, cost)))
    }

    /// Refunds a charge of `cost` under the limit `charged`, as far as it still counts: never above full, and only in
    /// the window of the charge. Returns whether anything was refunded.
    ///
    /// A bucket with other parameters than `charged` refunds nothing, nor does a window of another length. Slots in
    /// flight are released under any limit in flight, and only by their refund token.
    pub fn refund(
        &self,
        state: &mut State,
        now: Timestamp,
        charged: &Self,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        fn refund<M: Meter>(
            meter: &M,
            state: &mut M::State,
            now: Timestamp,
            refund_token: &RefundToken,
            cost: u64,
        ) -> bool {
            let own_now = meter.advance(state, now);
            meter.refund(state, own_now, refund_token, cost)
        }
        self.shares_state_with(charged)
            && any_meter!(self, meter => with(meter, state, |meter, own| refund(meter, own, now, refund_token, cost)))
    }

    /// Refunds up to `cost` of the latest charges under the limit `charged`, for a caller without a refund token: at
    /// most that limit's capacity at once, never above full, and only in the current window. Returns whether anything
    /// was refunded.
    ///
    /// A leaky bucket refunds its last slots, the whole cost or nothing: slots that have begun were released. Slots in
    /// flight are not refunded without their token. As for a [`refund`](Self::refund), a bucket with other parameters
    /// refunds nothing, nor does a window of another length.
    pub fn refund_latest(
        &self,
        state: &mut State,
        now: Timestamp,
        charged: &Self,
        cost: u64,
    ) -> bool {
        fn refund_latest<M: Meter>(
            meter: &M,
            state: &mut M::State,
            now: Timestamp,
            cost: u64,
        ) -> bool {
            let own_now = meter.advance(state, now);
            meter.refund_latest(state, own_now, cost)
        }
        let cost = cost.min(charged.capacity());
        self.shares_state_with(charged)
            && any_meter!(self, meter => with(meter, state, |meter, own| refund_latest(meter, own, now, cost)))
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

    /// Returns the share of this limit for node `index` of `of` nodes. The shares add up to the limit.
    ///
    /// A node admits nothing if its share of the amount or of the burst is zero.
    #[must_use]
    pub fn share(&self, index: u64, of: u64) -> Self {
        let of = of.max(1);
        let part = |whole: u64| whole / of + u64::from(index < whole % of);
        let quota = self.quota();
        let burst = quota.explicit_burst().map(part);
        let amount = if burst == Some(0) { 0 } else { part(quota.amount()) };
        let algorithm = match self.algorithm() {
            // The capacity is the queue and one request that does not wait. All of it is shared.
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
        // A smaller amount refills a burst more slowly, perhaps more slowly than a quota allows.
        let share = Self::new(algorithm, shared)
            .or_else(|_| Self::new(algorithm, per(0)))
            .unwrap_or_else(|_| self.clone());
        let max_wait = match self {
            Self::LeakyBucket(bucket) => bucket.max_wait(),
            _ => None,
        };
        max_wait.and_then(|max_wait| share.with_max_wait(max_wait)).unwrap_or(share)
    }

    /// Returns the time from which on the state equals a fresh one.
    pub fn expires_at(&self, state: &mut State) -> Timestamp {
        any_meter!(self, meter => with(meter, state, |meter, own| meter.expires_at(own)))
    }

    /// Converts a client's state under the limit `old` to this one.
    ///
    /// A token bucket keeps the used fraction, a window its count, a log its entries, a leaky bucket its slots. If the
    /// algorithm changes, the used amount counts as spent now. No client gains a burst, and none loses more than one
    /// token to rounding. Slots in flight stay held. Usage per window and slots in flight can't be converted into each
    /// other: a client starts with a fresh state.
    #[must_use]
    pub fn migrate(&self, old: &Self, state: &State, now: Timestamp) -> State {
        match (self, old, state) {
            (Self::TokenBucket(new), Self::TokenBucket(old), State::Tokens(own)) => {
                new.migrate(old, own, now).into()
            }
            (Self::LeakyBucket(new), Self::LeakyBucket(old), State::Queue(own)) => {
                new.migrate(old, own, now).into()
            }
            (Self::FixedWindow(new), Self::FixedWindow(old), State::Fixed(own)) => {
                new.migrate(old, own, now).into()
            }
            (Self::SlidingWindow(new), Self::SlidingWindow(old), State::Sliding(own)) => {
                new.migrate(old, own, now).into()
            }
            (Self::SlidingLog(new), Self::SlidingLog(old), State::Log(own)) => {
                new.migrate(old, own, now).into()
            }
            (Self::Concurrency(new), Self::Concurrency(old), State::Slots(own)) => {
                new.migrate(old, own, now).into()
            }
            (Self::Concurrency(_), ..) | (_, Self::Concurrency(_), _) => self.fresh(),
            _ => {
                // A slot that begins after the longest wait of a request is not used.
                let outcome = old.without_max_wait().peek(&mut state.clone(), now, 0);
                let used = outcome.limit.saturating_sub(outcome.remaining).min(self.capacity());
                let mut fresh = self.fresh();
                self.charge(&mut fresh, now, used);
                fresh
            }
        }
    }

    /// Returns the state of a client of the limit `old`, [migrated](Self::migrate) by this one, for a
    /// client that may have a state under this limit already: at least as used as that.
    #[must_use]
    pub fn migrate_and_merge(
        &self,
        own: Option<&State>,
        old: &Self,
        state: &State,
        now: Timestamp,
    ) -> State {
        let mut migrated = self.migrate(old, state, now);
        let Some(own) = own else { return migrated };
        let mut own = own.clone();
        // Both are brought to the present window.
        self.admits(&mut own, now, 1);
        self.admits(&mut migrated, now, 1);
        match (own, migrated) {
            (State::Tokens(own), State::Tokens(migrated)) => token_bucket::BucketLevel {
                due: own.due.max(migrated.due),
                returned: own.returned.max(migrated.returned),
            }
            .into(),
            (State::Queue(own), State::Queue(migrated)) => own.max(migrated).into(),
            (State::Fixed(own), State::Fixed(migrated)) => fixed_window::WindowCount {
                end: own.end.max(migrated.end),
                spent: own.spent.max(migrated.spent),
            }
            .into(),
            (State::Sliding(own), State::Sliding(migrated)) => sliding_window::WindowCounts {
                end: own.end.max(migrated.end),
                current: own.current.max(migrated.current),
                previous: own.previous.max(migrated.previous),
            }
            .into(),
            (State::Log(own), State::Log(migrated)) => match old {
                Self::SlidingLog(_) => own.union(&migrated).into(),
                // The migrated log has one entry, at `now`, with all usage. It includes the own entries.
                _ => own.raised_to(migrated.spent(), now).into(),
            },
            // Slots in flight are one state under every limit.
            (own, _) => own,
        }
    }

    /// Renews slots for the hold of the limit `charged` that they were taken under. A slot that expired or
    /// that the store lost is inserted again with the same id and `cost`, above the limit if needed.
    /// Returns whether the slot is held: one that was released stays released.
    pub fn renew(
        &self,
        state: &mut State,
        now: Timestamp,
        charged: &Self,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        let (Self::Concurrency(meter), Self::Concurrency(charged)) = (self, charged) else {
            return false;
        };
        meter.with_own_state(state, |slots| meter.renew(slots, now, charged, refund_token, cost))
    }

    /// Returns whether this limit counts slots in flight, which are held until they are released by id.
    #[must_use]
    pub fn is_concurrency(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    /// Returns the same limit for a request that waits for its slot at most `max_wait`: a slot that begins
    /// later is denied, like one without room. `None` if no slot begins later than that.
    ///
    /// Clients have one state under both limits, and a slot of one can be refunded under the other.
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Span) -> Option<Self> {
        let Self::LeakyBucket(bucket) = self else { return None };
        bucket.with_max_wait(max_wait).map(Self::LeakyBucket)
    }

    /// Returns the same limit for requests that wait for any slot.
    fn without_max_wait(&self) -> Self {
        match self {
            Self::LeakyBucket(bucket) => Self::LeakyBucket(bucket.without_max_wait()),
            other => other.clone(),
        }
    }

    /// Returns the numbers of a charge or a refund of `cost`. A cost above the capacity counts as the capacity: it
    /// never fits, and no more is refunded at once.
    #[must_use]
    pub fn terms(&self, cost: u64) -> ChargeTerms {
        let quota = self.quota();
        let within = |window: Span| {
            let amount = quota.amount();
            ChargeTerms::Window { window: window.as_micros(), amount, cost: cost.min(amount) }
        };
        let (rate, depth) = match self {
            Self::TokenBucket(bucket) => (bucket.rate(), bucket.rate().depth()),
            Self::LeakyBucket(bucket) => (bucket.rate(), bucket.depth_for(cost)),
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) => {
                return within(quota.window());
            }
            Self::Concurrency(meter) => return within(meter.hold()),
        };
        let cost = rate.span(cost.min(self.capacity()));
        ChargeTerms::Bucket { parts: rate.parts(), depth, cost }
    }

    /// Counts all of an admitted amount, whether or not it fits.
    ///
    /// A bucket spends it now. A window that is over does not count it, unless it is the previous one of a sliding
    /// window. Usage of a limit without [leases](Self::supports_leases) is not counted.
    pub fn count(&self, state: &mut State, now: Timestamp, at: Timestamp, amount: u64) {
        fn count<M: LeasableAlgorithm>(
            meter: &M,
            state: &mut M::State,
            now: Timestamp,
            at: Timestamp,
            amount: u64,
        ) {
            let own_now = meter.advance(state, now);
            meter.count(state, own_now, at.min(own_now), amount.min(meter.countable()));
        }
        match self {
            Self::TokenBucket(meter) => {
                meter.with_own_state(state, |own| count(meter, own, now, at, amount));
            }
            Self::FixedWindow(meter) => {
                meter.with_own_state(state, |own| count(meter, own, now, at, amount));
            }
            Self::SlidingWindow(meter) => {
                meter.with_own_state(state, |own| count(meter, own, now, at, amount));
            }
            Self::LeakyBucket(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {}
        }
    }

    /// Returns the end of the window that an instant is in, if this limit counts by windows.
    #[must_use]
    pub fn window_end(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::FixedWindow(meter) => Some(meter.window_end(at)),
            Self::SlidingWindow(meter) => Some(meter.window_end(at)),
            Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::SlidingLog(_)
            | Self::Concurrency(_) => None,
        }
    }

    /// Returns the number that a script of a store adds up for `tokens`: the time in which a bucket refills them, else
    /// their count.
    #[must_use]
    pub fn weight(&self, tokens: u64) -> PreciseTime {
        match self {
            Self::TokenBucket(meter) => meter.rate().span(tokens.min(meter.countable())),
            _ => PreciseTime { micros: tokens.min(Quota::MAX_AMOUNT), parts: 0 },
        }
    }

    /// Returns the most unreported tokens that are counted at once; no store could count more.
    #[must_use]
    pub fn countable(&self) -> u64 {
        match self {
            Self::TokenBucket(meter) => meter.countable(),
            _ => Quota::MAX_AMOUNT,
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
