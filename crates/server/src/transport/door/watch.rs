//! Keeps no connection that does nothing: each notes what it does, and one loop looks at all notes.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate::{Span, Timestamp};
use tokio::task::AbortHandle;

/// How often connections are looked at: each has up to two of these more than its patience says.
pub(crate) const LOOK: Span = Span::SECOND;

/// How many connections a door holds, and how long each may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Most connections at once; more wait to be accepted.
    pub(crate) connections: usize,
    /// From the first byte of a request, or from connecting, to the end of its head.
    pub(crate) head: Span,
    /// From the end of the head to the reply, the body included.
    pub(crate) request: Span,
    /// From one request to the next.
    pub(crate) idle: Span,
    /// For requests under way when the door closes.
    pub(crate) drain: Span,
    /// For idle connections when the door closes, whose clients may be about to ask: they are answered
    /// once more. Without it idle connections end at once.
    pub(crate) parting: Option<Span>,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connections: 10_000,
            head: Span::from_secs(10),
            request: Span::from_secs(30),
            idle: Span::from_secs(90),
            drain: Span::from_secs(25),
            parting: None,
        }
    }
}

/// Ends connections that have been in one phase for too long.
pub(super) struct Watcher {
    patience: Patience,
    /// When to look again.
    pub(super) next: Timestamp,
    /// Number of looks so far, at least [`LOOK`] apart. A process that was stopped for a while, or had no processor, has
    /// not read what its clients sent meanwhile: that time does not count.
    ticks: Arc<AtomicU64>,
    held: Vec<Held>,
    closing: bool,
}

struct Held {
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl Watcher {
    pub(super) fn starting(patience: Patience, now: Timestamp) -> Self {
        Self { patience, next: now + LOOK, ticks: Arc::default(), held: Vec::new(), closing: false }
    }

    /// The notes of a new connection.
    pub(super) fn activity(&self) -> Arc<Activity> {
        Arc::new(Activity::starting(Arc::clone(&self.ticks)))
    }

    /// Looks after a connection from now on.
    pub(super) fn hold(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.held.push(Held { activity, task });
    }

    /// Cuts off whoever is overdue.
    pub(super) fn look(&mut self, now: Timestamp) {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        self.next = now + LOOK;
        self.held.retain(|held| {
            let (phase, since) = held.activity.noted();
            // The note may be from the very end of its tick.
            let age = LOOK.checked_mul(ticks.saturating_sub(since + 1)).unwrap_or(Span::ZERO);
            let overdue = self.patience.of(phase, self.closing).is_some_and(|most| age >= most);
            if overdue && !held.task.is_finished() {
                tracing::debug!(?phase, "connection cut off, it took too long");
                held.task.abort();
            }
            !overdue && !held.task.is_finished()
        });
    }

    /// Tells every connection to end after the request that is under way.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.held.retain(|held| !held.task.is_finished());
        self.held.iter().for_each(|held| held.activity.close());
    }

    /// Cuts off everybody who is left: how many.
    pub(super) fn cut_off(&mut self) -> usize {
        self.held.retain(|held| !held.task.is_finished());
        self.held.iter().for_each(|held| held.task.abort());
        self.held.len()
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for the next request.
    Idle,
    /// Reading a head.
    Head,
    /// Reading a body or answering.
    Request,
    /// Waiting for somebody else, by a time limit of its own.
    Waiting,
}

impl Patience {
    /// How long a phase may last, if there is a limit.
    fn of(&self, phase: Phase, closing: bool) -> Option<Span> {
        match phase {
            Phase::Idle if closing => Some(self.parting.unwrap_or(self.idle).min(self.idle)),
            Phase::Idle => Some(self.idle),
            Phase::Head => Some(self.head),
            Phase::Request => Some(self.request),
            Phase::Waiting => None,
        }
    }
}

/// What a connection is doing and since when, and whether it is to end.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The tick of the last change, and the phase in the lowest two bits.
    noted: AtomicU64,
    ticks: Arc<AtomicU64>,
    closing: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Activity {
    /// A new connection owes us a head.
    fn starting(ticks: Arc<AtomicU64>) -> Self {
        let activity = Self {
            noted: AtomicU64::new(0),
            ticks,
            closing: AtomicBool::new(false),
            waker: Mutex::new(None),
        };
        activity.note(Phase::Head);
        activity
    }

    /// Says what the connection does from now on.
    pub(crate) fn note(&self, phase: Phase) {
        let bits = match phase {
            Phase::Idle => 0,
            Phase::Head => 1,
            Phase::Request => 2,
            Phase::Waiting => 3,
        };
        let tick = self.ticks.load(Ordering::Relaxed);
        self.noted.store((tick << 2) | bits, Ordering::Relaxed);
    }

    /// What the connection does.
    pub(crate) fn phase(&self) -> Phase {
        self.noted().0
    }

    /// The phase, and the tick it began in.
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

    /// Whether the connection is to end after what is under way.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns once the connection is to end after what is under way. One task at a time may wait.
    pub(crate) async fn closed(&self) {
        poll_fn(|context| self.poll_closed(context)).await;
    }

    /// As [`closed`](Self::closed). Whoever closes sees the waker, or the waiter sees that it is closed:
    /// the lock puts the two in order.
    pub(crate) fn poll_closed(&self, context: &Context<'_>) -> Poll<()> {
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

/// Lets so much time pass that a connection which has used up this span is cut off: every look has its turn.
#[cfg(test)]
pub(crate) async fn pass(time: &tidegate::ManualClock, span: Span) {
    for _ in 0..span.as_micros() / LOOK.as_micros() + 3 {
        time.advance(LOOK);
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_in_which_the_process_did_not_run_is_not_the_clients() {
        let now = Timestamp::from_micros(1_780_000_000_000_000);
        let mut watcher = Watcher::starting(Patience::default(), now);
        let connection = tokio::spawn(std::future::pending::<()>());
        watcher.hold(watcher.activity(), connection.abort_handle());
        let mut now = now + Span::MINUTE;
        watcher.look(now);
        assert_eq!(watcher.held.len(), 1, "cut off after a stall of a minute");
        for _ in 0..12 {
            now = now + LOOK;
            watcher.look(now);
        }
        assert_eq!(watcher.held.len(), 0, "not cut off although it sent nothing");
        assert!(connection.await.unwrap_err().is_cancelled());
    }
}
