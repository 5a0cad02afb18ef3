//! One request on its way through one or several groups of keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::Inner;
use super::batch::{Batch, Delivery, Errand, Item, Told};
use super::topology::Group;
use crate::store::{Answer, Answers, Charge, Refund, StoreError};

/// Places of charges that travel together.
type Places = SmallVec<[usize; 4]>;

/// Asks for every charge, and answers within the deadline.
pub(super) async fn charge(store: &Arc<Inner>, charges: &[Charge<'_>]) -> Answers {
    let asked = Instant::now();
    let deadline = asked + store.shared.config.timeout();
    let mut answers: Answers = charges.iter().map(|_| Answer::Unasked).collect();
    // What is charged for itself is on its way before the rest is waited for.
    let alone = places(charges, |charge| charge.alone);
    let waiting: SmallVec<[(usize, oneshot::Receiver<Delivery>); 2]> = alone
        .into_iter()
        .map(|place| {
            let group = store.topology.group(&store.shared, charges[place].key);
            (place, submit(store, group, charges, &[place], false))
        })
        .collect();
    let together = places(charges, |charge| !charge.alone);
    if !store.deny_from_memory(charges, &together, asked, &mut answers) {
        charge_together(store, charges, &together, deadline, &mut answers).await;
        // Only what the store said is remembered: a memory of a memory would have no end.
        for place in &together {
            if let Answer::Decided(outcome) = &answers[*place] {
                let charge = &charges[*place];
                store.denials.note(charge.key, charge.limit, charge.cost, outcome, asked);
            }
        }
    }
    for (place, told) in waiting {
        let told = wait(store, told, deadline).await;
        note(&mut answers, &[place], told);
    }
    answers
}

fn places(charges: &[Charge<'_>], wanted: impl Fn(&Charge<'_>) -> bool) -> Places {
    (0..charges.len()).filter(|place| wanted(&charges[*place])).collect()
}

impl Inner {
    /// Whether one of the charges is known not to fit.
    fn deny_from_memory(
        &self,
        charges: &[Charge<'_>],
        together: &[usize],
        now: Instant,
        answers: &mut Answers,
    ) -> bool {
        for place in together {
            let charge = &charges[*place];
            if let Some(denied) = self.denials.find(charge.key, charge.limit, charge.cost, now) {
                answers[*place] = Answer::Decided(denied);
                self.shared.counters.remembered.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }
}

/// Charges one group after another; one that does not fit ends it, and what was charged before is
/// given back.
async fn charge_together(
    store: &Arc<Inner>,
    charges: &[Charge<'_>],
    together: &[usize],
    deadline: Instant,
    answers: &mut Answers,
) {
    let groups = groups(store, charges, together);
    // A request that only asks, or that one of its limits never admits, spends nothing anywhere.
    let look = together.iter().any(|place| {
        let charge = &charges[*place];
        charge.cost == 0 || charge.cost > charge.limit.capacity()
    });
    if let [(group, places)] = groups.as_slice() {
        let told = submit(store, *group, charges, places, look);
        note(answers, places, wait(store, told, deadline).await);
        return;
    }
    let mut given = GiveBack { store, refunds: Vec::new() };
    for (group, places) in groups {
        let told = submit(store, group, charges, &places, look);
        note(answers, &places, wait(store, told, deadline).await);
        let decided = |place: &usize| answers[*place].outcome();
        if !look && places.iter().filter_map(decided).any(|outcome| !outcome.is_allowed()) {
            given.now(deadline).await;
            // What was given back is as if it had not been asked.
            for place in together {
                if let Answer::Decided(outcome) = &mut answers[*place]
                    && outcome.slip().is_some()
                {
                    *outcome = outcome.without_slip();
                    let whole = outcome.remaining.saturating_add(charges[*place].cost);
                    outcome.remaining = whole.min(outcome.limit);
                }
            }
            return;
        }
        given.refunds.extend(places.iter().filter_map(|place| {
            let (charge, slip) = (&charges[*place], answers[*place].outcome()?.slip()?);
            let limit = Arc::clone(charge.limit);
            Some(Refund { key: charge.key, limit, cost: charge.cost, slip: Some(slip) })
        }));
    }
    given.refunds.clear();
}

/// The charges by group, groups in the order of their first charge.
fn groups(
    store: &Inner,
    charges: &[Charge<'_>],
    together: &[usize],
) -> SmallVec<[(Group, Places); 2]> {
    let mut groups: SmallVec<[(Group, Places); 2]> = SmallVec::new();
    for place in together {
        let group = store.topology.group(&store.shared, charges[*place].key);
        let full = |places: &Places| places.len() >= Batch::MAX_ITEMS;
        match groups.iter_mut().find(|(known, places)| *known == group && !full(places)) {
            Some((_, places)) => places.push(*place),
            None => groups.push((group, SmallVec::from_slice(&[*place]))),
        }
    }
    groups
}

/// Hands a group of charges to its server.
fn submit(
    store: &Inner,
    group: Group,
    charges: &[Charge<'_>],
    places: &[usize],
    look: bool,
) -> oneshot::Receiver<Delivery> {
    let items = places.iter().map(|place| {
        let charge = &charges[*place];
        Item { key: charge.key, limit: Arc::clone(charge.limit), cost: charge.cost }
    });
    let (errand, told) = Errand::new(items.collect(), look);
    store.shared.counters.carried.fetch_add(1, Ordering::Relaxed);
    match store.topology.node(group) {
        Ok(node) => node.submit(errand),
        Err(error) => errand.tell(Err(error)),
    }
    told
}

/// The answer, or that it did not come in time.
async fn wait(store: &Inner, told: oneshot::Receiver<Delivery>, deadline: Instant) -> Told {
    let answer = match timeout_at(deadline, told).await {
        Ok(Ok(told)) => told.take(),
        Ok(Err(_)) => Err(StoreError::Interrupted {
            store: "redis".into(),
            reason: "the call was given up".into(),
        }),
        Err(_) => {
            Err(StoreError::Timeout { store: "redis".into(), after: store.shared.config.timeout() })
        }
    };
    // The call that carries the charge has the same timeout, and may report it first.
    if let Err(StoreError::Timeout { .. }) = answer {
        store.shared.counters.late.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

fn note(answers: &mut Answers, places: &[usize], told: Told) {
    match told {
        Ok(outcomes) => {
            for (place, outcome) in places.iter().zip(outcomes) {
                answers[*place] = Answer::Decided(outcome);
            }
        }
        Err(error) => {
            for place in places {
                answers[*place] = Answer::Failed(error.clone());
            }
        }
    }
}

/// Charges to be given back unless the request goes through, even when whoever asked is gone.
struct GiveBack<'s> {
    store: &'s Arc<Inner>,
    refunds: Vec<Refund>,
}

impl GiveBack<'_> {
    /// Gives back, and waits for it as long as there is time.
    async fn now(&mut self, deadline: Instant) {
        if self.refunds.is_empty() {
            return;
        }
        let given = self.store.give_back(std::mem::take(&mut self.refunds));
        // Out of time it goes on without us.
        let _ = timeout_at(deadline, given).await;
    }
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            drop(self.store.give_back(std::mem::take(&mut self.refunds)));
        }
    }
}
