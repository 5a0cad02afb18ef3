//! Leaky bucket: a queue that is drained at a constant rate.
//!
//! An admitted request gets a slot and waits for it. At most `queue` requests wait; the next one is denied. Releases
//! are never closer than one interval. The state is the end of the last slot.
//!
//! A request may limit its wait: it is denied if its slot would begin too late. The state of a client is the
//! same for all waits.

use crate::algorithm::refill_rate::{PreciseTime, RefillRate};
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::RefundToken;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// The validated parameters of a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    quota: Quota,
    queue: u64,
    rate: RefillRate,
    /// The longest wait of a request, if that is less than the longest wait in the queue.
    max_wait: Option<Span>,
}

impl LeakyBucket {
    pub(crate) fn rate(&self) -> &RefillRate {
        &self.rate
    }

    /// Returns the latest end of the last slot, from now, at which `cost` still fits.
    pub(crate) fn depth_for(&self, cost: u64) -> PreciseTime {
        let whole = self.rate.depth();
        let latest_start = |max_wait: Span| PreciseTime { micros: max_wait.as_micros(), parts: 0 };
        let in_time = self.max_wait.map(|max_wait| {
            self.rate.add(latest_start(max_wait), self.rate.span(cost.min(self.capacity())))
        });
        in_time.map_or(whole, |in_time| in_time.min(whole))
    }

    /// Returns whether the next slot begins within the longest wait.
    #[inline]
    fn is_in_time(&self, due: &PreciseTime, now: Timestamp) -> bool {
        self.max_wait.is_none_or(|max_wait| *due <= (now + max_wait).into())
    }

    /// Returns whether slots are the same under both limits.
    pub(crate) fn shares_slots_with(&self, other: &Self) -> bool {
        (self.quota, self.queue) == (other.quota, other.queue)
    }

    pub(crate) fn max_wait(&self) -> Option<Span> {
        self.max_wait
    }

    /// Returns a queue that drains at the rate of the quota, and in which `queue` requests may wait.
    ///
    /// # Errors
    /// A number that can't be counted exactly, or a burst, which a leaky bucket does not have.
    pub fn new(quota: Quota, queue: u64) -> Result<Self, QuotaError> {
        if quota.explicit_burst().is_some() {
            return Err(QuotaError::NoBurst { algorithm: "leaky_bucket" });
        }
        if queue >= Quota::MAX_AMOUNT {
            return Err(QuotaError::Queue { found: queue });
        }
        Ok(Self { quota, queue, rate: RefillRate::new(&quota, queue + 1)?, max_wait: None })
    }

    /// Returns the number of requests that may wait.
    #[must_use]
    pub fn queue(&self) -> u64 {
        self.queue
    }

    /// Returns the time between two releases, rounded up to the next microsecond.
    #[must_use]
    pub fn interval(&self) -> Span {
        self.rate.interval()
    }

    /// Returns the same queue for requests that wait at most `max_wait`; `None` if no slot begins later than that.
    pub(crate) fn with_max_wait(&self, max_wait: Span) -> Option<Self> {
        let longest = self.rate.slot_start(self.rate.depth(), 1).ceil();
        let sooner = longest.since(Timestamp::EPOCH) > max_wait;
        sooner.then_some(Self { max_wait: Some(max_wait), ..*self })
    }

    /// Returns the same queue for requests that wait for any slot.
    pub(crate) fn without_max_wait(&self) -> Self {
        Self { max_wait: None, ..*self }
    }
}

impl From<PreciseTime> for State {
    fn from(due: PreciseTime) -> Self {
        Self::Queue(due)
    }
}

impl Meter for LeakyBucket {
    type State = PreciseTime;

    fn own_state(state: &mut State) -> Option<&mut PreciseTime> {
        if let State::Queue(due) = state { Some(due) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.rate.capacity()
    }

    /// Returns the most releases: one at the start of a window, and one for each interval in it.
    fn bound(&self) -> Bound {
        let amount = self.quota.amount();
        let most = if amount == 0 { 0 } else { amount + 1 };
        Bound { most, window: self.quota.window(), aligned: None }
    }

    #[inline]
    fn advance(&self, _: &mut PreciseTime, now: Timestamp) -> Timestamp {
        now
    }

    #[inline]
    fn admits(&self, due: &PreciseTime, now: Timestamp, cost: u64) -> bool {
        self.rate.admits(*due, now, cost) && self.is_in_time(due, now)
    }

    #[inline]
    fn spend(&self, due: &mut PreciseTime, now: Timestamp, cost: u64) -> RefundToken {
        *due = self.rate.due_after(*due, now, cost);
        self.latest_refund_token(due, now)
    }

    #[inline]
    fn remaining(&self, due: &PreciseTime, now: Timestamp) -> u64 {
        if self.is_in_time(due, now) { self.rate.remaining(*due, now) } else { 0 }
    }

    fn admits_at(&self, due: &PreciseTime, now: Timestamp, cost: u64) -> Timestamp {
        let room_at = self.rate.admits_at(*due, now, cost);
        self.max_wait.map_or(room_at, |max_wait| room_at.max(due.ceil() - max_wait))
    }

    #[inline]
    fn expires_at(&self, due: &PreciseTime) -> Timestamp {
        due.ceil()
    }

    #[inline]
    fn delay(&self, due: &PreciseTime, now: Timestamp) -> Span {
        due.ceil().since(now)
    }

    /// Refunds the last slot only, and only while its request waits: an earlier slot has others behind it, and a slot
    /// that has begun was released.
    fn refund(
        &self,
        due: &mut PreciseTime,
        now: Timestamp,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        let slot_end =
            PreciseTime { micros: refund_token.until.as_micros(), parts: refund_token.parts };
        if cost == 0 || cost > self.capacity() || slot_end != *due {
            return false;
        }
        let slot_start = self.rate.slot_start(slot_end, cost);
        let waiting = slot_start > now.into();
        if waiting {
            *due = slot_start;
        }
        waiting
    }

    #[inline]
    fn latest_refund_token(&self, due: &PreciseTime, now: Timestamp) -> RefundToken {
        RefundToken { at: now, until: Timestamp::from_micros(due.micros), parts: due.parts }
    }

    /// Keeps the times of all slots.
    fn migrate(&self, old: &Self, due: &PreciseTime, _: Timestamp) -> PreciseTime {
        self.rate.keep_instant(&old.rate, *due)
    }
}
