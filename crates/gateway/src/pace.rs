//! The minimum pace of a body: bytes in the time for which the gateway waits for the client.
//!
//! A client that sends or takes a body byte by byte would hold its slots for as long as it likes. Only the time counts in
//! which the gateway waits for the client: a slow upstream, or one that sends nothing, is not the fault of the client.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tidegate_core::{Span, Timestamp};
use tidegate_limiter::Clock;
use tidegate_net::listener::ConnectionCounts;
use tidegate_net::log_interval::LogInterval;

/// Bytes of a body that a client has to send or take within `timeouts.body`.
const MIN_BODY_BYTES: u64 = 16 * 1024;

type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The minimum pace of the bodies of one gateway thread.
#[derive(Debug)]
pub(crate) struct PaceLimit {
    clock: Clock,
    timeout: Span,
    counts: Arc<ConnectionCounts>,
    log: LogInterval,
}

impl PaceLimit {
    /// Requires [`MIN_BODY_BYTES`] in each `timeout`.
    pub(crate) fn new(clock: Clock, timeout: Span, counts: Arc<ConnectionCounts>) -> Self {
        Self { clock, timeout, counts, log: LogInterval::default() }
    }

    fn timer(&self, span: Span) -> Timer {
        let clock = self.clock.clone();
        Box::pin(async move { clock.sleep(span).await })
    }

    /// Counts a body that is too slow, and logs it at a bounded rate.
    fn count_slow_body(&self, now: Timestamp, body: &'static str) {
        self.counts.count_slow_body();
        if let Some(suppressed) = self.log.permit(now) {
            tracing::warn!(
                body,
                wanted_bytes = MIN_BODY_BYTES,
                within = %self.timeout,
                suppressed,
                "body too slow, request ended"
            );
        }
    }
}

/// The pace of one body. It is created when the gateway first waits for the client.
pub(crate) struct ClientPace {
    limit: Arc<PaceLimit>,
    /// The direction in the log.
    body: &'static str,
    /// Bytes since the period began.
    bytes: u64,
    /// Time that the gateway still waits in this period.
    left: Span,
    waiting_since: Option<Timestamp>,
    /// Fires at the end of the period or earlier. So a transfer does not move it.
    timer: Timer,
}

impl fmt::Debug for ClientPace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientPace").field("body", &self.body).finish_non_exhaustive()
    }
}

impl ClientPace {
    /// Begins the first period.
    pub(crate) fn new(limit: Arc<PaceLimit>, body: &'static str) -> Self {
        let (left, timer) = (limit.timeout, limit.timer(limit.timeout));
        Self { limit, body, bytes: 0, left, waiting_since: None, timer }
    }

    /// Ends a wait for the client. The bytes that were transferred may begin a new period.
    pub(crate) fn on_transfer(&mut self, bytes: usize) {
        if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(self.limit.clock.now().since(since));
        }
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        if self.bytes >= MIN_BODY_BYTES {
            (self.bytes, self.left) = (0, self.limit.timeout);
        }
    }

    /// Waits for the client. Ready if the period has ended with too few bytes: then the body is counted as slow.
    pub(crate) fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting_since.get_or_insert_with(|| self.limit.clock.now());
        while self.timer.as_mut().poll(context).is_ready() {
            let now = self.limit.clock.now();
            let left = self.left.saturating_sub(now.since(since));
            if left.is_zero() {
                self.limit.count_slow_body(now, self.body);
                return Poll::Ready(());
            }
            self.timer = self.limit.timer(left);
        }
        Poll::Pending
    }
}

/// The progress of the response bodies of one stream, or of one HTTP/1 connection.
#[derive(Debug, Default)]
pub(crate) struct ResponseProgress {
    /// Bytes of frames since the last check.
    bytes: AtomicU64,
    /// Set while the client has to take a frame before the next one is read.
    is_blocked: AtomicBool,
}

impl ResponseProgress {
    /// Records that a frame of the body was passed to the client's connection, which then reads the next frame as soon as
    /// the client takes this one.
    pub(crate) fn on_frame(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        // Only the task of the connection reads and writes the progress.
        let before = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(before.saturating_add(bytes), Ordering::Relaxed);
        self.is_blocked.store(true, Ordering::Relaxed);
    }

    /// Records that the client has to take frames that were passed before, until [`on_read`](Self::on_read).
    pub(crate) fn on_blocked(&self) {
        self.is_blocked.store(true, Ordering::Relaxed);
    }

    /// Records that the client's connection reads the next frame, or that the body has ended.
    pub(crate) fn on_read(&self) {
        self.is_blocked.store(false, Ordering::Relaxed);
    }
}

/// A future that sends response bodies, and ends if the client takes one too slowly.
#[derive(Debug)]
pub(crate) struct PacedResponses<F> {
    sending: F,
    progress: Arc<ResponseProgress>,
    limit: Arc<PaceLimit>,
    /// `None` until the client first has to take a frame.
    pace: Option<Box<ClientPace>>,
}

