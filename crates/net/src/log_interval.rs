//! Limits the rate of log lines that clients can cause.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Span, Timestamp};

/// Shortest time between two log lines about the same fault of clients.
const LOG_INTERVAL: Span = Span::from_secs(10);

/// Limits log lines about one fault of clients, to one line in 10 seconds.
#[derive(Debug, Default)]
pub struct LogInterval {
    /// Time from which the next line may be logged, in microseconds.
    next_micros: AtomicU64,
    /// Faults since the last line.
    suppressed: AtomicU64,
}

impl LogInterval {
    /// Returns the number of faults without a line since the last one, or `None` if it is too early for another line.
    pub fn permit(&self, now: Timestamp) -> Option<u64> {
        let next = self.next_micros.load(Ordering::Relaxed);
        let after = (now + LOG_INTERVAL).as_micros();
        // Only the thread that moves the time forward logs.
        let permitted = now.as_micros() >= next
            && self
                .next_micros
                .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !permitted {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_interval_reports_the_suppressed_faults() {
        let (log, start) = (LogInterval::default(), Timestamp::from_secs(1_700_000_000));
        assert_eq!(log.permit(start), Some(0));
        assert_eq!(log.permit(start), None);
        assert_eq!(log.permit(start + Span::from_secs(9)), None);
        assert_eq!(log.permit(start + LOG_INTERVAL), Some(2));
        assert_eq!(log.permit(start + LOG_INTERVAL), None);
    }
}
