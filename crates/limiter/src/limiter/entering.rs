//! A request on its way in: charged once, perhaps told to wait, then in flight until it is over.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Decision, Limit, Span, Timestamp};

use super::deciding::{Ask, Asks};
use super::holding::Held;
use super::together::Claim;
use super::{Inner, Limiter, Receipt};
use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::store::Store;
use crate::store::memory::MemoryStore;

impl<S: Store> Limiter<S> {
    /// Charges a claim for a request that will wait for its turn, and be in flight from then on.
    ///
    /// One charge takes all that the request needs, or nothing: what it costs per time, its place in
    /// the queue of a leaky bucket, its slots in flight. So whoever waits in a queue is in flight
    /// already, and whoever is let in needs nothing more when its turn has come. A rule that counts
    /// only what is being served has to leave room for the queue.
    ///
    /// A leaky bucket by which the request would wait longer than `max_wait` denies it, as one does
    /// that is full: it says when to come back so that the wait is short enough, and takes nothing.
    ///
    /// A future that is dropped before it is ready leaves no slot in flight behind, and no place in a
    /// queue if it is the last. As with [`check`](Self::check), whether anything else was charged is not
    /// known then.
    ///
    /// ```
    /// use tidegate::{Claim, Limiter, Request, RuleSet, Span, Under};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "
    /// rules:
    ///   - {name: gentle, algorithm: leaky_bucket, limit: 100 per second, queue: 50}
    ///   - {name: exports, per: [user], limit: 2 in flight}
    /// ";
    /// let limiter = Limiter::builder().rules(RuleSet::parse("rules.yaml", rules)?).build();
    /// let alice = Request::new().with("user", "alice")?;
    /// let claim = Claim { request: &alice, under: Under::Matching };
    /// let (decision, turn) = limiter.enter(claim, Span::SECOND).await;
    /// assert!(decision.is_allowed());
    /// let held = turn.wait().await;
    /// // Here the request is served. Then, or when anything goes wrong:
    /// drop(held);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// The claim names a rule that is not there.
    pub async fn enter(&self, claim: Claim<'_, '_>, max_wait: Span) -> (Decision, Turn<S>) {
        if let Some(decision) = self.blocked(claim.request) {
            return (decision, Turn::default());
        }
        let asks = self.asks(&claim);
        let hurried = asks.iter().map(|ask| ask.limit.waiting_at_most(max_wait).map(Arc::new));
        let hurried: SmallVec<[Option<Arc<Limit>>; 4]> = hurried.collect();
        let asks: Asks<'_> = asks
            .into_iter()
            .zip(&hurried)
            .map(|(ask, hurried)| Ask { limit: hurried.as_ref().unwrap_or(ask.limit), ..ask })
            .collect();
        let (decision, receipt) = self.decide(asks).await;
        self.note_denials(claim.request, &decision);
        let turn = self.turn(&decision, receipt);
        (decision, turn)
    }

    fn turn(&self, decision: &Decision, mut receipt: Receipt) -> Turn<S> {
        let Inner { store, clock, fleet, .. } = &*self.inner;
        if decision.is_allowed() {
            return Turn::new(store, clock, fleet.as_ref(), receipt, decision.delay());
        }
        // Rules that only count may have been charged; nothing is in flight by them either.
        let slots = receipt.take_slots();
        if !slots.is_empty() {
            store.refund_detached(slots);
        }
        Turn::default()
    }
}

/// A request that was let in, until its turn has come. The default needs no waiting, and is what a
/// request has that was not let in.
///
/// Dropped, it is as if the request had never come, as far as that can be: its slots in flight are
/// released and what it was charged is taken back, of a leaky bucket's slots only the last. Nobody
/// waits for the store then.
#[must_use = "a turn that is dropped is given up"]
pub struct Turn<S: Store = MemoryStore> {
    held: Held<S>,
    /// What else was charged, and where.
    charged: Option<Charged<S>>,
    /// When the turn comes, and by which clock; `None` when it has.
    at: Option<(Timestamp, Clock)>,
}

struct Charged<S> {
    store: Arc<S>,
    fleet: Option<Arc<Fleet>>,
    receipt: Receipt,
}

impl<S: Store> Default for Turn<S> {
    fn default() -> Self {
        Self { held: Held::default(), charged: None, at: None }
    }
}

impl<S: Store> fmt::Debug for Turn<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_ref().map(|(at, _)| at);
        f.debug_struct("Turn").field("at", &at).finish_non_exhaustive()
    }
}

impl<S: Store> Turn<S> {
    /// The turn of a request that was charged just now, and told to wait so long.
    pub(crate) fn new(
        store: &Arc<S>,
        clock: &Clock,
        fleet: Option<&Arc<Fleet>>,
        mut receipt: Receipt,
        delay: Span,
    ) -> Self {
        let held = Held::new(store, clock, receipt.take_slots());
        let fleet = fleet.filter(|_| !receipt.taken.is_empty()).map(Arc::clone);
        let charged =
            (!receipt.is_empty()).then(|| Charged { store: Arc::clone(store), fleet, receipt });
        // Read after the check: a wait counted from before it would end too early.
        let at = (!delay.is_zero()).then(|| (clock.now() + delay, clock.clone()));
        Self { held, charged, at }
    }

    /// Whether there was nothing to wait for from the beginning, so that [`wait`](Self::wait) is ready
    /// at once.
    #[must_use]
    pub fn is_now(&self) -> bool {
        self.at.is_none()
    }

    /// Waits until the turn has come. From then on what was charged stays charged, and the slots in
    /// flight are held while the guard lives.
    ///
    /// Dropped before it is ready, the future gives the turn up. Slots in flight are renewed meanwhile.
    pub async fn wait(self) -> Held<S> {
        self.come().await;
        self.take()
    }

    /// Waits until the turn has come. It can still be given up then, by being dropped.
    pub async fn come(&self) {
        if let Some((at, clock)) = &self.at {
            clock.sleep_until(*at).await;
        }
    }

    /// What [`wait`](Self::wait) ends with, without waiting: from now on what was charged stays charged.
    #[must_use = "what is in flight is released when the guard is dropped"]
    pub fn take(mut self) -> Held<S> {
        self.charged = None;
        std::mem::take(&mut self.held)
    }
}

impl<S: Store> Drop for Turn<S> {
    fn drop(&mut self) {
        if let Some(Charged { store, fleet, receipt }) = self.charged.take() {
            let Receipt { refunds, taken } = receipt;
            let mut refunds = refunds.into_vec();
            refunds.extend(fleet.map(|fleet| fleet.put_back(&store, taken)).unwrap_or_default());
            // All in one call; slots that are alone are released by their guard.
            refunds.append(&mut self.held.take_slots());
            if !refunds.is_empty() {
                store.refund_detached(refunds);
            }
        }
    }
}
