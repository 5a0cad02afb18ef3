//! Wrong tokens and passwords on one listener: counted, logged at a bounded rate and answered late.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_core::Span;
use tidegate_limiter::Clock;
use tokio::sync::Semaphore;

use crate::listener::ConnectionCounts;
use crate::log_interval::LogInterval;

/// Delay of the answer to a wrong token or password.
const ANSWER_DELAY: Span = Span::SECOND;
/// Most answers that are delayed at the same time. They hold connections, which must stay available to others.
const MAX_DELAYED_ANSWERS: usize = 16;

/// The wrong tokens and passwords of one listener. A caller with the right one never waits.
#[derive(Debug)]
pub struct AuthFailures {
    listener: &'static str,
    clock: Clock,
    counts: Arc<ConnectionCounts>,
    delays: Semaphore,
    log: LogInterval,
}

/// The connection after a wrong token or password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The answer was delayed. The connection may stay open.
    KeepOpen,
    /// Too many answers are delayed already. The connection has to be closed, so that the next attempt needs a new one.
    Close,
}

impl AuthFailures {
    /// Returns the failures of a listener. `counts` reports their number.
    pub fn new(listener: &'static str, clock: Clock, counts: Arc<ConnectionCounts>) -> Self {
        Self {
            listener,
            clock,
            counts,
            delays: Semaphore::new(MAX_DELAYED_ANSWERS),
            log: LogInterval::default(),
        }
    }

    /// Counts and logs a wrong token or password, and returns when it may be answered.
    pub async fn delay_answer(&self, peer: SocketAddr) -> AfterFailure {
        self.counts.count_auth_failure();
        let now = self.clock.now();
        if let Some(suppressed) = self.log.permit(now) {
            let listener = self.listener;
            tracing::warn!(listener, %peer, suppressed, "wrong token or password");
        }
        let Ok(_delay) = self.delays.try_acquire() else { return AfterFailure::Close };
        self.clock.sleep_until(now + ANSWER_DELAY).await;
        AfterFailure::KeepOpen
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tidegate_limiter::ManualClock;

    use super::*;

    const PEER: ([u8; 4], u16) = ([192, 0, 2, 7], 4_000);

    #[test]
    fn answers_wait_for_the_delay_and_those_beyond_the_maximum_close_the_connection() {
        let (time, counts) = (ManualClock::default(), Arc::new(ConnectionCounts::default()));
        let failures = AuthFailures::new("admin", time.clock(), Arc::clone(&counts));
        let mut delayed: Vec<_> = (0..MAX_DELAYED_ANSWERS)
            .map(|_| Box::pin(failures.delay_answer(PEER.into())))
            .collect();
        assert!(delayed.iter_mut().all(|answer| answer.now_or_never().is_none()));
        let answer = failures.delay_answer(PEER.into()).now_or_never();
        assert_eq!(answer, Some(AfterFailure::Close));
        time.advance(ANSWER_DELAY);
        for answer in &mut delayed {
            assert_eq!(answer.now_or_never(), Some(AfterFailure::KeepOpen));
        }
        drop(delayed);
        assert!(failures.delay_answer(PEER.into()).now_or_never().is_none());
        assert_eq!(counts.auth_failures(), 18);
    }
}
