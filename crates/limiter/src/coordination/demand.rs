//! The demand of a client: whether to lease tokens for it ahead of use, and how many.

use tidegate_core::{Span, Timestamp};

/// Requests are counted for this long before a rate is computed.
const WINDOW: Span = Span::from_millis(100);
/// Tokens are leased for this long ahead.
const AHEAD: Span = Span::SECOND;
/// The smallest lease of a busy client. A client that other rules deny takes from it and puts back.
pub(crate) const MIN_LEASE: u64 = 8;

/// Tokens per second that a client requests, and those that it is admitted.
///
/// Requested tokens, denied or not, decide whether the client is busy. Only admitted ones decide how much
/// to lease: a client whose requests other rules deny uses nothing of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// When the current window began.
    since: Timestamp,
    requested: u64,
    admitted: u64,
    /// Whether this limit itself denied a request in the current window: more would have been admitted.
    limited: bool,
    requested_rate: u64,
    admitted_rate: u64,
}

impl Demand {
    /// Counts a request, which is not decided yet.
    #[inline]
    pub(crate) fn request(&mut self, now: Timestamp, cost: u64) {
        self.advance(now);
        self.requested = self.requested.saturating_add(cost);
    }

    /// Counts a request of a moment ago as admitted.
    #[inline]
    pub(crate) fn admit(&mut self, cost: u64) {
        self.admitted = self.admitted.saturating_add(cost);
    }

    /// Counts an admitted request as denied after all, by another rule.
    pub(crate) fn revoke(&mut self, cost: u64) {
        self.admitted = self.admitted.saturating_sub(cost);
    }

    /// Notes that this limit denied a request.
    pub(crate) fn limit(&mut self) {
        self.limited = true;
    }

    /// Whether the client requests at least `min_rate` tokens per second. A client that has just begun is
    /// busy as soon as it requested that many.
    pub(crate) fn is_busy(&mut self, now: Timestamp, min_rate: u64) -> bool {
        self.advance(now);
        self.requested_rate.max(self.requested) >= min_rate
    }

    /// Tokens to lease: those that the client will be admitted soon, or none if it is not busy.
    pub(crate) fn expected_use(&mut self, now: Timestamp, min_rate: u64) -> u64 {
        let busy = self.is_busy(now, min_rate);
        if busy { self.admitted_rate.max(self.admitted).max(MIN_LEASE) } else { 0 }
    }

    #[inline]
    fn advance(&mut self, now: Timestamp) {
        let passed = now.since(self.since);
        if passed >= WINDOW {
            self.roll_window(passed);
            *self = Self { since: now, requested: 0, admitted: 0, limited: false, ..*self };
        }
    }

    fn roll_window(&mut self, passed: Span) {
        let rate = |counted: u64| {
            let rate = u128::from(counted) * u128::from(AHEAD.as_micros())
                / u128::from(passed.as_micros().max(1));
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        self.requested_rate = follow(self.requested_rate, rate(self.requested));
        let admitted = rate(self.admitted);
        self.admitted_rate = if self.limited {
            // What the limit left of the demand is no measure of it.
            admitted.max(self.admitted_rate.min(self.requested_rate))
        } else {
            follow(self.admitted_rate, admitted)
        };
    }
}

/// Follows a rate: up at once, down by half, so that a short pause changes little.
fn follow(before: u64, seen: u64) -> u64 {
    seen.max(before / 2).min(seen.saturating_mul(4).max(seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: u64 = 8;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000) + Span::from_millis(millis)
    }

    /// Tokens that are leased for a client that is admitted one token every so often, after a while.
    fn held(every: Span, count: u64) -> u64 {
        let (mut demand, mut now) = (Demand::default(), at(0));
        for _ in 0..count {
            demand.request(now, 1);
            demand.admit(1);
            now = now + every;
        }
        demand.expected_use(now, FEW)
    }

    #[test]
    fn a_client_that_comes_seldom_is_held_nothing() {
        assert_eq!(held(Span::from_secs(1_800), 10), 0);
        assert_eq!(held(Span::from_millis(150), 50), 0);
    }

    #[test]
    fn a_busy_one_is_held_what_it_uses_in_a_second() {
        let held = held(Span::from_micros(20), 100_000);
        assert!((40_000..=60_000).contains(&held), "{held}");
    }

    #[test]
    fn one_that_has_just_begun_is_believed_and_one_that_stops_forgotten() {
        let mut demand = Demand::default();
        for _ in 0..10 {
            demand.request(at(0), 1);
            demand.admit(1);
        }
        assert_eq!(demand.expected_use(at(0), FEW), 10);
        assert!(demand.expected_use(at(100), FEW) >= 10);
        assert_eq!(demand.expected_use(at(60_000), FEW), 0);
    }

    #[test]
    fn denied_requests_make_a_client_busy_and_its_lease_no_larger() {
        let mut demand = Demand::default();
        for millis in 0..1_000 {
            demand.request(at(millis), 10);
            demand.admit(10);
            demand.revoke(10);
            assert!(demand.expected_use(at(millis), FEW) <= MIN_LEASE);
        }
        assert_eq!(demand.expected_use(at(1_000), FEW), MIN_LEASE);
    }

    #[test]
    fn a_window_in_which_the_limit_denies_lowers_no_demand() {
        let mut demand = Demand::default();
        for millis in 0..1_000 {
            demand.request(at(millis), 1);
            if millis < 500 {
                demand.admit(1);
            } else {
                demand.limit();
            }
        }
        let ahead = demand.expected_use(at(1_000), FEW);
        assert!((900..=1_100).contains(&ahead), "{ahead}");
        // But it is never higher than what is requested.
        for millis in 1_000..2_000 {
            demand.limit();
            demand.request(at(millis), u64::from(millis % 10 == 0));
        }
        let ahead = demand.expected_use(at(2_000), FEW);
        assert!((90..=200).contains(&ahead), "{ahead}");
    }
}
