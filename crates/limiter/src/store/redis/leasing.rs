//! Asks of nodes that hold tokens ahead of use: those that live in one place travel together.
//!
//! Sent once. The call goes on when whoever asked has no time left: what it held then expires.

mod letter;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join_all};
use tidegate_core::{Ask, Granted, Key, Limit, Span};
use tokio::time::{Instant, timeout_at};

use self::letter::{Letter, Read};
use super::node::Node;
use super::topology::Topology;
use super::{Inner, charging};
use crate::store::{Answer, Charge, StoreError};

/// The most asks of one script call.
const TOGETHER: usize = 64;
/// How often a state may turn out to belong to yet another limit.
const TRIES: usize = 8;

type Told = Result<Granted, StoreError>;

/// Asks for everything, and answers within the deadline, in the order of `asks`.
pub(super) async fn ask(store: &Arc<Inner>, asks: &[(Key, Arc<Limit>, Ask)]) -> Vec<Told> {
    let deadline = Instant::now() + store.shared.config.timeout();
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    let mut exact = Vec::new();
    for (place, (key, limit, _)) in asks.iter().enumerate() {
        if limit.leases() {
            let group = store.topology.group(&store.shared, *key);
            groups.entry(group).or_default().push(place);
        } else {
            exact.push(place);
        }
    }
    // Keys of two clients may be on their way between nodes of a cluster, one there and one not.
    let together = if let Topology::Cluster(_) = store.topology { 1 } else { TOGETHER };
    let calls = groups
        .iter()
        .flat_map(|(group, places)| places.chunks(together).map(|places| (*group, places)));
    let calls = calls.map(|(group, places)| async move {
        let letters = places.iter().map(|place| Letter::new(&asks[*place])).collect();
        let told = match store.topology.node(group) {
            Ok(node) => wait(store, node, letters, deadline).await,
            Err(error) => vec![Err(error); places.len()],
        };
        (places, told)
    });
    let charges = exact.iter().map(|place| charge(store, &asks[*place]));
    let (calls, charges) = join(join_all(calls), join_all(charges)).await;
    let mut answers: Vec<Told> = vec![Err(unanswered()); asks.len()];
    for (places, told) in calls {
        places.iter().zip(told).for_each(|(place, told)| answers[*place] = told);
    }
    exact.into_iter().zip(charges).for_each(|(place, told)| answers[place] = told);
    answers
}

fn unanswered() -> StoreError {
    let reason = "the call was given up".into();
    StoreError::Interrupted { store: "redis".into(), reason }
}

/// A limit of which nothing can be held is charged.
async fn charge(store: &Arc<Inner>, (key, limit, ask): &(Key, Arc<Limit>, Ask)) -> Told {
    let charge = Charge { key: *key, shared: *key, limit, cost: ask.cost, alone: true };
    match charging::charge(store, &[charge]).await.pop() {
        Some(Answer::Decided(outcome)) => {
            Ok(Granted { outcome, held: 0, life: Span::ZERO, standing: None })
        }
        Some(Answer::Failed(error)) => Err(error),
        Some(Answer::Unasked) | None => Err(unanswered()),
    }
}

/// What the letters are told, or that it did not come in time.
async fn wait(
    store: &Arc<Inner>,
    node: Arc<Node>,
    letters: Vec<Letter>,
    deadline: Instant,
) -> Vec<Told> {
    let count = letters.len();
    let all = |error: StoreError| vec![Err(error); count];
    let asked = u64::try_from(count).unwrap_or(u64::MAX);
    store.shared.counters.asks.fetch_add(asked, Ordering::Relaxed);
    let call = store.shared.runtime.spawn(send(Arc::clone(store), node, letters, deadline));
    let told = match timeout_at(deadline, call).await {
        Ok(Ok(told)) => told,
        Ok(Err(_)) => all(unanswered()),
        Err(_) => {
            let after = store.shared.config.timeout();
            all(StoreError::Timeout { store: "redis".into(), after })
        }
    };
    // The connection may have noticed first.
    let late = told.iter().filter(|told| matches!(told, Err(StoreError::Timeout { .. }))).count();
    let late = u64::try_from(late).unwrap_or(u64::MAX);
    store.shared.counters.late.fetch_add(late, Ordering::Relaxed);
    told
}

/// Sends letters, those that found a state of another limit again: nothing was done for them.
async fn send(
    store: Arc<Inner>,
    node: Arc<Node>,
    mut letters: Vec<Letter>,
    deadline: Instant,
) -> Vec<Told> {
    let name: Arc<str> = node.name().into();
    let corrupt =
        |reason: &str| StoreError::Corrupt { store: Arc::clone(&name), reason: reason.into() };
    let mut answers: Vec<Option<Told>> = vec![None; letters.len()];
    for _ in 0..TRIES {
        let open: Vec<usize> =
            (0..letters.len()).filter(|place| answers[*place].is_none()).collect();
        if open.is_empty() || Instant::now() >= deadline {
            break;
        }
        let sent: Vec<&Letter> = open.iter().map(|place| &letters[*place]).collect();
        let (keys, arguments) = letter::address(&store.shared, &sent);
        let reply: Result<Vec<u8>, _> =
            node.call_anywhere(&store.shared.scripts.lease, &keys, &arguments).await;
        let read = match reply {
            Ok(reply) => letter::read(&sent, &reply),
            Err(error) => {
                open.iter().for_each(|place| answers[*place] = Some(Err(error.clone())));
                break;
            }
        };
        for (place, read) in open.into_iter().zip(read) {
            match read {
                Read::Decided(granted) => answers[place] = Some(Ok(granted)),
                Read::Unreadable(reason) => answers[place] = Some(Err(corrupt(reason))),
                Read::TakeOver(takeover) => letters[place].takeover = Some(takeover),
            }
        }
    }
    let stubborn = || Err(corrupt("its limit keeps changing"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(stubborn)).collect()
}
