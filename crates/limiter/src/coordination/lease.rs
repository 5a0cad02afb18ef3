//! The leases that one node holds for one client, and the reports that it owes the store.
//!
//! The node's side of `docs/decisions/0011-leases.md`. Time is an argument, and nothing is sent here: a
//! whole fleet runs inside a test.

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
/// Most leases of one client at one node: one in use, the next one, and some that are over and not yet
/// reported.
const MAX_LEASES_PER_CLIENT: usize = 6;

/// Longest time for which a denial is cached.
const MAX_DENIAL_CACHE_TTL: Span = Span::SECOND;
/// Shortest and longest pause between requests for a client that gets less than it uses.
const REFETCH_BACKOFF: (Span, Span) = (Span::from_millis(1), Span::from_millis(250));
/// The number of tokens that a grant should have, if the limit is large enough.
const MIN_USEFUL_GRANT: u64 = 64;
/// Below this many requests per second no lease is taken: every check goes to the store.
pub const MIN_RATE_TO_LEASE: u64 = 8;

/// Leases that this node holds for one client.
#[derive(Debug)]
pub struct ClientLeases {
    /// Below this many requests per second no lease is taken.
    min_rate: u64,
    /// A lease is closed this long before it ends, see [`closing_time`].
    closing_time: Span,
    /// Oldest first, which is also the order of use.
    leases: SmallVec<[HeldLease; 2]>,
    demand: Demand,
    /// The lease request in flight. At most one is sent at a time.
    pending: Option<PendingLeaseRequest>,
    /// When the client was last checked here.
    used: Timestamp,
    /// The size of the last grant, to know when most of it is used.
    granted: u64,
    /// When the last request was sent that was answered.
    last_asked: Timestamp,
    /// Whether more than half of the limit was free at the last grant.
    mostly_free: bool,
    /// A denial that answers checks without the store until it expires.
    cached_denial: Option<CachedDenial>,
}

/// A denial, valid for checks that cost as much or more.
#[derive(Clone, Copy, Debug)]
struct CachedDenial {
    cost: u64,
    outcome: Outcome,
    asked: Timestamp,
    until: Timestamp,
    /// Less is left than the client uses: tokens are fetched while checks are denied, so that none waits.
    nearly_exhausted: bool,
}

/// A lease of this node.
#[derive(Clone, Copy, Debug)]
struct HeldLease {
    id: LeaseId,
    spent: u64,
    /// The number of reports about it, answered or not. Reported usage can't be taken back.
    reports_sent: u32,
    left: u64,
    /// The end of its use, by this node's clock.
    until: Timestamp,
    /// The time to close and report it, so that the rest of it does not count as spent.
    close_at: Timestamp,
    /// Whether it is no longer used. It stays until the store has confirmed the report.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct PendingLeaseRequest {
    id: LeaseId,
    at: Timestamp,
    cost: u64,
    requested: u64,
}

/// Tokens taken from a lease. They can be put back into that lease and into no other.
///
/// In another lease they could be used twice: it may be of a later window, and the store may already
/// refill what was reported spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDebit {
    id: LeaseId,
    /// The number of reports about the lease before.
    reports_sent: u32,
    amount: u64,
    /// The whole cost, taken from this lease and others.
    cost: u64,
}

/// The decision of a client's leases about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// Admitted here.
    Admitted {
        /// The tokens that are left here.
        left: u64,
        /// The part that can be rolled back: of a cost that took several leases, that of the last one.
        debit: LeaseDebit,
    },
    /// The store has to be asked.
    AskStore,
}

impl Default for ClientLeases {
    fn default() -> Self {
        Self::new(MIN_RATE_TO_LEASE, closing_time(Span::ZERO))
    }
}

