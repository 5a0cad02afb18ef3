//! The token bucket of a hot key, divided into thread shares.
//!
//! All free tokens are distributed, because they can be reclaimed at any time. If a share can't decide, its
//! thread reclaims all shares, counts each charge at its own instant, decides from the whole bucket, and
//! distributes the rest again. Distributed tokens still count as part of the bucket, so refill never
//! replaces tokens that a share holds.

use std::sync::Arc;

use smallvec::SmallVec;
use spin::Yield;
use spin::mutex::SpinMutexGuard;
use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Limit, Outcome, Span, Timestamp};

use super::thread_share::{ShareTerms, ThreadShare, TimedCharge};
use super::{HotFlag, flat_bucket};
use crate::store::Charge;
use crate::store::memory::SpinLock;
use crate::store::memory::entry::CompactEntry;

/// The number of shares of a hot key. With more threads, some use the same share.
pub(crate) const SHARES_PER_KEY: usize = 16;

/// At the end of each window, shares without charges in it are closed. With fewer than two left, the key
/// cools down.
const ACTIVITY_WINDOW: Span = Span::from_millis(100);

/// The bucket of one hot key at a time, divided into thread shares.
#[derive(Default)]
pub(crate) struct HotBucket {
    shares: [PaddedShare; SHARES_PER_KEY],
    state: SpinLock<Option<HotKeyState>>,
}

/// A share and its lock, on their own pair of cache lines: processors prefetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct PaddedShare(SpinLock<ThreadShare>);

/// The state of a hot key, except for its shares.
#[derive(Debug)]
struct HotKeyState {
    key: Key,
    limit: Arc<Limit>,
    /// The entry of the key, to be moved back to its shard. It omits what shares have spent since they
    /// were distributed.
    entry: CompactEntry,
    /// Shares that are open, one bit each.
    open: u16,
    /// Shares that were used in this activity window, one bit each.
    active: u16,
    window_ends: Timestamp,
    /// The time of the latest charge. The key's time never decreases.
    latest: Timestamp,
}

/// A decision from the whole bucket.
pub(crate) struct WholeDecision {
    pub(crate) outcome: Outcome,
    /// The entry of a key that has cooled down, to be moved back to its shard.
    pub(crate) cooled: Option<CompactEntry>,
}

pub(crate) type ShareGuard<'a> = SpinMutexGuard<'a, ThreadShare, Yield>;
type LockedShares<'a> = SmallVec<[(u16, ShareGuard<'a>); SHARES_PER_KEY]>;

