//! Ends connections that stay in one phase for too long: each records its phase, and one loop compares them all.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate_core::{Span, Timestamp};
use tokio::task::AbortHandle;

/// Interval of the sweeps. A connection has up to two intervals more than its timeout.
pub const SWEEP_INTERVAL: Span = Span::SECOND;

/// The number of connections of a listener, and the timeouts of each phase.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Most connections at once; more wait to be accepted.
    pub connections: usize,
    /// From the first byte of a request, or from connecting, to the end of its head.
    pub head: Span,
    /// From the end of the head to the reply, the body included.
    pub request: Span,
    /// From one request to the next.
    pub idle: Span,
    /// For requests in flight when the listener closes.
    pub drain: Span,
    /// For idle connections when the listener closes: a request that is on its way is still answered. Without it
    /// idle connections end at once.
    pub idle_grace: Option<Span>,
}

impl Default for ConnectionTimeouts {
    fn default() -> Self {
        Self {
            connections: 10_000,
            head: Span::from_secs(10),
            request: Span::from_secs(30),
            idle: Span::from_secs(90),
            drain: Span::from_secs(25),
            idle_grace: None,
        }
    }
}

/// Ends connections that have been in one phase for too long.
pub(super) struct Watcher {
    timeouts: ConnectionTimeouts,
    /// When the next sweep is due.
    pub next: Timestamp,
    /// Number of sweeps so far, at least [`SWEEP_INTERVAL`] apart. A process that was stopped for a while, or had no processor, has
    /// not read what its clients sent meanwhile: that time does not count.
    ticks: Arc<AtomicU64>,
    held: Vec<WatchedConnection>,
    closing: bool,
}

struct WatchedConnection {
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl Watcher {
    pub(super) fn starting(timeouts: ConnectionTimeouts, now: Timestamp) -> Self {
        Self {
            timeouts,
            next: now + SWEEP_INTERVAL,
            ticks: Arc::default(),
            held: Vec::new(),
            closing: false,
        }
    }

    /// Returns the activity record of a new connection.
    pub(super) fn activity(&self) -> Arc<Activity> {
        Arc::new(Activity::starting(Arc::clone(&self.ticks)))
    }

    /// Sweeps a connection from now on.
    pub(super) fn hold(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.held.push(WatchedConnection { activity, task });
    }

    /// Aborts the connections that are overdue.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        self.next = now + SWEEP_INTERVAL;
        self.held.retain(|held| {
            let (phase, since) = held.activity.noted();
            // The phase may have begun at the end of its tick.
            let age =
                SWEEP_INTERVAL.checked_mul(ticks.saturating_sub(since + 1)).unwrap_or(Span::ZERO);
            let overdue = self.timeouts.of(phase, self.closing).is_some_and(|most| age >= most);
            if overdue && !held.task.is_finished() {
                tracing::debug!(?phase, "connection aborted, it took too long");
                held.task.abort();
            }
            !overdue && !held.task.is_finished()
        });
    }

    /// Asks every connection to end after its request in flight.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.held.retain(|held| !held.task.is_finished());
        self.held.iter().for_each(|held| held.activity.close());
    }

    /// Aborts the connections that are left, and returns their number.
    pub(super) fn cut_off(&mut self) -> usize {
        self.held.retain(|held| !held.task.is_finished());
        self.held.iter().for_each(|held| held.task.abort());
        self.held.len()
    }
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the next request.
    Idle,
    /// Reading a head.
    Head,
    /// Reading a body or answering.
    Request,
    /// Waiting for an upstream or a queue, with a timeout of its own.
    Waiting,
}

impl ConnectionTimeouts {
    /// Returns the timeout of a phase, if it has one.
    fn of(&self, phase: Phase, closing: bool) -> Option<Span> {
        match phase {
            Phase::Idle if closing => Some(self.idle_grace.unwrap_or(self.idle).min(self.idle)),
            Phase::Idle => Some(self.idle),
            Phase::Head => Some(self.head),
            Phase::Request => Some(self.request),
            Phase::Waiting => None,
        }
    }
}

/// The phase of a connection, the tick in which it began, and whether the connection has to end.
#[derive(Debug)]
pub struct Activity {
    /// The tick of the last change, and the phase in the lowest two bits.
    noted: AtomicU64,
    ticks: Arc<AtomicU64>,
    closing: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Activity {
    /// A new connection: its first request head is due.
    fn starting(ticks: Arc<AtomicU64>) -> Self {
        let activity = Self {
            noted: AtomicU64::new(0),
            ticks,
            closing: AtomicBool::new(false),
            waker: Mutex::new(None),
        };
        activity.set_phase(Phase::Head);
        activity
    }

    /// Records the phase that begins now.
    pub fn set_phase(&self, phase: Phase) {
        let bits = match phase {
            Phase::Idle => 0,
            Phase::Head => 1,
            Phase::Request => 2,
            Phase::Waiting => 3,
        };
        let tick = self.ticks.load(Ordering::Relaxed);
        self.noted.store((tick << 2) | bits, Ordering::Relaxed);
    }

    /// Returns the phase.
    pub fn phase(&self) -> Phase {
        self.noted().0
    }

    /// Returns the phase and the tick in which it began.
    fn noted(&self) -> (Phase, u64) {
        let noted = self.noted.load(Ordering::Relaxed);
        let phase = match noted & 3 {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Request,
            _ => Phase::Waiting,
        };
        (phase, noted >> 2)
    }

    /// Whether the connection has to end after its request in flight.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns once the connection has to end after its request in flight. One task at a time may wait.
    pub async fn closed(&self) {
        poll_fn(|context| self.poll_closed(context)).await;
    }

    /// As [`closed`](Self::closed). The lock orders the two sides: the closing side finds the waker, or the waiting
    /// side finds the flag.
    pub fn poll_closed(&self, context: &Context<'_>) -> Poll<()> {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_closing() {
            return Poll::Ready(());
        }
        match &mut *waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Advances a manual clock past a timeout of this span, one sweep at a time.
#[cfg(any(test, feature = "test-util"))]
pub async fn pass(time: &tidegate_limiter::ManualClock, span: Span) {
    for _ in 0..span.as_micros() / SWEEP_INTERVAL.as_micros() + 3 {
        time.advance(SWEEP_INTERVAL);
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_in_which_the_process_did_not_run_is_not_the_clients() {
        let now = Timestamp::from_micros(1_780_000_000_000_000);
        let mut watcher = Watcher::starting(ConnectionTimeouts::default(), now);
        let connection = tokio::spawn(std::future::pending::<()>());
        watcher.hold(watcher.activity(), connection.abort_handle());
        let mut now = now + Span::MINUTE;
        watcher.sweep(now);
        assert_eq!(watcher.held.len(), 1, "cut off after a stall of a minute");
        for _ in 0..12 {
            now = now + SWEEP_INTERVAL;
            watcher.sweep(now);
        }
        assert_eq!(watcher.held.len(), 0, "not cut off although it sent nothing");
        assert!(connection.await.unwrap_err().is_cancelled());
    }
}