impl ClientLeases {
    /// Starts without leases. None is taken below `min_rate` requests per second, and each is closed
    /// [`closing_time`] before it ends.
    #[must_use]
    pub fn new(min_rate: u64, closing_time: Span) -> Self {
        let (since, none) = (Timestamp::EPOCH, None);
        Self {
            min_rate,
            closing_time,
            leases: SmallVec::new(),
            demand: Demand::default(),
            pending: None,
            used: since,
            granted: 0,
            last_asked: since,
            mostly_free: true,
            cached_denial: none,
        }
    }

    /// Takes `cost` from the leases if they have that many tokens.
    pub fn take(&mut self, now: Timestamp, cost: u64) -> LeaseDecision {
        self.used = now;
        self.demand.request(now, cost);
        let left = self.left(now);
        if cost > left {
            return LeaseDecision::AskStore;
        }
        let mut open = cost;
        for lease in self.leases.iter_mut().filter(|lease| lease.is_usable(now)) {
            let part = open.min(lease.left);
            lease.left -= part;
            lease.spent += part;
            open -= part;
            if open == 0 {
                let HeldLease { id, reports_sent, .. } = *lease;
                let debit = LeaseDebit { id, reports_sent, amount: part, cost };
                self.demand.admit(cost);
                return LeaseDecision::Admitted { left: left - cost, debit };
            }
        }
        LeaseDecision::AskStore
    }

    /// Returns a denial that needs no request: a check that cost no more was denied a moment ago, or so
    /// little is left that it is fetched in fewer and larger parts.
    ///
    /// The flag says that it is time for a request, while this check and others are denied.
    #[must_use]
    pub fn cached_denial(&mut self, now: Timestamp, cost: u64) -> Option<(Outcome, bool)> {
        let denied = self.cached_denial.filter(|denied| cost >= denied.cost)?;
        let over = now >= denied.until;
        if over && !(denied.nearly_exhausted && self.demand.is_busy(now, self.min_rate)) {
            return None;
        }
        self.demand.limit();
        let (passed, mut outcome) = (now.since(denied.asked), denied.outcome);
        let pause = denied.until.since(now);
        let wait =
            outcome.retry_after().map_or(pause, |wait| wait.saturating_sub(passed).max(pause));
        outcome.reset_after = outcome.reset_after.saturating_sub(passed);
        outcome.verdict = Verdict::Deny { retry_after: Some(wait.max(Span::MICROSECOND)) };
        Some((outcome, over && !self.is_pending()))
    }

    /// Puts tokens back, if their lease can still be used and no report was sent since.
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

    /// Counts a request that was admitted as denied after all, by another rule.
    pub fn revoke(&mut self, cost: u64) {
        self.demand.revoke(cost);
    }

    /// Returns the number of tokens that can be taken here.
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

    /// Returns whether it is time for a request: for more tokens before checks have to wait for them, or
    /// to close a lease.
    #[must_use]
    pub fn should_refill(&mut self, now: Timestamp) -> bool {
        // If the limit is nearly exhausted, more is fetched when some has refilled.
        let nearly_exhausted = self.cached_denial.is_some_and(|denied| now < denied.until);
        let low = self.granted > 0 && self.left(now) <= self.granted / 4;
        let wanting = low && !nearly_exhausted && self.demand.is_busy(now, self.min_rate);
        !self.is_pending() && (wanting || self.is_closing(now))
    }

    /// Makes a request with a cost and the number of tokens to lease beyond it, with all unconfirmed
    /// reports. One request is in flight at a time; an earlier one without a reply is given up.
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
        self.pending = Some(PendingLeaseRequest { id, at: now, cost, requested });
        // While most of the limit is free, request at most a part of it: tokens refill only after they are
        // reported spent. Later request half of the rest, or some would always be left.
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

