//! Letters that wait for a server and travel together.
//!
//! While some calls are under way, what else is asked waits, and goes with the next: many clients that
//! come seldom cost few calls, and one that comes alone is sent at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::Inner;
use super::super::topology::{Group, Topology};
use super::letter::Letter;
use super::{Told, send};

/// The most letters of one script call.
const TOGETHER: usize = 64;
/// Calls under way at once to one place: while one is decided, the next is written.
const FLIGHTS: usize = 2;
/// Most letters that may wait for a place; more would only wait longer than they have.
const WAITING: usize = 16_384;

/// A letter, and who waits for what it is told.
pub(super) struct Posted {
    pub(super) letter: Letter,
    pub(super) deadline: Instant,
    pub(super) told: oneshot::Sender<Told>,
}

/// What waits, by the place that keeps it.
#[derive(Default)]
pub(in super::super) struct Post {
    pouches: Mutex<BTreeMap<Group, Pouch>>,
}

#[derive(Default)]
struct Pouch {
    waiting: VecDeque<Posted>,
    flights: usize,
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting: usize = self.pouches.lock().values().map(|pouch| pouch.waiting.len()).sum();
        f.debug_struct("Post").field("waiting", &waiting).finish()
    }
}

/// Sends letters with the next call to their place. One that finds too many waiting is dropped, unsent.
pub(super) fn hand_over(store: &Arc<Inner>, group: Group, letters: Vec<Posted>) {
    let mut pouches = store.post.pouches.lock();
    let pouch = pouches.entry(group).or_default();
    let room = WAITING.saturating_sub(pouch.waiting.len());
    pouch.waiting.extend(letters.into_iter().take(room));
    if pouch.flights < FLIGHTS {
        pouch.flights += 1;
        store.shared.runtime.spawn(fly(Arc::clone(store), group));
    }
}

/// Makes calls as long as something waits.
async fn fly(store: Arc<Inner>, group: Group) {
    while let Some(posted) = load_up(&store, group) {
        let deadline = posted.iter().map(|posted| posted.deadline).max();
        let deadline = deadline.unwrap_or_else(Instant::now);
        let (letters, told): (Vec<Letter>, Vec<oneshot::Sender<Told>>) =
            posted.into_iter().map(|posted| (posted.letter, posted.told)).unzip();
        store.shared.counters.ask_calls.fetch_add(1, Ordering::Relaxed);
        let answers = match store.topology.node(group) {
            Ok(node) => send(&store, &node, letters, deadline).await,
            Err(error) => vec![Err(error); letters.len()],
        };
        for (told, answer) in told.into_iter().zip(answers) {
            // Nobody may wait for it any more: what it held expires.
            let _ = told.send(answer);
        }
    }
}

/// What goes with the next call. Ends the flight when nothing waits.
fn load_up(store: &Inner, group: Group) -> Option<Vec<Posted>> {
    // Keys of two clients may be on their way between nodes of a cluster, one there and one not.
    let most = if let Topology::Cluster(_) = store.topology { 1 } else { TOGETHER };
    let mut pouches = store.post.pouches.lock();
    let pouch = pouches.get_mut(&group)?;
    let mut letters = Vec::new();
    while letters.len() < most
        && let Some(posted) = pouch.waiting.pop_front()
    {
        // What nobody waits for was not sent, and need not be.
        if !posted.told.is_closed() {
            letters.push(posted);
        }
    }
    if letters.is_empty() {
        pouch.flights -= 1;
        if pouch.flights == 0 {
            pouches.remove(&group);
        }
        return None;
    }
    Some(letters)
}
