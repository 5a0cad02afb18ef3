//! The leases that one node holds for one client, and the usage that it has to report to the store.
//!
//! The node's side of `docs/decisions/0011-leases.md`. Time is an argument, and this module sends nothing: a test
//! can run a whole fleet.

use smallvec::SmallVec;
use tidegate_core::lease::{LeaseGrant, LeaseId, LeaseRequest, UsageReport};
use tidegate_core::{Limit, Outcome, Span, Timestamp, Verdict};

use super::demand::Demand;

/// Lifetime of a lease. Tokens of a crashed node become available again after this time.
pub const LEASE_TTL: Span = Span::from_secs(2);
/// Time without a check after which a client's leases are released.
const IDLE_RELEASE_AFTER: Span = Span::from_millis(500);
/// Interval at which a node closes leases that end soon.
pub const SWEEP_INTERVAL: Span = Span::from_millis(250);
/// Most leases of one client at one node: one in use, the next one, and some that have ended and are not yet
/// reported.
const MAX_LEASES_PER_CLIENT: usize = 6;

/// Longest time for which a denial is cached.
const MAX_DENIAL_CACHE_TTL: Span = Span::SECOND;
/// Shortest pause between requests for a client of a nearly exhausted limit.
const MIN_REFETCH_BACKOFF: Span = Span::from_millis(1);
/// Longest pause between requests for a client of a nearly exhausted limit.
const MAX_REFETCH_BACKOFF: Span = Span::from_millis(250);
/// Number of tokens that a grant should have, if the limit is large enough.
const MIN_USEFUL_GRANT: u64 = 64;
/// Below this many requests per second no lease is taken: every check goes to the store.
pub const MIN_RATE_TO_LEASE: u64 = 8;

/// Leases that this node holds for one client.
#[derive(Debug)]
pub struct ClientLeases {
    /// Below this many requests per second no lease is taken.
    min_rate: u64,
    /// Time before its end at which a lease is closed, see [`closing_time`].
    closing_time: Span,
    /// Oldest first, which is also the order of use.
    leases: SmallVec<[HeldLease; 2]>,
    demand: Demand,
    /// The lease request in flight. At most one is sent at a time.
    pending: Option<PendingLeaseRequest>,
    /// The time of the last check on this node.
    last_check: Timestamp,
    /// The size of the last grant. A refill is due when a quarter of it is left.
    last_grant: u64,
    /// The time at which the last answered request was sent.
    last_request: Timestamp,
    /// Set if more than half of the limit was free at the last grant.
    mostly_free: bool,
    /// A denial that decides checks without the store until it expires.
    cached_denial: Option<CachedDenial>,
}

/// A denial, valid for checks that cost as much or more.
#[derive(Clone, Copy, Debug)]
struct CachedDenial {
    cost: u64,
    outcome: Outcome,
    /// The time at which the request was sent.
    requested_at: Timestamp,
    until: Timestamp,
    /// The client uses more than the limit has left. Tokens are requested while checks are denied, so that no check
    /// waits.
    nearly_exhausted: bool,
}

/// A lease of this node.
#[derive(Clone, Copy, Debug)]
struct HeldLease {
    id: LeaseId,
    spent: u64,
    /// The number of reports about it, answered or not. Reported usage can't be rolled back.
    reports_sent: u32,
    left: u64,
    /// The end of the lease, by this node's clock.
    until: Timestamp,
    /// The time at which it is closed and reported. After a report in time, unused tokens do not count as spent.
    close_at: Timestamp,
    /// Set if it is no longer used. A closed lease is kept until the store has confirmed its report.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct PendingLeaseRequest {
    id: LeaseId,
    sent: Timestamp,
    cost: u64,
    requested: u64,
}

/// Tokens taken from a lease. They can be put back into that lease only.
///
/// In another lease they could be used twice: it may belong to a later window, and the store may already have
/// refilled tokens that were reported as spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDebit {
    id: LeaseId,
    /// The number of reports about the lease when the tokens were taken.
    reports_sent: u32,
    amount: u64,
    /// The whole cost of the check, taken from this lease and others.
    cost: u64,
}

