//! Clients by the time at which they are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Key, Span, Timestamp};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock::Clock;

/// The longest wait of an empty queue.
const MAX_WAIT: Span = Span::MINUTE;

/// Clients by the time at which they are due. A client that is pushed again is there twice.
#[derive(Debug, Default)]
pub(crate) struct SyncQueue {
    waiting: Mutex<BinaryHeap<Reverse<(Timestamp, Key)>>>,
    sooner: Notify,
    closed: AtomicBool,
}

impl SyncQueue {
    /// Adds a client that is due then.
    pub(crate) fn push(&self, at: Timestamp, key: Key) {
        let first = {
            let mut waiting = self.waiting.lock();
            waiting.push(Reverse((at, key)));
            waiting.peek() == Some(&Reverse((at, key)))
        };
        if first {
            self.sooner.notify_one();
        }
    }

    /// Removes the clients that are due, at most `most`.
    pub(crate) fn due(&self, now: Timestamp, most: usize) -> Vec<(Timestamp, Key)> {
        let (mut due, mut waiting) = (Vec::new(), self.waiting.lock());
        while due.len() < most
            && let Some(Reverse((at, key))) = waiting.peek().copied()
            && at <= now
        {
            waiting.pop();
            due.push((at, key));
        }
        due
    }

    /// Returns when the first client is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.waiting.lock().peek().map(|Reverse((at, _))| *at)
    }

    /// Ends all waits.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.sooner.notify_one();
    }

    /// Waits until the first client is due, or the queue is closed.
    pub(crate) async fn ready(&self, clock: &Clock) {
        while !self.closed.load(Ordering::Acquire) {
            let wait = self.next().map_or(MAX_WAIT, |at| at.since(clock.now()).min(MAX_WAIT));
            if wait.is_zero() {
                return;
            }
            // A timeout and an earlier client are handled alike.
            let _ = timeout(wait.into(), self.sooner.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_time_has_come_is_taken_out_in_order() {
        let queue = SyncQueue::default();
        for (second, key) in [(3, 1), (1, 2), (2, 3), (9, 4)] {
            queue.push(Timestamp::from_secs(second), Key::from_u128(key));
        }
        let due = |now, most| -> Vec<u128> {
            let due = queue.due(Timestamp::from_secs(now), most);
            due.into_iter().map(|(_, key)| key.as_u128()).collect()
        };
        assert_eq!(due(0, 9), [0; 0]);
        assert_eq!(due(3, 2), [2, 3]);
        assert_eq!(due(3, 2), [1]);
    }

    #[tokio::test]
    async fn nobody_waits_for_a_queue_that_is_closed() {
        let (queue, clock) = (SyncQueue::default(), Clock::system());
        queue.push(clock.now() + Span::HOUR, Key::from_u128(1));
        queue.close();
        queue.ready(&clock).await;
    }
}
