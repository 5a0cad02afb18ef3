//! Ends connections that stay in one phase for too long. Each records its phase, and one sweep checks them all.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate_core::{Span, Timestamp};
use tokio::task::AbortHandle;

/// Interval of the sweeps. A connection has up to two intervals more than its timeout.
pub const SWEEP_INTERVAL: Span = Span::SECOND;

/// Sweeps after which an evicted connection is aborted, and after which one without a request may be evicted.
const EVICTION_TICKS: u64 = 2;
/// Most connections that one scan selects for eviction.
const MAX_CANDIDATES: usize = 64;
/// A scan of all connections is allowed once a sweep, and once for each 1/16 of them that is wanted.
const SCAN_SHARE: usize = 16;

/// The timeout of each phase of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
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
            head: Span::from_secs(10),
            request: Span::from_secs(30),
            idle: Span::from_secs(90),
            drain: Span::from_secs(25),
            idle_grace: None,
        }
    }
}

/// Ends connections that have been in one phase for too long, and finds those that were idle for the longest time.
#[derive(Debug)]
pub(crate) struct ConnectionWatcher {
    timeouts: ConnectionTimeouts,
    /// Time of the next sweep.
    pub next: Timestamp,
    /// Number of sweeps so far, at least [`SWEEP_INTERVAL`] apart. Timeouts count sweeps and not time: a process that was
    /// stopped has not read the bytes that its clients sent meanwhile.
    ticks: Arc<AtomicU64>,
    watched: Vec<WatchedConnection>,
    closing: bool,
    /// Connections to evict, the first one first. A candidate in another phase by then is skipped.
    candidates: VecDeque<EvictionCandidate>,
    /// Evicted connections that may not have ended, and the ticks of their eviction.
    evicted: VecDeque<(WatchedConnection, u64)>,
    /// The tick of the last scan for candidates, and the number of evictions that were wanted since.
    last_scan: Option<u64>,
    wanted: usize,
}

#[derive(Clone, Debug)]
struct WatchedConnection {
    activity: Arc<Activity>,
    task: AbortHandle,
}

/// A connection that may be evicted while it stays in its phase.
#[derive(Debug)]
struct EvictionCandidate {
    connection: WatchedConnection,
    phase_and_tick: (Phase, u64),
}

impl WatchedConnection {
    /// Returns whether no request is in flight.
    fn has_no_request(&self) -> bool {
        matches!(self.activity.phase(), Phase::Idle | Phase::Head)
    }
}