/// The decision of a client's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// Admitted without the store.
    Admitted {
        /// The leased tokens that are left on this node.
        left: u64,
        /// The part that can be rolled back. If the cost was taken from several leases, it is that of the last one.
        debit: LeaseDebit,
    },
    /// The check has to go to the store: the leases have too few tokens.
    AskStore,
}

impl Default for ClientLeases {
    fn default() -> Self {
        Self::new(MIN_RATE_TO_LEASE, closing_time(Span::ZERO))
    }
}

impl ClientLeases {
    /// Creates a client without leases. None is taken below `min_rate` requests per second. Each is closed
    /// [`closing_time`] before it ends.
    #[must_use]
    pub fn new(min_rate: u64, closing_time: Span) -> Self {
        Self {
            min_rate,
            closing_time,
            leases: SmallVec::new(),
            demand: Demand::default(),
            pending: None,
            last_check: Timestamp::EPOCH,
            last_grant: 0,
            last_request: Timestamp::EPOCH,
            mostly_free: true,
            cached_denial: None,
        }
    }

    /// Takes `cost` from the leases if they have that many tokens.
    pub fn take(&mut self, now: Timestamp, cost: u64) -> LeaseDecision {
        self.last_check = now;
        self.demand.request(now, cost);
        let left = self.left(now);
        if cost > left {
            return LeaseDecision::AskStore;
        }
        let mut rest = cost;
        for lease in self.leases.iter_mut().filter(|lease| lease.is_usable(now)) {
            let part = rest.min(lease.left);
            lease.left -= part;
            lease.spent += part;
            rest -= part;
            if rest == 0 {
                let HeldLease { id, reports_sent, .. } = *lease;
                let debit = LeaseDebit { id, reports_sent, amount: part, cost };
                self.demand.admit(cost);
                return LeaseDecision::Admitted { left: left - cost, debit };
            }
        }
        LeaseDecision::AskStore
    }

    /// Returns the cached denial, if it applies to a check of this cost. It applies if the store has denied a check of
    /// the same or a lower cost, or if the limit is nearly exhausted and the client pauses between requests.
    ///
    /// The flag is `true` if a request for tokens is due now. The check is denied even so, and does not wait.
    #[must_use]
    pub fn cached_denial(&mut self, now: Timestamp, cost: u64) -> Option<(Outcome, bool)> {
        let denied = self.cached_denial.filter(|denied| cost >= denied.cost)?;
        let expired = now >= denied.until;
        if expired && !(denied.nearly_exhausted && self.demand.is_busy(now, self.min_rate)) {
            return None;
        }
        self.demand.record_denial();
        let (passed, mut outcome) = (now.since(denied.requested_at), denied.outcome);
        let pause = denied.until.since(now);
        let wait =
            outcome.retry_after().map_or(pause, |wait| wait.saturating_sub(passed).max(pause));
        outcome.reset_after = outcome.reset_after.saturating_sub(passed);
        outcome.verdict = Verdict::Deny { retry_after: Some(wait.max(Span::MICROSECOND)) };
        Some((outcome, expired && !self.is_pending()))
    }

    /// Puts tokens back, if their lease is still usable and was not reported since they were taken.
    pub fn roll_back(&mut self, now: Timestamp, debit: &LeaseDebit) {
        self.revoke(debit.cost);
        let same = |lease: &&mut HeldLease| {
            lease.id == debit.id && lease.reports_sent == debit.reports_sent
        };
        if let Some(lease) = self.leases.iter_mut().find(same).filter(|it| it.is_usable(now)) {
            lease.left += debit.amount;
            lease.spent -= debit.amount;
        }
    }

    /// Uncounts an admitted request that another rule denied.
    pub fn revoke(&mut self, cost: u64) {
        self.demand.revoke(cost);
    }

    /// Returns the number of leased tokens that can be taken.
    #[must_use]
    pub fn left(&self, now: Timestamp) -> u64 {
        let usable = self.leases.iter().filter(|lease| lease.is_usable(now));
        usable.map(|lease| lease.left).fold(0, u64::saturating_add)
    }