    /// Applies the store's reply to the request for lease `id` under this limit. Nothing changes if that
    /// is not the one in flight: it was given up.
    pub fn on_grant(&mut self, id: LeaseId, limit: &Limit, grant: &LeaseGrant) {
        let Some(PendingLeaseRequest { at, cost, requested, .. }) =
            self.pending.take_if(|asked| asked.id == id)
        else {
            return;
        };
        if grant.outcome.is_allowed() {
            self.demand.admit(cost);
        } else if cost > 0 {
            self.demand.limit();
        }
        // The store has confirmed all reports.
        self.leases.retain(|lease| !lease.closed);
        self.granted = grant.granted;
        let since = at.since(std::mem::replace(&mut self.last_asked, at));
        let (outcome, held) = (grant.outcome, grant.granted);
        self.mostly_free = outcome.remaining > limit.capacity() / 2;
        // Shortly before a window ends no lease is granted, however much is left: each check asks.
        let ending = held == 0 && outcome.remaining >= min_useful_grant(limit);
        let nearly_exhausted = requested > held && held < min_useful_grant(limit) && !ending;
        let pause = if nearly_exhausted { refetch_backoff(limit, held, since) } else { Span::ZERO };
        self.cached_denial = match outcome.retry_after() {
            Some(wait) if cost > 0 => {
                let until = at + wait.max(pause).min(MAX_DENIAL_CACHE_TTL);
                // If the store's wait is longer, a new window begins: no pause is needed.
                let nearly_exhausted = nearly_exhausted && wait <= pause;
                Some(CachedDenial { cost, outcome, asked: at, until, nearly_exhausted })
            }
            _ if nearly_exhausted => Some(CachedDenial {
                cost: 0,
                outcome,
                asked: at,
                until: at + pause,
                nearly_exhausted,
            }),
            _ => None,
        };
        if requested > 0 && grant.granted > 0 {
            let until = at + grant.ttl;
            // A short lease, as at the end of a window, would have too little time left.
            let short = grant.ttl.as_micros() < 2 * self.closing_time.as_micros();
            let close_at = if short { until } else { until - self.closing_time };
            let (left, closed) = (grant.granted, false);
            let lease = HeldLease { id, spent: 0, reports_sent: 0, left, until, close_at, closed };
            self.leases.push(lease);
        }
    }

    /// Ends the request for lease `id` without a reply. What it may have been granted is not used; its
    /// reports are sent again.
    pub fn on_failure(&mut self, id: LeaseId) {
        if self.pending.take_if(|asked| asked.id == id).is_some() {
            // The next check asks, and gets the error.
            (self.granted, self.cached_denial) = (0, None);
        }
    }

    /// Ends a [release](Self::release) without a reply. It is not sent again: the leases expire in the
    /// store.
    pub fn abandon(&mut self, id: LeaseId) {
        self.on_failure(id);
        self.leases.retain(|lease| !lease.closed);
    }

    /// Makes a request that releases all leases of an idle client; `None` if there is nothing to report.
    /// They are not used again.
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
        self.granted = 0;
        if self.leases.is_empty() {
            return None;
        }
        self.pending = Some(PendingLeaseRequest { id, at: now, cost: 0, requested: 0 });
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

    /// Makes a request for an active client, if one of its leases has to be closed: it reports that lease,
    /// frees the rest of it, and leases as much as the client uses.
    pub fn renew(&mut self, now: Timestamp, id: LeaseId, fleet_size: u64) -> Option<LeaseRequest> {
        let due = self.is_closing(now) && !self.is_pending();
        due.then(|| self.request(now, 0, 0, id, fleet_size))
    }

