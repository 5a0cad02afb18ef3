//! The demand of a client. It decides whether to lease tokens ahead of use, and how many.

use tidegate_core::{Span, Timestamp};

/// Time for which requests are counted before a rate is computed.
const RATE_WINDOW: Span = Span::from_millis(100);
/// Time for which a lease should last.
const LEASE_AHEAD: Span = Span::SECOND;
/// The smallest lease of a busy client. A client that other rules deny is charged from it and rolled back.
pub(crate) const MIN_LEASE: u64 = 8;

/// Tokens per second that a client requests, and those that it is admitted.
///
/// Requested tokens, denied or not, decide whether the client is busy. Only admitted ones decide how much
/// to lease: a client that other rules deny uses no tokens of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// The start of the current window.
    since: Timestamp,
    requested: u64,
    admitted: u64,
    /// Set if this limit denied a request in the current window: the demand is higher than `admitted`.
    limited: bool,
    requested_rate: u64,
    admitted_rate: u64,
}

impl Demand {
    /// Counts a request before it is decided.
    #[inline]
    pub(crate) fn request(&mut self, now: Timestamp, cost: u64) {
        self.advance(now);
        self.requested = self.requested.saturating_add(cost);
    }

    /// Counts the request as admitted.
    #[inline]
    pub(crate) fn admit(&mut self, cost: u64) {
        self.admitted = self.admitted.saturating_add(cost);
    }

    /// Uncounts an admission, because another rule denied the request.
    pub(crate) fn revoke(&mut self, cost: u64) {
        self.admitted = self.admitted.saturating_sub(cost);
    }

    /// Records that this limit denied a request.
    pub(crate) fn record_denial(&mut self) {
        self.limited = true;
    }

    /// Returns whether the client requests at least `min_rate` tokens per second. A new client is busy as soon as
    /// it has requested that many.
    pub(crate) fn is_busy(&mut self, now: Timestamp, min_rate: u64) -> bool {
        self.advance(now);
        self.requested_rate.max(self.requested) >= min_rate
    }

    /// Returns the number of tokens to lease: those that the client is expected to use within a second, or 0 if it
    /// is not busy.
    pub(crate) fn expected_use(&mut self, now: Timestamp, min_rate: u64) -> u64 {
        let busy = self.is_busy(now, min_rate);
        if busy { self.admitted_rate.max(self.admitted).max(MIN_LEASE) } else { 0 }
    }

    #[inline]
    fn advance(&mut self, now: Timestamp) {
        let passed = now.since(self.since);
        if passed >= RATE_WINDOW {
            self.roll_window(passed);
            *self = Self { since: now, requested: 0, admitted: 0, limited: false, ..*self };
        }
    }

    fn roll_window(&mut self, passed: Span) {
        let rate = |counted: u64| {
            let rate = u128::from(counted) * u128::from(LEASE_AHEAD.as_micros())
                / u128::from(passed.as_micros().max(1));
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        self.requested_rate = smooth(self.requested_rate, rate(self.requested));
        let admitted = rate(self.admitted);
        self.admitted_rate = if self.limited {
            // The limit denied a part of the demand, so admitted tokens are only a lower bound of it.
            admitted.max(self.admitted_rate.min(self.requested_rate))
        } else {
            smooth(self.admitted_rate, admitted)
        };
    }
}

/// Smooths a rate: it rises at once and falls by half per window, so that a short pause changes little. The result
/// is at most four times the measured rate.
fn smooth(before: u64, measured: u64) -> u64 {
    measured.max(before / 2).min(measured.saturating_mul(4).max(measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RATE: u64 = 8;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000) + Span::from_millis(millis)
    }

    /// Returns the size of a lease after `count` admissions of one token, `every` apart.
    fn leased(every: Span, count: u64) -> u64 {
        let (mut demand, mut now) = (Demand::default(), at(0));
        for _ in 0..count {
            demand.request(now, 1);
            demand.admit(1);
            now = now + every;
        }
        demand.expected_use(now, MIN_RATE)
    }

    #[test]
    fn client_below_the_minimum_rate_gets_no_lease() {
        assert_eq!(leased(Span::from_secs(1_800), 10), 0);
        assert_eq!(leased(Span::from_millis(150), 50), 0);
    }

    #[test]
    fn busy_client_gets_a_lease_for_one_second() {
        let leased = leased(Span::from_micros(20), 100_000);
        assert!((40_000..=60_000).contains(&leased), "{leased}");
    }

    #[test]
    fn lease_of_a_new_client_covers_its_first_requests_and_an_idle_client_gets_none() {
        let mut demand = Demand::default();
        for _ in 0..10 {
            demand.request(at(0), 1);
            demand.admit(1);
        }
        assert_eq!(demand.expected_use(at(0), MIN_RATE), 10);
        assert!(demand.expected_use(at(100), MIN_RATE) >= 10);
        assert_eq!(demand.expected_use(at(60_000), MIN_RATE), 0);
    }

    #[test]
    fn requests_denied_by_other_rules_make_a_client_busy_and_do_not_enlarge_its_lease() {
        let mut demand = Demand::default();
        for millis in 0..1_000 {
            demand.request(at(millis), 10);
            demand.admit(10);
            demand.revoke(10);
            assert!(demand.expected_use(at(millis), MIN_RATE) <= MIN_LEASE);
        }
        assert_eq!(demand.expected_use(at(1_000), MIN_RATE), MIN_LEASE);
    }

    #[test]
    fn denials_by_this_limit_do_not_lower_the_demand() {
        let mut demand = Demand::default();
        for millis in 0..1_000 {
            demand.request(at(millis), 1);
            if millis < 500 {
                demand.admit(1);
            } else {
                demand.record_denial();
            }
        }
        let expected = demand.expected_use(at(1_000), MIN_RATE);
        assert!((900..=1_100).contains(&expected), "{expected}");
        // The demand never exceeds the requested rate.
        for millis in 1_000..2_000 {
            demand.record_denial();
            demand.request(at(millis), u64::from(millis % 10 == 0));
        }
        let expected = demand.expected_use(at(2_000), MIN_RATE);
        assert!((90..=200).contains(&expected), "{expected}");
    }
}
