//! One thread's part of a hot bucket: tokens that it spends without asking anybody.

use std::sync::Arc;

use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Limit, Timestamp};

use crate::store::Charge;

/// What was spent at one instant.
pub(crate) type Entry = (Timestamp, u64);

/// How many instants a purse remembers before the bucket has to be told.
const INSTANTS: usize = 8;

/// Tokens set aside for one thread, and what it has spent of them.
///
/// What it admits, the whole bucket has room for. It denies only while no other purse holds
/// anything, since then it knows as much as the whole bucket would.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Purse {
    key: Key,
    /// Where the limit is that the bucket is under. Whoever handed the purse out keeps it there.
    limit: usize,
    /// The purse is closed from here on.
    until: Timestamp,
    /// Not spent yet.
    tokens: u64,
    /// When the bucket is full again, as far as is known here: what others spent since the purse was
    /// handed out is not in it.
    due: u64,
    /// Time does not run backwards here.
    latest: Timestamp,
    /// The last instant at which the bucket is not full even if no purse spends anything.
    steady: Timestamp,
    /// Spent until then: whoever else spent how much in between, it comes to the same.
    spent: u64,
    /// No other purse holds anything.
    sole: bool,
    /// Asked since it was handed out.
    used: bool,
    /// How many of the entries count.
    count: usize,
    /// Spent later than `steady`, by instant. Last, because most purses that are called in have none.
    noted: [Entry; INSTANTS],
}

/// What a purse is for, and what is known when it is handed out.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) key: Key,
    pub(crate) limit: &'a Arc<Limit>,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    /// When the bucket would be full if no purse spent anything.
    pub(crate) due: u64,
    /// The same, as the last instant at which it is not.
    pub(crate) steady: Timestamp,
}

/// What was in a purse when it was called in.
#[derive(Debug)]
pub(crate) struct Spent<'a> {
    /// While the bucket was not full, so that its order does not matter.
    pub(crate) steadily: u64,
    /// The rest, in the order of time.
    pub(crate) noted: &'a [Entry],
    /// Whether it was asked since it was handed out.
    pub(crate) used: bool,
}

impl Default for Purse {
    /// Closed.
    fn default() -> Self {
        Self {
            key: Key::from_u128(0),
            limit: 0,
            until: Timestamp::EPOCH,
            tokens: 0,
            due: 0,
            latest: Timestamp::EPOCH,
            steady: Timestamp::EPOCH,
            spent: 0,
            sole: false,
            used: false,
            count: 0,
            noted: [(Timestamp::EPOCH, 0); INSTANTS],
        }
    }
}

impl Purse {
    /// Whether what is known here is enough to decide a charge. If so, the instant at which to charge
    /// [`due`](Self::due); what it will spend is paid for then.
    ///
    /// The verdict is the one that the whole bucket would give. What an allowance says beside that
    /// leaves out what others spent since the purse was handed out: `remaining` may be too high by
    /// what they hold, and the refund token may give back less than it could, never more.
    #[inline]
    pub(crate) fn pay(
        &mut self,
        charge: &Charge<'_>,
        flat: &FlatBucket,
        base: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let known = self.key == charge.key && self.limit == Arc::as_ptr(charge.limit).addr();
        if now >= self.until || !known {
            return None;
        }
        let now = now.max(self.latest);
        self.used = true;
        // A look costs nothing, and wraps around to more than anybody holds.
        if charge.cost.wrapping_sub(1) < self.tokens {
            if now <= self.steady {
                self.spent += charge.cost;
            } else if !self.note(now, charge.cost) {
                return None;
            }
            self.tokens -= charge.cost;
            return Some(now);
        }
        // What the whole bucket has room for, it may have to take from others to admit.
        let denies = || !flat.admits(self.due, base, now, charge.cost);
        (self.sole && (charge.cost == 0 || denies())).then_some(now)
    }

    /// The bucket as far as is known here, to be charged with what was paid for.
    #[inline]
    pub(crate) fn due(&mut self) -> &mut u64 {
        &mut self.due
    }

    /// Remembers what is spent at an instant. Whether there was room for that.
    #[inline]
    fn note(&mut self, now: Timestamp, cost: u64) -> bool {
        if self.count > 0
            && let (at, spent) = &mut self.noted[self.count - 1]
            && *at == now
        {
            *spent += cost;
            return true;
        }
        let Some(entry) = self.noted.get_mut(self.count) else { return false };
        *entry = (now, cost);
        self.count += 1;
        self.latest = now;
        true
    }

    /// Counts it as asked, for a charge that the whole bucket decided.
    pub(crate) fn note_use(&mut self) {
        self.used = true;
    }

    /// Closes the purse. What was spent from it; what was not is no longer in it.
    pub(crate) fn call_in(&mut self) -> Spent<'_> {
        self.until = Timestamp::EPOCH;
        self.tokens = 0;
        Spent {
            steadily: std::mem::take(&mut self.spent),
            noted: &self.noted[..std::mem::take(&mut self.count)],
            used: std::mem::take(&mut self.used),
        }
    }

    /// Opens a purse that was called in, with tokens that nobody else has; `sole` if nobody else has any.
    pub(crate) fn hand_out(&mut self, terms: &Terms<'_>, tokens: u64, sole: bool) {
        self.key = terms.key;
        self.limit = Arc::as_ptr(terms.limit).addr();
        self.until = terms.until;
        self.tokens = tokens;
        self.due = terms.due;
        self.latest = terms.from;
        self.steady = terms.steady;
        self.sole = sole;
    }
}
