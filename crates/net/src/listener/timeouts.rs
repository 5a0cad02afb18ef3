//! Ends connections that stay in one phase for too long. Each records its phase, and one sweep checks them all.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate_core::{Span, Timestamp};
use tokio::task::AbortHandle;

/// Interval of the sweeps. A connection has up to two intervals more than its timeout.
pub const SWEEP_INTERVAL: Span = Span::SECOND;

/// The maximum number of connections of a listener, and the timeout of each phase.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Most connections at once; more wait to be accepted.
    pub connections: usize,
    /// Time from the first byte of a request, or from connecting, to the end of its head.
    pub head: Span,
    /// Time from the end of the head to the reply, the body included.
    pub request: Span,
    /// Time from one request to the next.
    pub idle: Span,
    /// Time for requests in flight when the listener closes.
    pub drain: Span,
    /// Time for idle connections when the listener closes: a request that is on its way still gets a reply. `None`
    /// ends idle connections at once.
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
pub(crate) struct ConnectionWatcher {
    timeouts: ConnectionTimeouts,
    /// Time of the next sweep.
    pub next: Timestamp,
    /// Number of sweeps so far, at least [`SWEEP_INTERVAL`] apart. Timeouts count sweeps and not time: a process that was
    /// stopped has not read the bytes that its clients sent meanwhile.
    ticks: Arc<AtomicU64>,
    watched: Vec<WatchedConnection>,
    closing: bool,
}

struct WatchedConnection {
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl ConnectionWatcher {
    pub(crate) fn new(timeouts: ConnectionTimeouts, now: Timestamp) -> Self {
        Self {
            timeouts,
            next: now + SWEEP_INTERVAL,
            ticks: Arc::default(),
            watched: Vec::new(),
            closing: false,
        }
    }

    /// Returns the activity record of a new connection.
    pub(crate) fn activity(&self) -> Arc<Activity> {
        Arc::new(Activity::new(Arc::clone(&self.ticks)))
    }

    /// Adds a connection to the sweeps.
    pub(crate) fn watch(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.watched.push(WatchedConnection { activity, task });
    }

    /// Aborts the connections that are overdue.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        self.next = now + SWEEP_INTERVAL;
        self.watched.retain(|connection| {
            let (phase, since) = connection.activity.phase_and_tick();
            // The phase may have begun at the end of its tick.
            let age =
                SWEEP_INTERVAL.checked_mul(ticks.saturating_sub(since + 1)).unwrap_or(Span::ZERO);
            let overdue =
                self.timeouts.of(phase, self.closing).is_some_and(|timeout| age >= timeout);
            if overdue && !connection.task.is_finished() {
                tracing::debug!(?phase, "connection aborted after its timeout");
                connection.task.abort();
            }
            !overdue && !connection.task.is_finished()
        });
    }

    /// Makes every connection end after its request in flight.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.watched.retain(|connection| !connection.task.is_finished());
        self.watched.iter().for_each(|connection| connection.activity.close());
    }

    /// Aborts the connections that are left, and returns their number.
    pub(crate) fn abort_all(&mut self) -> usize {
        self.watched.retain(|connection| !connection.task.is_finished());
        self.watched.iter().for_each(|connection| connection.task.abort());
        self.watched.len()
    }
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the next request.
    Idle,
    /// Reading a head.
    Head,
    /// Reading a body or writing a response.
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
    phase_and_tick: AtomicU64,
    ticks: Arc<AtomicU64>,
    closing: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Activity {
    /// Creates the record of a new connection, in the phase of its first request head.
    fn new(ticks: Arc<AtomicU64>) -> Self {
        let activity = Self {
            phase_and_tick: AtomicU64::new(0),
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
        self.phase_and_tick.store((tick << 2) | bits, Ordering::Relaxed);
    }

    /// Returns the phase.
    pub fn phase(&self) -> Phase {
        self.phase_and_tick().0
    }

    /// Returns the phase and the tick in which it began.
    fn phase_and_tick(&self) -> (Phase, u64) {
        let bits = self.phase_and_tick.load(Ordering::Relaxed);
        let phase = match bits & 3 {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Request,
            _ => Phase::Waiting,
        };
        (phase, bits >> 2)
    }

    /// Returns whether the connection has to end after its request in flight.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns once the connection has to end after its request in flight. One task at a time may wait.
    pub async fn closed(&self) {
        poll_fn(|context| self.poll_closed(context)).await;
    }

    /// Polls for the same as [`closed`](Self::closed). The lock orders the two sides: the closing side finds the waker, or the waiting
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
pub async fn advance_past(time: &tidegate_limiter::ManualClock, span: Span) {
    for _ in 0..span.as_micros() / SWEEP_INTERVAL.as_micros() + 3 {
        time.advance(SWEEP_INTERVAL);
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_in_which_the_process_was_stopped_does_not_count_toward_timeouts() {
        let now = Timestamp::from_micros(1_780_000_000_000_000);
        let mut watcher = ConnectionWatcher::new(ConnectionTimeouts::default(), now);
        let connection = tokio::spawn(std::future::pending::<()>());
        watcher.watch(watcher.activity(), connection.abort_handle());
        let mut now = now + Span::MINUTE;
        watcher.sweep(now);
        assert_eq!(watcher.watched.len(), 1, "aborted after a stall of a minute");
        for _ in 0..12 {
            now = now + SWEEP_INTERVAL;
            watcher.sweep(now);
        }
        assert_eq!(watcher.watched.len(), 0, "not aborted although it sent nothing");
        assert!(connection.await.unwrap_err().is_cancelled());
    }
}
