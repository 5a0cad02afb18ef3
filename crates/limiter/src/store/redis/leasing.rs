//! Asks of nodes that hold tokens ahead of use: those that wait for one place travel together.
//!
//! Sent once. The call goes on when whoever asked has no time left: what it held then expires.

mod letter;
mod post;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join_all};
use tidegate_core::{Ask, Granted, Key, Limit, Span};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::letter::{Letter, Read};
pub(super) use self::post::Post;
use self::post::Posted;
use super::node::Node;
use super::topology::Group;
use super::{Inner, charging};
use crate::store::{Answer, Charge, StoreError};

/// A letter is sent once, and again if its state was last used by another limit. The script decides on
/// one that brings what it takes over.
const TRIES: usize = 2;

type Told = Result<Granted, StoreError>;

/// Asks for everything, and answers within the deadline, in the order of `asks`.
pub(super) async fn ask(store: &Arc<Inner>, asks: &[(Key, Arc<Limit>, Ask)]) -> Vec<Told> {
    let deadline = Instant::now() + store.shared.config.timeout();
    let mut groups: BTreeMap<Group, Vec<Posted>> = BTreeMap::new();
    let (mut exact, mut replies) = (Vec::new(), Vec::new());
    for (place, ask) in asks.iter().enumerate() {
        let (key, limit, _) = ask;
        if !limit.leases() {
            exact.push(place);
            continue;
        }
        let (told, reply) = oneshot::channel();
        let posted = Posted { letter: Letter::new(ask), deadline, told };
        let group = store.topology.group(&store.shared, *key);
        groups.entry(group).or_default().push(posted);
        replies.push((place, reply));
    }
    let asked = u64::try_from(replies.len()).unwrap_or(u64::MAX);
    store.shared.counters.asks.fetch_add(asked, Ordering::Relaxed);
    for (group, letters) in groups {
        post::hand_over(store, group, letters);
    }
    let charges = exact.iter().map(|place| charge(store, &asks[*place]));
    let replies = replies
        .into_iter()
        .map(|(place, reply)| async move { (place, wait(store, reply, deadline).await) });
    let (replies, charges) = join(join_all(replies), join_all(charges)).await;
    let mut answers: Vec<Told> = vec![Err(unanswered()); asks.len()];
    replies.into_iter().for_each(|(place, told)| answers[place] = told);
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

/// What a letter is told, or that it did not come in time.
async fn wait(store: &Inner, reply: oneshot::Receiver<Told>, deadline: Instant) -> Told {
    let told = match timeout_at(deadline, reply).await {
        Ok(Ok(told)) => told,
        Ok(Err(_)) => Err(unanswered()),
        Err(_) => {
            let after = store.shared.config.timeout();
            Err(StoreError::Timeout { store: "redis".into(), after })
        }
    };
    // The connection may have noticed first.
    if let Err(StoreError::Timeout { .. }) = told {
        store.shared.counters.late.fetch_add(1, Ordering::Relaxed);
    }
    told
}

/// Sends letters, those that found a state of another limit again: nothing was done for them.
async fn send(
    store: &Inner,
    node: &Arc<Node>,
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
    let unreadable = || Err(corrupt("it was not decided in time, or its bytes can't be read"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(unreadable)).collect()
}