    /// Returns whether the client was not checked for a while.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        now.since(self.used) >= IDLE_RELEASE_AFTER
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

/// Returns how long before its end a lease is closed, so that the store has the report in time.
///
/// Two sweeps, of which one may be late, and the time that the store has to answer; at most half of the
/// lifetime of a lease, or it could not be used. A lease whose lifetime is shorter than twice this time, as at the
/// end of a window, is used until it ends.
#[must_use]
pub fn closing_time(store_timeout: Span) -> Span {
    let wanted = (2 * SWEEP_INTERVAL.as_micros()).saturating_add(store_timeout.as_micros());
    Span::from_micros(wanted.min(LEASE_TTL.as_micros() / 2))
}

/// Returns the number of tokens that are worth a request: many of a large limit, a part of a small one.
fn min_useful_grant(limit: &Limit) -> u64 {
    let capacity = limit.capacity();
    (capacity / 16).min(MIN_USEFUL_GRANT).max(capacity / 128).max(1)
}

/// Returns the pause before the next request for a busy client of a nearly exhausted limit: until as many
/// tokens have refilled as are worth a request, at the rate since the last one.
fn refetch_backoff(limit: &Limit, held: u64, since: Span) -> Span {
    let ever = REFETCH_BACKOFF.1.as_micros();
    let since = u128::from(since.as_micros().min(ever)) * u128::from(min_useful_grant(limit));
    let pause = since.checked_div(u128::from(held)).unwrap_or(u128::from(ever));
    let pause = Span::from_micros(u64::try_from(pause).unwrap_or(ever));
    // Not a large part of a window: tokens not requested in it are lost. Nor so long that a bucket fills.
    let window = limit.quota().window().as_micros();
    let most = if let Limit::TokenBucket(_) = limit {
        let (capacity, amount) = (limit.capacity(), limit.quota().amount().max(1));
        u128::from(window) * u128::from(capacity) / u128::from(amount) / 4
    } else {
        u128::from(window / 64)
    };
    let most = Span::from_micros(u64::try_from(most).unwrap_or(ever));
    pause.clamp(REFETCH_BACKOFF.0, REFETCH_BACKOFF.1).min(most)
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

    /// A store of one client, and time.
    struct Scene {
        limit: Limit,
        state: tidegate_core::State,
        leases: LeaseSet,
        now: Timestamp,
        number: u32,
    }

    impl Scene {
        fn new(quota: Quota) -> Self {
            Self::of(Algorithm::TokenBucket, quota)
        }

        fn of(algorithm: Algorithm, quota: Quota) -> Self {
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

        /// One check of cost 1: whether it passed, and whether the store was asked.
        fn check(&mut self, client: &mut ClientLeases) -> (bool, bool) {
            if let LeaseDecision::Admitted { .. } = client.take(self.now, 1) {
                let due = client.is_closing(self.now);
                if due {
                    self.fetch(client);
                }
                return (true, due);
            }
            match client.cached_denial(self.now, 1) {
                Some((_, false)) => return (false, false),
                Some((_, true)) => {
                    self.fetch(client);
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

        /// One sweep of a node.
        fn sweep(&mut self, client: &mut ClientLeases) {
            let (now, id) = (self.now, self.id());
            let idle = client.is_idle(now);
            let request = if idle { client.release(now, id, 1) } else { client.renew(now, id, 1) };
            if let Some(request) = request {
                let grant = self.decide(&request);
                client.on_grant(request.id, &self.limit, &grant);
            }
        }

        /// Lets the time of a sweep interval pass, and sweeps if there is a sweeper.
        fn pass(&mut self, client: &mut ClientLeases, span: Span, sweeps: bool) {
            for _ in 0..span.as_micros() / SWEEP_INTERVAL.as_micros() {
                self.now = self.now + SWEEP_INTERVAL;
                if sweeps {
                    self.sweep(client);
                }
            }
        }

        /// Lets time pass until a lease has to be closed.
        fn wait_for_closing(&mut self, client: &ClientLeases) {
            let end = self.now + LEASE_TTL;
            while !client.is_closing(self.now) {
                assert!(self.now < end, "no lease is closed before it ends");
                self.now = self.now + Span::from_millis(10);
            }
        }

        /// Tokens that are neither spent nor held.
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

        /// Checks until there is a lease, and then so many times more.
        fn lease(&mut self, client: &mut ClientLeases, more: u64) -> u64 {
            let mut passed = 0;
            while client.left(self.now) == 0 || passed < more {
                passed += u64::from(self.check(client).0);
                self.now = self.now + Span::from_millis(1);
            }
            passed
        }

        fn fetch(&mut self, client: &mut ClientLeases) {
            let (now, id) = (self.now, self.id());
            let request = client.request(now, 0, 0, id, 1);
            let grant = self.decide(&request);
            client.on_grant(request.id, &self.limit, &grant);
        }
    }

    #[test]
    fn a_busy_client_asks_seldom_and_gets_what_the_limit_allows() {
        let (mut scene, mut client) =
            (Scene::new(Quota::per_second(10_000)), ClientLeases::default());
        let (mut passed, mut asked) = (0, 0);
        for _ in 0..200_000 {
            let (yes, question) = scene.check(&mut client);
            passed += u64::from(yes);
            asked += u64::from(question);
            scene.now = scene.now + Span::from_micros(50);
        }
        // Ten seconds at twice the limit: the burst, and ten times the rate.
        assert!((108_000..=110_000).contains(&passed), "{passed}");
        assert!(asked <= 200_000 / 100, "{asked} questions for {passed} passed");
    }

    #[test]
    fn a_window_that_ends_refuses_nobody_while_there_is_plenty_left() {
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
            let (mut scene, mut client) =
                (Scene::of(algorithm, Quota::per_second(2_000)), ClientLeases::default());
            for check in 0..3_000 {
                assert!(scene.check(&mut client).0, "{algorithm}: {check}");
                scene.now = scene.now + Span::from_millis(1);
            }
        }
    }

    #[test]
    fn a_client_that_comes_seldom_costs_one_question_each_and_holds_nothing() {
        let (mut scene, mut client) = (Scene::new(Quota::per_hour(10)), ClientLeases::default());
        for _ in 0..5 {
            assert_eq!(scene.check(&mut client), (true, true));
            assert!(scene.leases.is_empty() && client.is_empty());
            scene.now = scene.now + Span::from_secs(1_800);
        }
    }

    #[test]
    fn what_is_over_is_not_used_and_what_is_left_is_given_back() {
        let (mut scene, mut client) = (Scene::new(Quota::per_day(1_000)), ClientLeases::default());
        while client.left(scene.now) == 0 {
            scene.check(&mut client);
        }
        let left = client.left(scene.now);
        assert_eq!(scene.leases.reserved(1_000), left);
        assert_eq!(client.left(scene.now + LEASE_TTL), 0);
        assert_eq!(client.take(scene.now + LEASE_TTL, 1), LeaseDecision::AskStore);
        let (now, id) = (scene.now, scene.id());
        let leaving = client.release(now, id, 1).unwrap();
        let grant = scene.decide(&leaving);
        assert!(grant.outcome.remaining >= left);
        client.on_grant(leaving.id, &scene.limit, &grant);
        assert!(scene.leases.is_empty() && client.is_empty());
    }

    #[test]
    fn an_answer_that_was_lost_is_never_used() {
        let (mut scene, mut client) = (Scene::new(Quota::per_day(1_000)), ClientLeases::default());
        for _ in 0..10 {
            client.take(scene.now, 1);
        }
        let (now, id) = (scene.now, scene.id());
        let request = client.request(now, 1, 0, id, 1);
        let grant = scene.decide(&request);
        assert!(grant.granted > 0);
        client.on_failure(id);
        assert_eq!(client.take(scene.now, 1), LeaseDecision::AskStore);
        // It comes after all, and nobody waits for it.
        client.on_grant(id, &scene.limit, &grant);
        assert_eq!(client.take(scene.now, 1), LeaseDecision::AskStore);
    }

    #[test]
    fn what_is_put_back_can_be_taken_again_and_is_not_reported() {
        let (mut scene, mut client) = (Scene::new(Quota::per_day(1_000)), ClientLeases::default());
        while client.left(scene.now) == 0 {
            scene.check(&mut client);
        }
        let left = client.left(scene.now);
        let slice = take(&mut client, scene.now, 2);
        client.roll_back(scene.now, &slice);
        assert_eq!(client.left(scene.now), left);
        let (now, id) = (scene.now, scene.id());
        let request = client.request(now, 0, 0, id, 1);
        assert!(request.reports.iter().all(|report| report.spent == 0), "{:?}", request.reports);
        client.on_failure(id);
    }

    fn take(client: &mut ClientLeases, now: Timestamp, cost: u64) -> LeaseDebit {
        match client.take(now, cost) {
            LeaseDecision::Admitted { debit: slice, .. } => slice,
            LeaseDecision::AskStore => panic!("{cost} of {} can't be taken", client.left(now)),
        }
    }

    #[test]
    fn what_the_store_may_know_of_stays_spent() {
        let (mut scene, mut client) = (Scene::new(Quota::per_day(1_000)), ClientLeases::default());
        while client.left(scene.now) == 0 {
            scene.check(&mut client);
        }
        let (now, left) = (scene.now, client.left(scene.now));
        let slice = take(&mut client, now, 2);
        let id = scene.id();
        client.request(now, 0, 0, id, 1);
        // Nor in place of what somebody else took since then.
        take(&mut client, now, 2);
        client.roll_back(now, &slice);
        assert_eq!(client.left(now), left - 4);
    }

    #[test]
    fn what_came_from_one_hold_is_never_put_into_another() {
        let (mut scene, mut client) =
            (Scene::new(Quota::per_second(1_000)), ClientLeases::default());
        while client.left(scene.now) == 0 {
            scene.check(&mut client);
        }
        let old = take(&mut client, scene.now, 1);
        scene.now = scene.now + LEASE_TTL;
        while client.left(scene.now) == 0 {
            scene.check(&mut client);
        }
        take(&mut client, scene.now, 1);
        let left = client.left(scene.now);
        client.roll_back(scene.now, &old);
        assert_eq!(client.left(scene.now), left);
    }

    fn windowed(amount: u64) -> (Scene, ClientLeases) {
        (Scene::of(Algorithm::FixedWindow, Quota::per_day(amount)), ClientLeases::default())
    }

    #[test]
    fn a_lease_that_ends_soon_is_closed_and_its_rest_is_free_in_the_same_call() {
        let (mut scene, mut client) = windowed(20_000);
        let passed = scene.lease(&mut client, 500);
        assert!(client.left(scene.now) > 0);
        let number = scene.id();
        assert_eq!(client.renew(scene.now, number, 1), None, "too early");
        scene.now = scene.now + LEASE_TTL.saturating_sub(closing_time(Span::ZERO));
        let request = client.renew(scene.now, number, 1).unwrap();
        assert_eq!(client.left(scene.now), 0, "closed");
        let told = scene.decide(&request);
        assert_eq!(told.outcome.remaining, 20_000 - passed);
        client.on_grant(request.id, &scene.limit, &told);
        let live = scene.leases.iter().filter(|lease| lease.id != request.id).count();
        assert_eq!(live, 0, "{:?}", scene.leases);
    }

    #[test]
    fn a_check_closes_a_lease_that_ends_soon() {
        let (mut scene, mut client) = windowed(20_000);
        scene.lease(&mut client, 500);
        scene.wait_for_closing(&client);
        assert!(
            matches!(client.take(scene.now, 1), LeaseDecision::Admitted { .. })
                && client.should_refill(scene.now)
        );
        scene.fetch(&mut client);
        assert!(!client.is_closing(scene.now));
    }

    #[test]
    fn a_closed_lease_whose_report_is_lost_is_not_used_and_counts_as_spent() {
        let (mut scene, mut client) = windowed(20_000);
        scene.lease(&mut client, 500);
        let free = scene.free();
        scene.wait_for_closing(&client);
        let number = scene.id();
        let request = client.renew(scene.now, number, 1).unwrap();
        client.on_failure(request.id);
        assert_eq!(client.take(scene.now, 1), LeaseDecision::AskStore);
        scene.now = scene.now + LEASE_TTL;
        assert_eq!(scene.free(), free);
        assert!(scene.leases.is_empty());
    }

    #[test]
    fn a_lease_that_is_short_is_used_until_it_ends() {
        let quota = Quota::per(20_000, Span::SECOND);
        let (mut scene, mut client) =
            (Scene::of(Algorithm::FixedWindow, quota), ClientLeases::default());
        scene.lease(&mut client, 20);
        let left = client.left(scene.now);
        scene.now = scene.now + Span::from_millis(700);
        assert!(!client.is_closing(scene.now) && client.left(scene.now) == left);
    }

    #[test]
    fn requests_that_another_rule_denies_leave_the_limit_nearly_untouched() {
        for sweeps in [true, false] {
            let (mut scene, mut client) = windowed(20_000);
            let mut denied = 0;
            // Bursts with pauses that are too short for an idle client; leases end between two of them.
            for burst in 0..79 {
                for _ in 0..247 {
                    let taken = client.take(scene.now, 1);
                    if let LeaseDecision::Admitted { debit: slice, .. } = taken {
                        if client.should_refill(scene.now) {
                            scene.fetch(&mut client);
                        }
                        client.roll_back(scene.now, &slice);
                        denied += 1;
                        continue;
                    }
                    let (now, id) = (scene.now, scene.id());
                    let request = client.request(now, 1, 0, id, 1);
                    let grant = scene.decide(&request);
                    client.on_grant(request.id, &scene.limit, &grant);
                    let refund_token = grant.outcome.refund_token().unwrap();
                    let limit = scene.limit.clone();
                    assert!(limit.refund(&mut scene.state, now, &limit, &refund_token, 1));
                    client.revoke(1);
                    denied += 1;
                }
                // Five sweeps in two bursts.
                scene.pass(&mut client, SWEEP_INTERVAL, sweeps);
                scene.now = scene.now + Span::from_millis(180);
                if burst % 2 == 1 && sweeps {
                    scene.sweep(&mut client);
                }
            }
            scene.now = scene.now + LEASE_TTL + LEASE_TTL;
            let free = scene.free();
            assert!(free >= 19_900, "{denied} denied, {free} of 20000 left, sweeps: {sweeps}");
        }
    }

    #[test]
    fn a_client_that_slows_down_to_one_per_second_loses_at_most_one_lease() {
        for (sweeps, pause) in [(true, 1_000), (false, 1_000), (true, 250), (false, 250)] {
            let (mut scene, mut client) = windowed(20_000);
            let mut passed = scene.lease(&mut client, 500);
            let lease = client.left(scene.now);
            for _ in 0..20 {
                scene.pass(&mut client, Span::from_millis(pause), sweeps);
                passed += u64::from(scene.check(&mut client).0);
            }
            scene.now = scene.now + LEASE_TTL + LEASE_TTL;
            let lost = 20_000 - passed - scene.free();
            let most = if sweeps { 0 } else { lease };
            assert!(lost <= most, "{lost} lost, {lease} leased, sweeps: {sweeps}, {pause} ms");
        }
    }

    #[test]
    fn an_answer_to_another_question_is_not_used() {
        let (mut scene, mut client) = (Scene::new(Quota::per_day(1_000)), ClientLeases::default());
        (0..10).for_each(|_| assert_eq!(client.take(scene.now, 1), LeaseDecision::AskStore));
        let (now, first, second) = (scene.now, scene.id(), scene.id());
        let request = client.request(now, 1, 0, first, 1);
        let grant = scene.decide(&request);
        assert!(grant.granted > 0);
        client.request(now, 1, 0, second, 1);
        client.on_grant(first, &scene.limit, &grant);
        assert!(client.is_pending() && client.left(now) == 0);
    }
}