    /// Returns whether a request is in flight.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns whether a lease has to be closed and reported before it ends.
    #[must_use]
    pub fn is_closing(&self, now: Timestamp) -> bool {
        self.leases.iter().any(|lease| lease.is_usable(now) && now >= lease.close_at)
    }

    /// Returns whether a request is due: for more tokens before checks have to wait, or to close a lease.
    #[must_use]
    pub fn should_refill(&mut self, now: Timestamp) -> bool {
        // The backoff of a nearly exhausted limit gives it time to refill.
        let nearly_exhausted = self.cached_denial.is_some_and(|denied| now < denied.until);
        let low = self.last_grant > 0 && self.left(now) <= self.last_grant / 4;
        let needs_tokens = low && !nearly_exhausted && self.demand.is_busy(now, self.min_rate);
        !self.is_pending() && (needs_tokens || self.is_closing(now))
    }

    /// Creates a request with the cost of a check, the number of tokens to lease beyond it, and all unconfirmed
    /// reports. `waiting` is the total cost of other checks that wait for the reply. One request is in flight at a
    /// time: the reply to an earlier one is ignored.
    pub fn request(
        &mut self,
        now: Timestamp,
        cost: u64,
        waiting: u64,
        id: LeaseId,
        fleet_size: u64,
    ) -> LeaseRequest {
        self.close_expired(now);
        let expected = self.demand.expected_use(now, self.min_rate);
        let room = self.leases.len() < MAX_LEASES_PER_CLIENT;
        let requested = if room { expected.max(waiting) } else { 0 };
        self.pending = Some(PendingLeaseRequest { id, sent: now, cost, requested });
        // While most of the limit is free, request at most 1/8 of it: tokens refill only after they are reported as
        // spent. Later, request up to half of the rest. With smaller parts, some tokens would never be leased.
        let fleet_size = if self.mostly_free { fleet_size.max(4) } else { 1 };
        LeaseRequest {
            cost,
            requested,
            id,
            unreported: SmallVec::new(),
            reports: self.reports(),
            ttl: LEASE_TTL,
            fleet_size,
        }
    }

    /// Applies the store's reply to the request for lease `id` under this limit. A reply to any other request than the
    /// one in flight is ignored.
    pub fn on_grant(&mut self, id: LeaseId, limit: &Limit, grant: &LeaseGrant) {
        let Some(PendingLeaseRequest { sent, cost, requested, .. }) =
            self.pending.take_if(|pending| pending.id == id)
        else {
            return;
        };
        if grant.outcome.is_allowed() {
            self.demand.admit(cost);
        } else if cost > 0 {
            self.demand.record_denial();
        }
        // The store has confirmed all reports.
        self.leases.retain(|lease| !lease.closed);
        self.last_grant = grant.granted;
        let since = sent.since(std::mem::replace(&mut self.last_request, sent));
        let (outcome, granted) = (grant.outcome, grant.granted);
        self.mostly_free = outcome.remaining > limit.capacity() / 2;
        // Shortly before the end of a window the store grants no lease, even if many tokens remain. Each check then
        // goes to the store.
        let window_ends = granted == 0 && outcome.remaining >= min_useful_grant(limit);
        let nearly_exhausted =
            requested > granted && granted < min_useful_grant(limit) && !window_ends;
        let pause =
            if nearly_exhausted { refetch_backoff(limit, granted, since) } else { Span::ZERO };
        self.cached_denial = match outcome.retry_after() {
            Some(wait) if cost > 0 => {
                let until = sent + wait.max(pause).min(MAX_DENIAL_CACHE_TTL);
                // A longer wait of the store ends with a new window, which needs no backoff.
                let nearly_exhausted = nearly_exhausted && wait <= pause;
                Some(CachedDenial { cost, outcome, requested_at: sent, until, nearly_exhausted })
            }
            _ if nearly_exhausted => Some(CachedDenial {
                cost: 0,
                outcome,
                requested_at: sent,
                until: sent + pause,
                nearly_exhausted,
            }),
            _ => None,
        };
        if requested > 0 && granted > 0 {
            let until = sent + grant.ttl;
            // A short lease, as at the end of a window, is not closed early: little time would be left to use it.
            let short = grant.ttl.as_micros() < 2 * self.closing_time.as_micros();
            let close_at = if short { until } else { until - self.closing_time };
            self.leases.push(HeldLease {
                id,
                spent: 0,
                reports_sent: 0,
                left: granted,
                until,
                close_at,
                closed: false,
            });
        }
    }

