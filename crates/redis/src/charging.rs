//! Charges of one request, in one or several groups of keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::charge_batch::ChargeBatch;
use super::pending_charge::{ChargeItem, PendingCharge};
use super::reply_guard::{ChargeReply, ReplyGuard};
use super::script_batch::ScriptRequest;
use super::script_queue::wait_for_reply;
use super::store_inner::StoreInner;
use super::topology::KeyGroup;
use tidegate_limiter::store::{Charge, ChargeMode, ChargeResult, ChargeResults, Refund};

/// Indices of charges that are sent together.
type Places = SmallVec<[usize; 4]>;

/// Charges every key of a request. Returns the results within the deadline.
pub(crate) async fn charge(
    store: &Arc<StoreInner>,
    charges: &[Charge<'_>],
    mode: ChargeMode,
) -> ChargeResults {
    let sent = Instant::now();
    let deadline = sent + store.shared.config.timeout();
    let mut results: ChargeResults = charges.iter().map(|_| ChargeResult::Skipped).collect();
    // Independent charges are sent before the others are waited for.
    let independent = places(charges, |charge| charge.independent);
    let waiting: SmallVec<[(usize, oneshot::Receiver<ReplyGuard>); 2]> = independent
        .into_iter()
        .map(|place| {
            let group = store.topology.group(&store.shared, charges[place].key);
            (place, submit(store, group, charges, &[place], mode))
        })
        .collect();
    let together = places(charges, |charge| !charge.independent);
    if !store.deny_from_cache(charges, &together, sent, &mut results) {
        charge_together(store, charges, &together, mode, deadline, &mut results).await;
        // Only denials of the store are cached: one from the cache would renew itself for ever.
        for place in &together {
            if let ChargeResult::Outcome(outcome) = &results[*place] {
                let charge = &charges[*place];
                store.denials.record(charge.key, charge.limit, charge.cost, outcome, sent);
            }
        }
    }
    for (place, reply) in waiting {
        let reply = wait(store, reply, deadline).await;
        set_results(&mut results, &[place], reply);
    }
    results
}

fn places(charges: &[Charge<'_>], wanted: impl Fn(&Charge<'_>) -> bool) -> Places {
    (0..charges.len()).filter(|place| wanted(&charges[*place])).collect()
}

/// Charges one group after another. If one does not fit, the groups before it are refunded and the others are not charged.
async fn charge_together(
    store: &Arc<StoreInner>,
    charges: &[Charge<'_>],
    together: &[usize],
    mode: ChargeMode,
    deadline: Instant,
    results: &mut ChargeResults,
) {
    let groups = groups(store, charges, together);
    // A request that one of its limits never admits spends nothing in any group.
    let exceeds = |place: &usize| charges[*place].cost > charges[*place].limit.capacity();
    let mode = if together.iter().any(exceeds) { ChargeMode::Peek } else { mode };
    if let [(group, places)] = groups.as_slice() {
        let reply = submit(store, *group, charges, places, mode);
        set_results(results, places, wait(store, reply, deadline).await);
        return;
    }
    let mut charged = RollbackGuard { store, refunds: Vec::new() };
    for (group, places) in groups {
        let reply = submit(store, group, charges, &places, mode);
        set_results(results, &places, wait(store, reply, deadline).await);
        let decided = |place: &usize| results[*place].outcome();
        let denied = places.iter().filter_map(decided).any(|outcome| !outcome.is_allowed());
        if mode == ChargeMode::Spend && denied {
            charged.roll_back(deadline).await;
            // Their outcomes are those before the charge.
            for place in together {
                if let ChargeResult::Outcome(outcome) = &mut results[*place]
                    && outcome.refund_token().is_some()
                {
                    *outcome = outcome.non_refundable();
                    let whole = outcome.remaining.saturating_add(charges[*place].cost);
                    outcome.remaining = whole.min(outcome.limit);
                }
            }
            return;
        }
        charged.refunds.extend(places.iter().filter_map(|place| {
            let (charge, refund_token) =
                (&charges[*place], results[*place].outcome()?.refund_token()?);
            let limit = Arc::clone(charge.limit);
            Some(Refund {
                key: charge.key,
                limit,
                cost: charge.cost,
                refund_token: Some(refund_token),
            })
        }));
    }
    charged.refunds.clear();
}

/// Returns the charges by group, groups in the order of their first charge.
fn groups(
    store: &StoreInner,
    charges: &[Charge<'_>],
    together: &[usize],
) -> SmallVec<[(KeyGroup, Places); 2]> {
    let mut groups: SmallVec<[(KeyGroup, Places); 2]> = SmallVec::new();
    for place in together {
        let group = store.topology.group(&store.shared, charges[*place].key);
        let full = |places: &Places| places.len() >= ChargeBatch::MAX_ITEMS;
        match groups.iter_mut().find(|(known, places)| *known == group && !full(places)) {
            Some((_, places)) => places.push(*place),
            None => groups.push((group, SmallVec::from_slice(&[*place]))),
        }
    }
    groups
}

/// Submits a group of charges to its server.
fn submit(
    store: &StoreInner,
    group: KeyGroup,
    charges: &[Charge<'_>],
    places: &[usize],
    mode: ChargeMode,
) -> oneshot::Receiver<ReplyGuard> {
    let items = places.iter().map(|place| {
        let charge = &charges[*place];
        ChargeItem { key: charge.key, limit: Arc::clone(charge.limit), cost: charge.cost }
    });
    let (request, reply) = PendingCharge::new(items.collect(), mode);
    store.shared.counters.carried.fetch_add(1, Ordering::Relaxed);
    match store.topology.node(group) {
        Ok(node) => node.submit_charge(request),
        Err(error) => request.fail(error),
    }
    reply
}

/// Returns the reply, or a timeout once the deadline has passed.
async fn wait(
    store: &StoreInner,
    reply: oneshot::Receiver<ReplyGuard>,
    deadline: Instant,
) -> ChargeReply {
    wait_for_reply(&store.shared, reply, deadline, ReplyGuard::take).await
}

fn set_results(results: &mut ChargeResults, places: &[usize], reply: ChargeReply) {
    match reply {
        Ok(outcomes) => {
            for (place, outcome) in places.iter().zip(outcomes) {
                results[*place] = ChargeResult::Outcome(outcome);
            }
        }
        Err(error) => {
            for place in places {
                results[*place] = ChargeResult::Failed(error.clone());
            }
        }
    }
}

/// Charges that are refunded unless the request is admitted, also when its future is dropped.
struct RollbackGuard<'s> {
    store: &'s Arc<StoreInner>,
    refunds: Vec<Refund>,
}

impl RollbackGuard<'_> {
    /// Refunds the charges, and waits until the deadline for that.
    async fn roll_back(&mut self, deadline: Instant) {
        if self.refunds.is_empty() {
            return;
        }
        let refunding = self.store.refund_in_background(std::mem::take(&mut self.refunds));
        // After the deadline it continues in the background.
        let _ = timeout_at(deadline, refunding).await;
    }
}

impl Drop for RollbackGuard<'_> {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            drop(self.store.refund_in_background(std::mem::take(&mut self.refunds)));
        }
    }
}