impl<F> PacedResponses<F> {
    /// Wraps a future that sends the bodies with this progress.
    pub(crate) fn new(sending: F, progress: Arc<ResponseProgress>, limit: Arc<PaceLimit>) -> Self {
        Self { sending, progress, limit, pace: None }
    }
}

impl<F: Future + Unpin> Future for PacedResponses<F> {
    /// `None` if a body was too slow.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = Pin::new(&mut self.sending).poll(context) {
            return Poll::Ready(Some(output));
        }
        let Self { progress, limit, pace, .. } = &mut *self;
        let is_blocked = progress.is_blocked.load(Ordering::Relaxed);
        if pace.is_none() && !is_blocked {
            return Poll::Pending;
        }
        let bytes = progress.bytes.load(Ordering::Relaxed);
        progress.bytes.store(0, Ordering::Relaxed);
        let pace =
            pace.get_or_insert_with(|| Box::new(ClientPace::new(Arc::clone(limit), "response")));
        if bytes > 0 || !is_blocked {
            pace.on_transfer(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        match is_blocked {
            true => pace.poll_slow(context).map(|()| None),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tidegate_limiter::ManualClock;

    use super::*;

    const TIMEOUT: Span = Span::from_secs(60);

    struct Fixture {
        time: ManualClock,
        counts: Arc<ConnectionCounts>,
        limit: Arc<PaceLimit>,
    }

    impl Fixture {
        fn new() -> Self {
            let (time, counts) = (ManualClock::default(), Arc::default());
            let limit = PaceLimit::new(time.clock(), TIMEOUT, Arc::clone(&counts));
            Self { time, counts, limit: Arc::new(limit) }
        }

        fn pace(&self) -> ClientPace {
            ClientPace::new(Arc::clone(&self.limit), "request")
        }

        /// Waits for the client for this time, and returns whether the body is too slow.
        fn wait(&self, pace: &mut ClientPace, span: Span) -> bool {
            let mut context = Context::from_waker(Waker::noop());
            assert!(pace.poll_slow(&mut context).is_pending(), "slow before the wait");
            self.time.advance(span);
            pace.poll_slow(&mut context).is_ready()
        }
    }

    #[test]
    fn body_that_trickles_is_slow_after_the_timeout() {
        let fixture = Fixture::new();
        let mut pace = fixture.pace();
        for _ in 0..5 {
            assert!(!fixture.wait(&mut pace, Span::from_secs(10)));
            pace.on_transfer(1);
        }
        assert_eq!(fixture.counts.slow_bodies(), 0);
        assert!(fixture.wait(&mut pace, Span::from_secs(10)));
        assert_eq!(fixture.counts.slow_bodies(), 1);
    }

    #[test]
    fn enough_bytes_begin_a_new_period() {
        let fixture = Fixture::new();
        let mut pace = fixture.pace();
        for _ in 0..20 {
            assert!(!fixture.wait(&mut pace, Span::from_secs(25)));
            pace.on_transfer(8 * 1024);
        }
    }

    #[test]
    fn earlier_bytes_give_no_credit_to_later_periods() {
        let fixture = Fixture::new();
        let mut pace = fixture.pace();
        pace.on_transfer(1 << 30);
        assert!(!fixture.wait(&mut pace, Span::from_secs(59)));
        pace.on_transfer(1);
        assert!(fixture.wait(&mut pace, Span::from_secs(1)));
    }

    #[test]
    fn time_in_which_the_gateway_does_not_wait_for_the_client_does_not_count() {
        let fixture = Fixture::new();
        let mut pace = fixture.pace();
        for _ in 0..50 {
            assert!(!fixture.wait(&mut pace, Span::SECOND));
            pace.on_transfer(1);
            fixture.time.advance(Span::HOUR);
        }
    }

    #[test]
    fn response_is_slow_only_while_the_client_has_to_take_a_frame() {
        let fixture = Fixture::new();
        let progress = Arc::new(ResponseProgress::default());
        let limit = Arc::clone(&fixture.limit);
        let mut sending =
            PacedResponses::new(std::future::pending::<()>(), Arc::clone(&progress), limit);
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = || Pin::new(&mut sending).poll(&mut context);
        // An upstream that sends one byte per hour is not a slow client.
        for _ in 0..3 {
            progress.on_frame(1);
            progress.on_read();
            assert_eq!(poll(), Poll::Pending);
            fixture.time.advance(Span::HOUR);
        }
        progress.on_frame(64 * 1024);
        assert_eq!(poll(), Poll::Pending);
        fixture.time.advance(Span::from_secs(59));
        assert_eq!(poll(), Poll::Pending);
        fixture.time.advance(Span::SECOND);
        assert_eq!(poll(), Poll::Ready(None));
    }
}