    /// Ends the request for lease `id` after a failure. Tokens that it may have been granted are not used; its reports
    /// are repeated.
    pub fn on_failure(&mut self, id: LeaseId) {
        if self.pending.take_if(|pending| pending.id == id).is_some() {
            // The next check goes to the store, and gets its error.
            (self.last_grant, self.cached_denial) = (0, None);
        }
    }

    /// Ends a [release](Self::release) after a failure. It is not retried: the leases expire in the store.
    pub fn abandon(&mut self, id: LeaseId) {
        self.on_failure(id);
        self.leases.retain(|lease| !lease.closed);
    }

    /// Creates a request that releases all leases of an idle client; `None` if there are none, or if a request is in
    /// flight. Released leases are not used again.
    pub fn release(
        &mut self,
        now: Timestamp,
        id: LeaseId,
        fleet_size: u64,
    ) -> Option<LeaseRequest> {
        if self.is_pending() {
            return None;
        }
        self.leases.iter_mut().for_each(HeldLease::close);
        self.last_grant = 0;
        if self.leases.is_empty() {
            return None;
        }
        self.pending = Some(PendingLeaseRequest { id, sent: now, cost: 0, requested: 0 });
        Some(LeaseRequest {
            cost: 0,
            requested: 0,
            id,
            unreported: SmallVec::new(),
            reports: self.reports(),
            ttl: LEASE_TTL,
            fleet_size,
        })
    }

    /// Creates a request for an active client if one of its leases has to be closed. The request reports that lease,
    /// releases its unused tokens, and leases as many as the client is expected to use.
    pub fn renew(&mut self, now: Timestamp, id: LeaseId, fleet_size: u64) -> Option<LeaseRequest> {
        let due = self.is_closing(now) && !self.is_pending();
        due.then(|| self.request(now, 0, 0, id, fleet_size))
    }

    /// Returns whether the client was not checked for 500 ms.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        now.since(self.last_check) >= IDLE_RELEASE_AFTER
    }

    /// Returns whether there are no leases and no request in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.pending.is_none()
    }

    fn reports(&mut self) -> SmallVec<[UsageReport; 2]> {
        let report = |lease: &mut HeldLease| {
            lease.reports_sent = lease.reports_sent.wrapping_add(1);
            UsageReport { id: lease.id, spent: lease.spent, closed: lease.closed }
        };
        self.leases.iter_mut().map(report).collect()
    }

    /// Closes leases that are used up or end soon. The next request reports them.
    fn close_expired(&mut self, now: Timestamp) {
        for lease in &mut self.leases {
            if lease.left == 0 || now >= lease.close_at {
                lease.close();
            }
        }
    }
}

/// Returns the time before its end at which a lease is closed, so that the store receives the report in time.
///
/// It is two sweep intervals, because one sweep may be late, plus the store's timeout. It is at most half of
/// [`LEASE_TTL`], so that a lease can be used. A lease with less than twice this time, as at the end of a window, is
/// used until it ends.
#[must_use]
pub fn closing_time(store_timeout: Span) -> Span {
    let wanted = (2 * SWEEP_INTERVAL.as_micros()).saturating_add(store_timeout.as_micros());
    Span::from_micros(wanted.min(LEASE_TTL.as_micros() / 2))
}

/// Returns the smallest grant that is worth a request: [`MIN_USEFUL_GRANT`] tokens, 1/16 of a capacity below 1,024,
/// or 1/128 of a capacity above 8,192.
fn min_useful_grant(limit: &Limit) -> u64 {
    let capacity = limit.capacity();
    (capacity / 16).min(MIN_USEFUL_GRANT).max(capacity / 128).max(1)
}

