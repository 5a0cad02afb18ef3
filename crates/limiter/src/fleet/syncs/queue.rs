//! Which clients are to be looked at, and when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Key, Span, Timestamp};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock::Clock;

/// The longest wait when there is nothing to wait for.
const LONG: Span = Span::MINUTE;

/// Clients by when their time comes. One that comes to wait a second time is there twice.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<BinaryHeap<Reverse<(Timestamp, Key)>>>,
    sooner: Notify,
    closed: AtomicBool,
}

impl Queue {
    /// Has a client looked at then.
    pub(super) fn push(&self, at: Timestamp, key: Key) {
        let first = {
            let mut waiting = self.waiting.lock();
            waiting.push(Reverse((at, key)));
            waiting.peek() == Some(&Reverse((at, key)))
        };
        if first {
            self.sooner.notify_one();
        }
    }

    /// Takes out those whose time has come, at most so many.
    pub(super) fn due(&self, now: Timestamp, most: usize) -> Vec<(Timestamp, Key)> {
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

    /// When the time of the first comes.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.waiting.lock().peek().map(|Reverse((at, _))| *at)
    }

    /// Wakes who waits, for good.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.sooner.notify_one();
    }

    /// Waits until the time of the first has come, or there will be none any more.
    pub(super) async fn ready(&self, clock: &Clock) {
        while !self.closed.load(Ordering::Acquire) {
            let wait = self.next().map_or(LONG, |at| at.since(clock.now()).min(LONG));
            if wait.is_zero() {
                return;
            }
            // Sooner or later: both are looked at again.
            let _ = timeout(wait.into(), self.sooner.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_time_has_come_is_taken_out_in_order() {
        let queue = Queue::default();
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
        let (queue, clock) = (Queue::default(), Clock::system());
        queue.push(clock.now() + Span::HOUR, Key::from_u128(1));
        queue.close();
        queue.ready(&clock).await;
    }
}
