//! The queue of clients to sync.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Key, Span, Timestamp};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock::Clock;

/// Longest time for which an empty queue sleeps.
const MAX_SLEEP: Span = Span::MINUTE;

/// Clients by the time at which they are due. A client that is pushed twice has two entries.
#[derive(Debug, Default)]
pub(crate) struct SyncQueue {
    waiting: Mutex<BinaryHeap<Reverse<(Timestamp, Key)>>>,
    /// Notified when a client becomes the first one, and when the queue is closed.
    changed: Notify,
    closed: AtomicBool,
}

impl SyncQueue {
    /// Adds a client that is due at `at`.
    pub(crate) fn push(&self, at: Timestamp, key: Key) {
        let first = {
            let mut waiting = self.waiting.lock();
            waiting.push(Reverse((at, key)));
            waiting.peek() == Some(&Reverse((at, key)))
        };
        if first {
            self.changed.notify_one();
        }
    }

    /// Removes and returns the due clients, at most `max`.
    pub(crate) fn take_due(&self, now: Timestamp, max: usize) -> Vec<(Timestamp, Key)> {
        let (mut due, mut waiting) = (Vec::new(), self.waiting.lock());
        while due.len() < max
            && let Some(Reverse((at, key))) = waiting.peek().copied()
            && at <= now
        {
            waiting.pop();
            due.push((at, key));
        }
        due
    }

    /// Returns the time at which the first client is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.waiting.lock().peek().map(|Reverse((at, _))| *at)
    }

    /// Ends all waits.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Waits until the first client is due, or the queue is closed.
    pub(crate) async fn wait_until_due(&self, clock: &Clock) {
        while !self.closed.load(Ordering::Acquire) {
            let wait = self.next_due().map_or(MAX_SLEEP, |at| at.since(clock.now()).min(MAX_SLEEP));
            if wait.is_zero() {
                return;
            }
            // After a timeout and after a change, the queue is checked again.
            let _ = timeout(wait.into(), self.changed.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_clients_are_taken_in_order() {
        let queue = SyncQueue::default();
        for (second, key) in [(3, 1), (1, 2), (2, 3), (9, 4)] {
            queue.push(Timestamp::from_secs(second), Key::from_u128(key));
        }
        let take_due = |now, max| -> Vec<u128> {
            let due = queue.take_due(Timestamp::from_secs(now), max);
            due.into_iter().map(|(_, key)| key.as_u128()).collect()
        };
        assert_eq!(take_due(0, 9), [0; 0]);
        assert_eq!(take_due(3, 2), [2, 3]);
        assert_eq!(take_due(3, 2), [1]);
    }

    #[tokio::test]
    async fn closed_queue_does_not_block() {
        let (queue, clock) = (SyncQueue::default(), Clock::system());
        queue.push(clock.now() + Span::HOUR, Key::from_u128(1));
        queue.close();
        queue.wait_until_due(&clock).await;
    }
}