/// Returns the pause before the next request for a busy client of a nearly exhausted limit.
///
/// In that time [`min_useful_grant`] tokens should refill, at the rate since the last request: `granted` tokens in
/// `since`.
fn refetch_backoff(limit: &Limit, granted: u64, since: Span) -> Span {
    let longest = MAX_REFETCH_BACKOFF.as_micros();
    let since = u128::from(since.as_micros().min(longest)) * u128::from(min_useful_grant(limit));
    let pause = since.checked_div(u128::from(granted)).unwrap_or(u128::from(longest));
    let pause = Span::from_micros(u64::try_from(pause).unwrap_or(longest));
    // At most 1/64 of a window, because tokens that are not requested in it are lost, and at most 1/4 of the time in
    // which a bucket fills.
    let window = limit.quota().window().as_micros();
    let max_pause = if let Limit::TokenBucket(_) = limit {
        let (capacity, amount) = (limit.capacity(), limit.quota().amount().max(1));
        u128::from(window) * u128::from(capacity) / u128::from(amount) / 4
    } else {
        u128::from(window / 64)
    };
    let max_pause = Span::from_micros(u64::try_from(max_pause).unwrap_or(longest));
    pause.clamp(MIN_REFETCH_BACKOFF, MAX_REFETCH_BACKOFF).min(max_pause)
}

impl HeldLease {
    fn is_usable(&self, now: Timestamp) -> bool {
        !self.closed && now < self.until
    }

