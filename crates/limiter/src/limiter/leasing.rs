//! Charges, some of them to what this node holds ahead of use.

use smallvec::SmallVec;
use tidegate_core::Key;
use tidegate_core::rule::Accuracy;

use super::Limiter;
use super::deciding::Ask;
use crate::fleet::lease::Slice;
use crate::fleet::leases::Leases;
use crate::store::{Answer, Answers, Charge, Store};

/// What was taken from what this node holds: the client, and where from.
pub(super) type Taken = SmallVec<[(Key, Slice); 1]>;

impl<S: Store> Limiter<S> {
    /// Whether a question is one that this node may answer from what it holds. What only counts is
    /// counted exactly: there is no hurry.
    pub(super) fn is_leased(&self, ask: &Ask<'_>) -> bool {
        self.inner.leases.is_some()
            && ask.rule.accuracy() == Accuracy::Leased
            && ask.is_enforced()
            && ask.limit.leases()
    }

    /// Charges every key of one request, or none of them, as [`Store::charge`] does; leased ones
    /// first, which mostly takes no store. What was taken here is to be put back if the request is
    /// refused after all.
    pub(super) async fn charge(
        &self,
        asks: &[Ask<'_>],
        charges: &[Charge<'_>],
    ) -> (Answers, Taken) {
        let leased = |place: usize| asks.get(place).is_some_and(|ask| self.is_leased(ask));
        let Some(leases) = &self.inner.leases else {
            return (self.inner.store.charge(charges).await, Taken::new());
        };
        if !(0..asks.len()).any(leased) {
            return (self.inner.store.charge(charges).await, Taken::new());
        }
        let mut answers: Answers = charges.iter().map(|_| Answer::Unasked).collect();
        let mut taken = Taken::new();
        // What never fits keeps everything else from being spent.
        let never = |charge: &Charge<'_>| !charge.alone && charge.cost > charge.limit.capacity();
        let looks = charges.iter().any(never);
        let mut denied = false;
        for place in (0..charges.len()).filter(|place| leased(*place)) {
            if denied {
                break;
            }
            let answer = self.charge_leased(leases, &charges[place], looks, &mut taken).await;
            denied = answer.outcome().is_some_and(|outcome| !outcome.is_allowed());
            answers[place] = answer;
        }
        let others: SmallVec<[usize; 4]> =
            (0..charges.len()).filter(|place| !leased(*place)).collect();
        // Those that stand for themselves are asked all the same.
        let open = |place: &usize| !denied || charges[*place].alone;
        let others: SmallVec<[usize; 4]> = others.into_iter().filter(open).collect();
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
            self.undo(asks, charges, &mut answers, &mut taken);
        }
        (answers, taken)
    }

    /// One leased charge, or a look at it.
    async fn charge_leased(
        &self,
        leases: &std::sync::Arc<Leases>,
        charge: &Charge<'_>,
        looks: bool,
        taken: &mut Taken,
    ) -> Answer {
        let (store, Charge { key, limit, cost, .. }) = (&self.inner.store, charge);
        if looks || *cost == 0 || *cost > limit.capacity() {
            return match leases.look(store, *key, limit, *cost).await {
                Ok(outcome) => Answer::Decided(outcome),
                Err(error) => Answer::Failed(error),
            };
        }
        match leases.charge(store, *key, limit, *cost).await {
            Ok(leased) => {
                taken.extend(leased.here.map(|slice| (*key, slice)));
                Answer::Decided(leased.outcome)
            }
            Err(error) => Answer::Failed(error),
        }
    }

    /// Takes back what leased rules were charged for a request that another one denies: here at once,
    /// and in the store without waiting for it.
    fn undo(
        &self,
        asks: &[Ask<'_>],
        charges: &[Charge<'_>],
        answers: &mut Answers,
        taken: &mut Taken,
    ) {
        self.put_back(taken);
        taken.clear();
        let mut refunds = Vec::new();
        for (place, answer) in answers.iter_mut().enumerate() {
            let Some(ask) = asks.get(place).filter(|ask| self.is_leased(ask)) else { continue };
            let Answer::Decided(outcome) = answer else { continue };
            if let Some(slip) = outcome.slip().filter(|_| charges[place].cost > 0) {
                refunds.push(ask.refund(Some(slip)));
                *outcome = outcome.without_slip();
            }
        }
        if !refunds.is_empty() {
            self.inner.store.refund_detached(refunds);
        }
    }

    /// Puts back what was taken from what this node holds. How many gave anything back.
    pub(super) fn put_back(&self, taken: &[(Key, Slice)]) -> usize {
        let Some(leases) = &self.inner.leases else { return 0 };
        taken.iter().for_each(|(key, slice)| leases.put_back(*key, slice));
        taken.len()
    }

    /// Gives back to the store all that this node holds ahead of use, as it does before it goes.
    pub async fn give_back_leases(&self) {
        if let Some(leases) = &self.inner.leases {
            leases.give_back(&self.inner.store, true).await;
        }
    }
}
