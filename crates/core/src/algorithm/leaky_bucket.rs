//! Leaky bucket: a queue drained at a constant rate.
//!
//! Whoever is admitted gets a slot, and waits for it; `queue` of them may wait, the next is
//! denied. Releases are never closer than one interval. The state is the end of the last slot.
//!
//! A request may limit its wait: a slot that begins too late for it is not given out. The state of a client is the
//! same for all waits.

use crate::algorithm::pace::{Due, Pace};
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::Slip;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// A leaky bucket's numbers, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    quota: Quota,
    queue: u64,
    pace: Pace,
    /// How long a request waits at the most, if that is less than the queue may take.
    max_wait: Option<Span>,
}

impl LeakyBucket {
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// When the last slot ends at the latest, from now, if `cost` is to fit in.
    pub(crate) fn depth_for(&self, cost: u64) -> Due {
        let whole = self.pace.depth();
        let patient = |max_wait: Span| Due { micros: max_wait.as_micros(), parts: 0 };
        let in_time = self.max_wait.map(|max_wait| {
            self.pace.add(patient(max_wait), self.pace.span(cost.min(self.capacity())))
        });
        in_time.map_or(whole, |in_time| in_time.min(whole))
    }

    /// Whether the next slot begins in time.
    #[inline]
    fn is_in_time(&self, due: &Due, now: Timestamp) -> bool {
        self.max_wait.is_none_or(|max_wait| *due <= (now + max_wait).into())
    }

    /// Whether slots mean the same under both.
    pub(crate) fn shares_slots_with(&self, other: &Self) -> bool {
        (self.quota, self.queue) == (other.quota, other.queue)
    }

    pub(crate) fn max_wait(&self) -> Option<Span> {
        self.max_wait
    }

    /// A queue that drains by the quota, and in which `queue` may wait.
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
        Ok(Self { quota, queue, pace: Pace::new(&quota, queue + 1)?, max_wait: None })
    }

    /// How many may wait.
    #[must_use]
    pub fn queue(&self) -> u64 {
        self.queue
    }

    /// The time between two releases, rounded up to the next microsecond.
    #[must_use]
    pub fn interval(&self) -> Span {
        self.pace.interval()
    }

    /// Returns the same queue for requests that wait at most `max_wait`; `None` if no slot begins later than that.
    pub(crate) fn with_max_wait(&self, max_wait: Span) -> Option<Self> {
        let longest = self.pace.before(self.pace.depth(), 1).ceil();
        let sooner = longest.since(Timestamp::EPOCH) > max_wait;
        sooner.then_some(Self { max_wait: Some(max_wait), ..*self })
    }

    /// Returns the same queue for requests that wait for any slot.
    pub(crate) fn without_max_wait(&self) -> Self {
        Self { max_wait: None, ..*self }
    }
}

impl From<Due> for State {
    fn from(due: Due) -> Self {
        Self::Queue(due)
    }
}

impl Meter for LeakyBucket {
    type State = Due;

    fn own(state: &mut State) -> Option<&mut Due> {
        if let State::Queue(due) = state { Some(due) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.pace.capacity()
    }

    /// Counts releases. A window holds the one at its start and one for each interval after it.
    fn bound(&self) -> Bound {
        let amount = self.quota.amount();
        let most = if amount == 0 { 0 } else { amount + 1 };
        Bound { most, window: self.quota.window(), aligned: None }
    }

    #[inline]
    fn advance(&self, _: &mut Due, now: Timestamp) -> Timestamp {
        now
    }

    #[inline]
    fn admits(&self, due: &Due, now: Timestamp, cost: u64) -> bool {
        self.pace.admits(*due, now, cost) && self.is_in_time(due, now)
    }

    #[inline]
    fn spend(&self, due: &mut Due, now: Timestamp, cost: u64) -> Slip {
        *due = self.pace.after(*due, now, cost);
        self.newest(due, now)
    }

    #[inline]
    fn remaining(&self, due: &Due, now: Timestamp) -> u64 {
        if self.is_in_time(due, now) { self.pace.remaining(*due, now) } else { 0 }
    }

    fn admits_at(&self, due: &Due, now: Timestamp, cost: u64) -> Timestamp {
        let room_at = self.pace.admits_at(*due, now, cost);
        self.max_wait.map_or(room_at, |max_wait| room_at.max(due.ceil() - max_wait))
    }

    #[inline]
    fn whole_at(&self, due: &Due) -> Timestamp {
        due.ceil()
    }

    #[inline]
    fn delay(&self, due: &Due, now: Timestamp) -> Span {
        due.ceil().since(now)
    }

    /// Only the last slot can be given back, and only by who still waits for it: an earlier one has
    /// others behind it, a started one has been released.
    fn refund(&self, due: &mut Due, now: Timestamp, slip: &Slip, cost: u64) -> bool {
        let slot_end = Due { micros: slip.until.as_micros(), parts: slip.parts };
        if cost == 0 || cost > self.capacity() || slot_end != *due {
            return false;
        }
        let slot_start = self.pace.before(slot_end, cost);
        let waiting = slot_start > now.into();
        if waiting {
            *due = slot_start;
        }
        waiting
    }

    #[inline]
    fn newest(&self, due: &Due, now: Timestamp) -> Slip {
        Slip { at: now, until: Timestamp::from_micros(due.micros), parts: due.parts }
    }

    /// Slots that were given out stay where they are.
    fn adopt(&self, old: &Self, due: &Due, _: Timestamp) -> Due {
        self.pace.keep_instant(&old.pace, *due)
    }
}