    fn close(&mut self) {
        self.closed = true;
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::lease::LeaseSet;
    use tidegate_core::{Algorithm, Limit, Quota};

    use super::*;

    /// A store with one client, and a manual clock.
    struct TestStore {
        limit: Limit,
        state: tidegate_core::State,
        leases: LeaseSet,
        now: Timestamp,
        number: u32,
    }

    impl TestStore {
        fn new(quota: Quota) -> Self {
            Self::with_algorithm(Algorithm::TokenBucket, quota)
        }

        fn with_algorithm(algorithm: Algorithm, quota: Quota) -> Self {
            let limit = Limit::new(algorithm, quota).unwrap();
            let (state, now) = (limit.fresh(), Timestamp::from_secs(1_000));
            Self { limit, state, leases: LeaseSet::default(), now, number: 0 }
        }

        fn id(&mut self) -> LeaseId {
            self.number += 1;
            LeaseId { node: 1, number: self.number }
        }

        fn decide(&mut self, request: &LeaseRequest) -> LeaseGrant {
            self.limit.apply_lease_request(&mut self.state, &mut self.leases, self.now, request)
        }

        /// Makes a check of cost 1. Returns whether it was admitted, and whether a request was sent.
        fn check(&mut self, client: &mut ClientLeases) -> (bool, bool) {
            if let LeaseDecision::Admitted { .. } = client.take(self.now, 1) {
                let due = client.is_closing(self.now);
                if due {
                    self.refill(client);
                }
                return (true, due);
            }
            match client.cached_denial(self.now, 1) {
                Some((_, false)) => return (false, false),
                Some((_, true)) => {
                    self.refill(client);
                    return (false, true);
                }
                None => {}
            }
            let (now, id) = (self.now, self.id());
            let request = client.request(now, 1, 0, id, 1);
            let grant = self.decide(&request);
            client.on_grant(request.id, &self.limit, &grant);
            (grant.outcome.is_allowed(), true)
        }

        /// Runs one sweep of a node.
        fn sweep(&mut self, client: &mut ClientLeases) {
            let (now, id) = (self.now, self.id());
            let idle = client.is_idle(now);
            let request = if idle { client.release(now, id, 1) } else { client.renew(now, id, 1) };
            if let Some(request) = request {
                let grant = self.decide(&request);
                client.on_grant(request.id, &self.limit, &grant);
            }
        }

        /// Advances the clock in sweep intervals, with a sweep after each if `sweeps`.
        fn advance(&mut self, client: &mut ClientLeases, span: Span, sweeps: bool) {
            for _ in 0..span.as_micros() / SWEEP_INTERVAL.as_micros() {
                self.now = self.now + SWEEP_INTERVAL;
                if sweeps {
                    self.sweep(client);
                }
            }
        }

        /// Advances the clock until a lease has to be closed.
        fn wait_for_closing(&mut self, client: &ClientLeases) {
            let end = self.now + LEASE_TTL;
            while !client.is_closing(self.now) {
                assert!(self.now < end, "no lease is closed before it ends");
                self.now = self.now + Span::from_millis(10);
            }
        }

        /// Returns the number of tokens that are neither spent nor leased.
        fn free(&mut self) -> u64 {
            let id = self.id();
            let (unreported, reports) = (SmallVec::new(), SmallVec::new());
            self.decide(&LeaseRequest {
                cost: 0,
                requested: 0,
                id,
                unreported,
                reports,
                ttl: LEASE_TTL,
                fleet_size: 1,
            })
            .outcome
            .remaining
        }

        /// Makes checks until there is a lease and `more` of them were admitted. Returns the number of admitted ones.
        fn lease(&mut self, client: &mut ClientLeases, more: u64) -> u64 {
            let mut passed = 0;
            while client.left(self.now) == 0 || passed < more {
                passed += u64::from(self.check(client).0);
                self.now = self.now + Span::from_millis(1);
            }
            passed
        }

        fn refill(&mut self, client: &mut ClientLeases) {
            let (now, id) = (self.now, self.id());
            let request = client.request(now, 0, 0, id, 1);
            let grant = self.decide(&request);
            client.on_grant(request.id, &self.limit, &grant);
        }
    }

    #[test]
    fn busy_client_sends_few_requests_and_gets_the_whole_limit() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_second(10_000)), ClientLeases::default());
        let (mut passed, mut requests) = (0, 0);
        for _ in 0..200_000 {
            let (admitted, requested) = store.check(&mut client);
            passed += u64::from(admitted);
            requests += u64::from(requested);
            store.now = store.now + Span::from_micros(50);
        }
        // Ten seconds at twice the limit admit the burst and ten times the rate.
        assert!((108_000..=110_000).contains(&passed), "{passed}");
        assert!(requests <= 200_000 / 100, "{requests} requests for {passed} admitted");
    }

    #[test]
    fn end_of_a_window_denies_no_check_while_tokens_remain() {
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
            let (mut store, mut client) = (
                TestStore::with_algorithm(algorithm, Quota::per_second(2_000)),
                ClientLeases::default(),
            );
            for check in 0..3_000 {
                assert!(store.check(&mut client).0, "{algorithm}: {check}");
                store.now = store.now + Span::from_millis(1);
            }
        }
    }

    #[test]
    fn client_below_the_minimum_rate_sends_each_check_to_the_store_and_gets_no_lease() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_hour(10)), ClientLeases::default());
        for _ in 0..5 {
            assert_eq!(store.check(&mut client), (true, true));
            assert!(store.leases.is_empty() && client.is_empty());
            store.now = store.now + Span::from_secs(1_800);
        }
    }

    #[test]
    fn ended_lease_is_not_used_and_unused_tokens_are_released() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_day(1_000)), ClientLeases::default());
        while client.left(store.now) == 0 {
            store.check(&mut client);
        }
        let left = client.left(store.now);
        assert_eq!(store.leases.reserved(1_000), left);
        assert_eq!(client.left(store.now + LEASE_TTL), 0);
        assert_eq!(client.take(store.now + LEASE_TTL, 1), LeaseDecision::AskStore);
        let (now, id) = (store.now, store.id());
        let release = client.release(now, id, 1).unwrap();
        let grant = store.decide(&release);
        assert!(grant.outcome.remaining >= left);
        client.on_grant(release.id, &store.limit, &grant);
        assert!(store.leases.is_empty() && client.is_empty());
    }

    #[test]
    fn late_grant_of_a_failed_request_is_not_used() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_day(1_000)), ClientLeases::default());
        for _ in 0..10 {
            client.take(store.now, 1);
        }
        let (now, id) = (store.now, store.id());
        let request = client.request(now, 1, 0, id, 1);
        let grant = store.decide(&request);
        assert!(grant.granted > 0);
        client.on_failure(id);
        assert_eq!(client.take(store.now, 1), LeaseDecision::AskStore);
        // The grant arrives after the failure.
        client.on_grant(id, &store.limit, &grant);
        assert_eq!(client.take(store.now, 1), LeaseDecision::AskStore);
    }

    #[test]
    fn rolled_back_tokens_can_be_taken_again_and_are_not_reported() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_day(1_000)), ClientLeases::default());
        while client.left(store.now) == 0 {
            store.check(&mut client);
        }
        let left = client.left(store.now);
        let debit = take(&mut client, store.now, 2);
        client.roll_back(store.now, &debit);
        assert_eq!(client.left(store.now), left);
        let (now, id) = (store.now, store.id());
        let request = client.request(now, 0, 0, id, 1);
        assert!(request.reports.iter().all(|report| report.spent == 0), "{:?}", request.reports);
        client.on_failure(id);
    }

    fn take(client: &mut ClientLeases, now: Timestamp, cost: u64) -> LeaseDebit {
        match client.take(now, cost) {
            LeaseDecision::Admitted { debit, .. } => debit,
            LeaseDecision::AskStore => panic!("{cost} of {} can't be taken", client.left(now)),
        }
    }

    #[test]
    fn reported_tokens_can_not_be_rolled_back() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_day(1_000)), ClientLeases::default());
        while client.left(store.now) == 0 {
            store.check(&mut client);
        }
        let (now, left) = (store.now, client.left(store.now));
        let debit = take(&mut client, now, 2);
        let id = store.id();
        client.request(now, 0, 0, id, 1);
        // The rollback must not return the tokens of this later check either.
        take(&mut client, now, 2);
        client.roll_back(now, &debit);
        assert_eq!(client.left(now), left - 4);
    }

    #[test]
    fn tokens_of_one_lease_are_never_put_back_into_another() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_second(1_000)), ClientLeases::default());
        while client.left(store.now) == 0 {
            store.check(&mut client);
        }
        let old = take(&mut client, store.now, 1);
        store.now = store.now + LEASE_TTL;
        while client.left(store.now) == 0 {
            store.check(&mut client);
        }
        take(&mut client, store.now, 1);
        let left = client.left(store.now);
        client.roll_back(store.now, &old);
        assert_eq!(client.left(store.now), left);
    }

    fn windowed(amount: u64) -> (TestStore, ClientLeases) {
        (
            TestStore::with_algorithm(Algorithm::FixedWindow, Quota::per_day(amount)),
            ClientLeases::default(),
        )
    }

    #[test]
    fn closing_a_lease_frees_its_unused_tokens_in_the_same_call() {
        let (mut store, mut client) = windowed(20_000);
        let passed = store.lease(&mut client, 500);
        assert!(client.left(store.now) > 0);
        let number = store.id();
        assert_eq!(client.renew(store.now, number, 1), None, "too early");
        store.now = store.now + LEASE_TTL.saturating_sub(closing_time(Span::ZERO));
        let request = client.renew(store.now, number, 1).unwrap();
        assert_eq!(client.left(store.now), 0, "closed");
        let grant = store.decide(&request);
        assert_eq!(grant.outcome.remaining, 20_000 - passed);
        client.on_grant(request.id, &store.limit, &grant);
        let live = store.leases.iter().filter(|lease| lease.id != request.id).count();
        assert_eq!(live, 0, "{:?}", store.leases);
    }

    #[test]
    fn check_closes_a_lease_that_ends_soon() {
        let (mut store, mut client) = windowed(20_000);
        store.lease(&mut client, 500);
        store.wait_for_closing(&client);
        assert!(
            matches!(client.take(store.now, 1), LeaseDecision::Admitted { .. })
                && client.should_refill(store.now)
        );
        store.refill(&mut client);
        assert!(!client.is_closing(store.now));
    }

    #[test]
    fn closed_lease_with_a_lost_report_is_not_used_and_counts_as_spent() {
        let (mut store, mut client) = windowed(20_000);
        store.lease(&mut client, 500);
        let free = store.free();
        store.wait_for_closing(&client);
        let number = store.id();
        let request = client.renew(store.now, number, 1).unwrap();
        client.on_failure(request.id);
        assert_eq!(client.take(store.now, 1), LeaseDecision::AskStore);
        store.now = store.now + LEASE_TTL;
        assert_eq!(store.free(), free);
        assert!(store.leases.is_empty());
    }

    #[test]
    fn short_lease_is_used_until_it_ends() {
        let quota = Quota::per(20_000, Span::SECOND);
        let (mut store, mut client) =
            (TestStore::with_algorithm(Algorithm::FixedWindow, quota), ClientLeases::default());
        store.lease(&mut client, 20);
        let left = client.left(store.now);
        store.now = store.now + Span::from_millis(700);
        assert!(!client.is_closing(store.now) && client.left(store.now) == left);
    }

    #[test]
    fn requests_that_another_rule_denies_use_almost_none_of_the_limit() {
        for sweeps in [true, false] {
            let (mut store, mut client) = windowed(20_000);
            let mut denied = 0;
            // The pauses between bursts are too short for an idle release, and leases end within them.
            for burst in 0..79 {
                for _ in 0..247 {
                    let taken = client.take(store.now, 1);
                    if let LeaseDecision::Admitted { debit, .. } = taken {
                        if client.should_refill(store.now) {
                            store.refill(&mut client);
                        }
                        client.roll_back(store.now, &debit);
                        denied += 1;
                        continue;
                    }
                    let (now, id) = (store.now, store.id());
                    let request = client.request(now, 1, 0, id, 1);
                    let grant = store.decide(&request);
                    client.on_grant(request.id, &store.limit, &grant);
                    let refund_token = grant.outcome.refund_token().unwrap();
                    let limit = store.limit.clone();
                    assert!(limit.refund(&mut store.state, now, &limit, &refund_token, 1));
                    client.revoke(1);
                    denied += 1;
                }
                // Two bursts take 860 ms, which is the time of three sweeps.
                store.advance(&mut client, SWEEP_INTERVAL, sweeps);
                store.now = store.now + Span::from_millis(180);
                if burst % 2 == 1 && sweeps {
                    store.sweep(&mut client);
                }
            }
            store.now = store.now + LEASE_TTL + LEASE_TTL;
            let free = store.free();
            assert!(free >= 19_900, "{denied} denied, {free} of 20000 left, sweeps: {sweeps}");
        }
    }

    #[test]
    fn client_that_slows_down_to_one_per_second_loses_at_most_one_lease() {
        for (sweeps, pause) in [(true, 1_000), (false, 1_000), (true, 250), (false, 250)] {
            let (mut store, mut client) = windowed(20_000);
            let mut passed = store.lease(&mut client, 500);
            let lease = client.left(store.now);
            for _ in 0..20 {
                store.advance(&mut client, Span::from_millis(pause), sweeps);
                passed += u64::from(store.check(&mut client).0);
            }
            store.now = store.now + LEASE_TTL + LEASE_TTL;
            let lost = 20_000 - passed - store.free();
            let max_lost = if sweeps { 0 } else { lease };
            assert!(lost <= max_lost, "{lost} lost, {lease} leased, sweeps: {sweeps}, {pause} ms");
        }
    }

    #[test]
    fn reply_to_another_request_is_ignored() {
        let (mut store, mut client) =
            (TestStore::new(Quota::per_day(1_000)), ClientLeases::default());
        (0..10).for_each(|_| assert_eq!(client.take(store.now, 1), LeaseDecision::AskStore));
        let (now, first, second) = (store.now, store.id(), store.id());
        let request = client.request(now, 1, 0, first, 1);
        let grant = store.decide(&request);
        assert!(grant.granted > 0);
        client.request(now, 1, 0, second, 1);
        client.on_grant(first, &store.limit, &grant);
        assert!(client.is_pending() && client.left(now) == 0);
    }
}