impl ConnectionWatcher {
    pub(crate) fn new(timeouts: ConnectionTimeouts, now: Timestamp) -> Self {
        Self {
            timeouts,
            next: now + SWEEP_INTERVAL,
            ticks: Arc::default(),
            watched: Vec::new(),
            closing: false,
            candidates: VecDeque::new(),
            evicted: VecDeque::new(),
            last_scan: None,
            wanted: 0,
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
        self.evicted.retain(|(connection, evicted)| {
            let overdue = ticks >= evicted + EVICTION_TICKS && connection.has_no_request();
            if overdue {
                connection.task.abort();
            }
            !overdue && !connection.task.is_finished()
        });
    }

    /// Returns the number of sweeps for which the next connection to evict has been idle, and the number of connections.
    /// `None` if none is idle.
    ///
    /// If none is idle, it may be a connection that has sent no complete request for more than a second.
    pub(crate) fn idle_age(&mut self) -> Option<(u64, usize)> {
        self.wanted += 1;
        loop {
            while let Some(candidate) = self.candidates.front() {
                let EvictionCandidate { connection, phase_and_tick } = candidate;
                let current = connection.activity.phase_and_tick();
                let is_open = connection.activity.is_open() && !connection.task.is_finished();
                if is_open && current == *phase_and_tick {
                    let age = self.ticks.load(Ordering::Relaxed).saturating_sub(current.1);
                    return Some((age, self.watched.len()));
                }
                self.candidates.pop_front();
            }
            if !self.find_candidates() {
                return None;
            }
        }
    }

    /// Selects the connections that were idle for the longest time. Returns `false` if there is none, or if the last scan
    /// was too recent: its cost is spread over many new connections.
    fn find_candidates(&mut self) -> bool {
        let tick = self.ticks.load(Ordering::Relaxed);
        if self.last_scan == Some(tick) && self.wanted < self.watched.len() / SCAN_SHARE {
            return false;
        }
        (self.last_scan, self.wanted) = (Some(tick), 0);
        let (mut idle, mut silent) = (Vec::new(), Vec::new());
        for (index, connection) in self.watched.iter().enumerate() {
            if !connection.activity.is_open() || connection.task.is_finished() {
                continue;
            }
            match connection.activity.phase_and_tick() {
                (Phase::Idle, since) => idle.push((since, index)),
                (Phase::Head, since) if tick >= since + EVICTION_TICKS => {
                    silent.push((since, index));
                }
                _ => {}
            }
        }
        let (phase, mut found) = match idle.is_empty() {
            false => (Phase::Idle, idle),
            true => (Phase::Head, silent),
        };
        if found.len() > MAX_CANDIDATES {
            found.select_nth_unstable(MAX_CANDIDATES);
            found.truncate(MAX_CANDIDATES);
        }
        found.sort_unstable();
        self.candidates.extend(found.into_iter().map(|(since, index)| EvictionCandidate {
            connection: self.watched[index].clone(),
            phase_and_tick: (phase, since),
        }));
        !self.candidates.is_empty()
    }

    /// Closes the connection that [`idle_age`](Self::idle_age) has found. Returns `false` if it has ended meanwhile.
    pub(crate) fn evict_idle(&mut self) -> bool {
        let Some(candidate) = self.candidates.pop_front() else { return false };
        let connection = candidate.connection;
        if !connection.activity.evict() {
            return false;
        }
        self.evicted.push_back((connection, self.ticks.load(Ordering::Relaxed)));
        true
    }

    /// Aborts the evicted connection that has been closing for the longest time. Returns `false` if there is none without
    /// a request in flight.
    pub(crate) fn abort_evicted(&mut self) -> bool {
        self.evicted.retain(|(connection, _)| !connection.task.is_finished());
        let index = self.evicted.iter().position(|(connection, _)| connection.has_no_request());
        let Some((connection, _)) = index.and_then(|index| self.evicted.remove(index)) else {
            return false;
        };
        connection.task.abort();
        true
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
    /// [`OPEN`], [`EVICTED`] or [`ENDED`].
    state: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

/// States of a connection. An eviction and the end of the connection may race, and the first one wins.
const OPEN: u8 = 0;
const EVICTED: u8 = 1;
const ENDED: u8 = 2;

impl Activity {
    /// Creates the record of a new connection, in the phase of its first request head.
    fn new(ticks: Arc<AtomicU64>) -> Self {
        let activity = Self {
            phase_and_tick: AtomicU64::new(0),
            ticks,
            closing: AtomicBool::new(false),
            state: AtomicU8::new(OPEN),
            waker: Mutex::new(None),
        };
        activity.set_phase(Phase::Head);
        activity
    }

    /// Creates the record of a connection that no listener watches.
    #[cfg(any(test, feature = "test-util"))]
    pub fn unwatched() -> Self {
        Self::new(Arc::default())
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

    /// Returns whether the connection was neither evicted nor has ended.
    fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    /// Makes the connection end after its request in flight. Returns `false` if it has ended or was evicted before.
    fn evict(&self) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let evicted = self.state.compare_exchange(OPEN, EVICTED, order, failed).is_ok();
        if evicted {
            self.close();
        }
        evicted
    }

    /// Records the end of the connection, and returns whether it was evicted.
    pub(crate) fn end(&self) -> bool {
        self.state.swap(ENDED, Ordering::AcqRel) == EVICTED
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