impl HotBucket {
    /// Locks the share of a thread.
    #[inline]
    pub(crate) fn share(&self, index: usize) -> ShareGuard<'_> {
        self.shares[index % SHARES_PER_KEY].0.lock()
    }

    /// Takes the entry of a key, unless another key is here.
    ///
    /// The caller holds the lock of the key's shard.
    pub(crate) fn move_in(
        &self,
        (key, limit): (Key, &Arc<Limit>),
        now: Timestamp,
        flag: &HotFlag<'_>,
        entry: impl FnOnce() -> Option<CompactEntry>,
    ) {
        let mut state = self.state.lock();
        if state.is_none()
            && let Some(entry) = entry()
        {
            let (limit, window_ends) = (Arc::clone(limit), now + ACTIVITY_WINDOW);
            *state = Some(HotKeyState {
                key,
                limit,
                entry,
                open: 0,
                active: 0,
                window_ends,
                latest: now,
            });
            flag.set(key);
        }
    }

    /// Returns the key that is here, and the end of its activity window.
    pub(crate) fn occupant(&self) -> Option<(Key, Timestamp)> {
        self.state.lock().as_ref().map(|state| (state.key, state.window_ends))
    }

    /// Decides a charge from the whole bucket, for the thread of a share. Returns `None` if the key is not
    /// here under this limit, or if the compact form can't represent `now`.
    ///
    /// The caller holds the lock of the key's shard.
    pub(crate) fn charge_whole(
        &self,
        share_index: usize,
        charge: &Charge<'_>,
        base: Timestamp,
        now: Timestamp,
        flag: &HotFlag<'_>,
    ) -> Option<WholeDecision> {
        let mut locked = self.state.lock();
        let state = locked.as_mut().filter(|state| state.key == charge.key)?;
        let flat = flat_bucket(charge.limit).filter(|flat| now.since(base) <= flat.reach())?;
        if !Arc::ptr_eq(&state.limit, charge.limit) && state.limit != *charge.limit {
            return None;
        }
        // Shares identify the limit by its address, so the old one must live until they are reclaimed.
        let _old_limit = std::mem::replace(&mut state.limit, Arc::clone(charge.limit));
        let own = 1 << (share_index % SHARES_PER_KEY);
        state.open |= own;
        let (mut shares, mut used) = self.reclaim(state, flat, base);
        used |= own;
        state.active |= used;
        state.latest = state.latest.max(now);
        let now = state.latest;
        let outcome = flat.charge(&mut state.entry.due, base, now, charge.cost);
        if now >= state.window_ends {
            if state.active.count_ones() < 2 {
                let cooled = Some(state.entry);
                *locked = None;
                flag.clear();
                return Some(WholeDecision { outcome, cooled });
            }
            state.open = std::mem::take(&mut state.active);
            state.window_ends = now + ACTIVITY_WINDOW;
        }
        state.distribute(&mut shares, used, (flat, base), outcome.remaining);
        if let Some((_, share)) = shares.iter_mut().find(|(bit, _)| *bit == own) {
            share.mark_used();
        }
        Some(WholeDecision { outcome, cooled: None })
    }

    /// Reclaims all shares and removes the key. Returns its entry with all that was spent, or `None` if
    /// the key is not here.
    ///
    /// The caller holds the lock of the key's shard.
    pub(crate) fn close(
        &self,
        key: Key,
        base: Timestamp,
        flag: &HotFlag<'_>,
    ) -> Option<CompactEntry> {
        let mut locked = self.state.lock();
        let mut state = locked.take_if(|state| state.key == key)?;
        flag.clear();
        let limit = Arc::clone(&state.limit);
        if let Some(flat) = flat_bucket(&limit) {
            self.reclaim(&mut state, flat, base);
        }
        Some(state.entry)
    }

    /// Closes all open shares and counts what they spent. Returns these shares, locked, and the bits of
    /// those that were used.
    fn reclaim(
        &self,
        state: &mut HotKeyState,
        flat: &FlatBucket,
        base: Timestamp,
    ) -> (LockedShares<'_>, u16) {
        let (mut shares, mut used) = (LockedShares::new(), 0);
        let mut timed: SmallVec<[TimedCharge; 4 * SHARES_PER_KEY]> = SmallVec::new();
        for (index, share) in self.shares.iter().enumerate() {
            let bit = 1 << index;
            if state.open & bit == 0 {
                continue;
            }
            let mut share = share.0.lock();
            let usage = share.reclaim();
            if usage.used {
                used |= bit;
            }
            // These charges were made while the bucket was not full, so their instants do not matter.
            flat.count(&mut state.entry.due, base, base, usage.order_independent);
            timed.extend_from_slice(usage.timed);
            shares.push((bit, share));
        }
        timed.sort_unstable();
        for (at, cost) in timed {
            flat.count(&mut state.entry.due, base, at, cost);
            state.latest = state.latest.max(at);
        }
        (shares, used)
    }
}

impl HotKeyState {
    /// Distributes the free tokens in equal parts to the shares that were used. Other open shares get
    /// none.
    fn distribute(
        &self,
        shares: &mut LockedShares<'_>,
        used: u16,
        (flat, base): (&FlatBucket, Timestamp),
        free: u64,
    ) {
        let due = self.entry.due;
        let terms = ShareTerms {
            key: self.key,
            limit: &self.limit,
            from: self.latest,
            until: self.window_ends.min(base + flat.reach()),
            due,
            order_independent_until: flat.last_not_full(due, base),
        };
        let used = used & self.open;
        let part = free / u64::from(used.count_ones()).max(1);
        for (bit, share) in shares.iter_mut().filter(|(bit, _)| self.open & bit != 0) {
            let tokens = if used & *bit == 0 { 0 } else { part };
            share.distribute(&terms, tokens, part == 0 || used == *bit);
        }
    }
}
