//! Charges, some of them in a way of their rule's own.

use smallvec::SmallVec;
use tidegate_core::Timestamp;

use super::Limiter;
use super::deciding::Ask;
use crate::fleet::{Fleet, Takings};
use crate::store::{Answer, Answers, Charge, Store};

/// What was taken for a request that is not decided yet. Dropped, it is put back.
struct Hand<'l, S: Store> {
    limiter: &'l Limiter<S>,
    taken: Takings,
}

impl<S: Store> Drop for Hand<'_, S> {
    fn drop(&mut self) {
        self.limiter.put_back_detached(std::mem::take(&mut self.taken));
    }
}

impl<S: Store> Limiter<S> {
    /// Whether a question is answered in a way of its rule's own. What only counts is counted
    /// exactly: there is no hurry.
    pub(super) fn has_own_way(&self, ask: &Ask<'_>) -> bool {
        self.inner.fleet.is_some()
            && ask.is_enforced()
            && Fleet::keeps(ask.rule.accuracy(), ask.limit)
    }

    /// Charges every key of one request, or none of them, as [`Store::charge`] does; first those that
    /// this node mostly decides alone. What was taken for those is to be put back if the request is
    /// refused after all.
    pub(super) async fn charge(
        &self,
        asks: &[Ask<'_>],
        charges: &[Charge<'_>],
    ) -> (Answers, Takings) {
        let own = |place: usize| asks.get(place).is_some_and(|ask| self.has_own_way(ask));
        let Some(fleet) = self.inner.fleet.as_ref().filter(|_| (0..asks.len()).any(own)) else {
            return (self.inner.store.charge(charges).await, Takings::new());
        };
        let mut answers: Answers = charges.iter().map(|_| Answer::Unasked).collect();
        let mut hand = Hand { limiter: self, taken: Takings::new() };
        // What never fits keeps everything else from being spent.
        let never = |charge: &Charge<'_>| !charge.alone && charge.cost > charge.limit.capacity();
        let looks = charges.iter().any(never);
        let mut denied = false;
        for place in (0..charges.len()).filter(|place| own(*place)) {
            if denied {
                break;
            }
            let (store, accuracy) = (&self.inner.store, asks[place].rule.accuracy());
            let answer =
                fleet.charge(store, accuracy, &charges[place], looks, &mut hand.taken).await;
            denied = answer.outcome().is_some_and(|outcome| !outcome.is_allowed());
            answers[place] = answer;
        }
        // Those that stand for themselves are asked all the same.
        let open = |place: &usize| !own(*place) && (!denied || charges[*place].alone);
        let others: SmallVec<[usize; 4]> = (0..charges.len()).filter(open).collect();
        if !others.is_empty() {
            let asked: SmallVec<[Charge<'_>; 4]> =
                others.iter().map(|place| charges[*place].clone()).collect();
            let told = self.inner.store.charge(&asked).await;
            for (place, answer) in others.iter().zip(told) {
                let refuses = answer.outcome().is_some_and(|outcome| !outcome.is_allowed());
                denied |= refuses && !charges[*place].alone;
                answers[*place] = answer;
            }
        }
        if denied {
            drop(hand);
            return (answers, Takings::new());
        }
        (answers, std::mem::take(&mut hand.taken))
    }

    /// Puts back what was taken: here at once, and in the store without waiting for it.
    pub(super) fn put_back_detached(&self, taken: Takings) {
        let Some(fleet) = self.inner.fleet.as_ref().filter(|_| !taken.is_empty()) else { return };
        let refunds = fleet.put_back(&self.inner.store, taken);
        if !refunds.is_empty() {
            self.inner.store.refund_detached(refunds);
        }
    }

    /// How many clients this node holds tokens of ahead of use, and how many tokens it has not used.
    #[must_use]
    pub fn leased(&self) -> (usize, u64) {
        self.inner.fleet.as_ref().map_or((0, 0), |fleet| fleet.leased())
    }

    /// Does now what is due in the background, once: clients of synced rules whose time has come are
    /// told of, and what is held of those who have gone is given back.
    ///
    /// Within a runtime that happens by itself. This is for who has none and owns the time, as a
    /// simulation does: at every [`next_sync`](Self::next_sync), and a few times in a second.
    pub async fn tend_fleet(&self) {
        if let Some(fleet) = &self.inner.fleet {
            fleet.tend(&self.inner.store).await;
        }
    }

    /// When the time of the next client of a synced rule comes, by the limiter's clock.
    #[must_use]
    pub fn next_sync(&self) -> Option<Timestamp> {
        self.inner.fleet.as_ref().and_then(|fleet| fleet.next_sync())
    }

    /// Tells the store all that this node has not told it yet, and gives back what it holds ahead of
    /// use, as it does before it goes.
    pub async fn settle_fleet(&self) {
        if let Some(fleet) = &self.inner.fleet {
            fleet.leave(&self.inner.store).await;
        }
    }
}
