//! Lease requests of nodes: those for one server travel together, and one for a limit without leases is charged.
//!
//! A request is sent once. The call goes on when the caller has no time left: its lease then expires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join_all};
use tidegate_core::{Key, LeaseGrant, LeaseRequest, Limit, Span};
use tokio::time::Instant;

use super::charging;
use super::lease_call::{LeaseCall, LeaseResult};
use super::script_batch::ScriptRequest;
use super::script_queue::wait_for_reply;
use super::store_inner::StoreInner;
use super::topology::KeyGroup;
use tidegate_limiter::store::{Charge, ChargeMode, ChargeResult, StoreError};

/// Sends every request. Returns the results within the deadline, in the order of `requests`.
pub(crate) async fn lease(
    store: &Arc<StoreInner>,
    requests: &[(Key, Arc<Limit>, LeaseRequest)],
) -> Vec<LeaseResult> {
    let deadline = Instant::now() + store.shared.config.timeout();
    let mut groups: BTreeMap<KeyGroup, Vec<LeaseCall>> = BTreeMap::new();
    let (mut exact, mut replies) = (Vec::new(), Vec::new());
    for (place, request) in requests.iter().enumerate() {
        let (key, limit, _) = request;
        if !limit.supports_leases() {
            exact.push(place);
            continue;
        }
        let (call, reply) = LeaseCall::new(request);
        let group = store.topology.group(&store.shared, *key);
        groups.entry(group).or_default().push(call);
        replies.push((place, reply));
    }
    let asked = u64::try_from(replies.len()).unwrap_or(u64::MAX);
    store.shared.counters.asks.fetch_add(asked, Ordering::Relaxed);
    for (group, calls) in groups {
        match store.topology.node(group) {
            Ok(node) => node.submit_leases(calls),
            Err(error) => calls.into_iter().for_each(|call| call.fail(error.clone())),
        }
    }
    let charges = exact.iter().map(|place| charge(store, &requests[*place]));
    let replies = replies.into_iter().map(|(place, reply)| async move {
        (place, wait_for_reply(&store.shared, reply, deadline, |result| result).await)
    });
    let (replies, charges) = join(join_all(replies), join_all(charges)).await;
    let mut results: Vec<LeaseResult> = vec![Err(unanswered()); requests.len()];
    replies.into_iter().for_each(|(place, result)| results[place] = result);
    exact.into_iter().zip(charges).for_each(|(place, result)| results[place] = result);
    results
}

fn unanswered() -> StoreError {
    let reason = "the call was given up".into();
    StoreError::Interrupted { store: "redis".into(), reason }
}

/// Charges a limit that has no leases.
async fn charge(
    store: &Arc<StoreInner>,
    (key, limit, request): &(Key, Arc<Limit>, LeaseRequest),
) -> LeaseResult {
    let charge =
        Charge { key: *key, overflow_key: *key, limit, cost: request.cost, independent: true };
    let mode = ChargeMode::of_cost(request.cost);
    match charging::charge(store, &[charge], mode).await.pop() {
        Some(ChargeResult::Outcome(outcome)) => {
            Ok(LeaseGrant { outcome, granted: 0, ttl: Span::ZERO, snapshot: None })
        }
        Some(ChargeResult::Failed(error)) => Err(error),
        Some(ChargeResult::Skipped) | None => Err(unanswered()),
    }
}
