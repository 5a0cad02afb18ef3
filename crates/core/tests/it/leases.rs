//! Leases: the limit is kept in every case.

mod fleet;

use fleet::{Fleet, START, Step, steps};
use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};
use tidegate_core::lease::clock_margin;
use tidegate_core::{
    Algorithm, Lease, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Limit, Quota, Span, State,
    Timestamp, UnreportedUsage, UsageReport,
};

const LEASING: [Algorithm; 3] =
    [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];

fn windows() -> impl Strategy<Value = Span> {
    prop_oneof![
        Just(Span::from_millis(50)),
        Just(Span::SECOND),
        Just(Span::MINUTE),
        (1_000u64..10_000_000).prop_map(Span::from_micros),
    ]
}

fn limits() -> impl Strategy<Value = Limit> {
    let amounts = prop_oneof![Just(0u64), 1u64..10, 1u64..300];
    (0..3usize, amounts, windows(), proptest::option::of(1u64..300)).prop_map(
        |(algorithm, amount, window, burst)| {
            let (algorithm, quota) = (LEASING[algorithm], Quota::per(amount, window));
            let burst = burst.filter(|_| algorithm == Algorithm::TokenBucket && amount > 0);
            let quota = burst.map_or(quota, |burst| quota.burst(burst));
            Limit::new(algorithm, quota).unwrap()
        },
    )
}

/// Whatever span is looked at, a bucket gave no more than its burst and what came back: exactly, in
/// tokens times the window.
fn keeps_to_the_bucket(limit: &Limit, admitted: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let wide = |number: u64| u128::from(number);
    let (amount, window) = (limit.quota().amount(), limit.quota().window().as_micros());
    for (first, (start, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for (end, cost) in &admitted[first..] {
            sum += cost;
            let most = wide(limit.capacity()) * wide(window) + wide(amount) * wide(end - start);
            prop_assert!(wide(sum) * wide(window) <= most, "{sum} in {} us", end - start);
        }
    }
    Ok(())
}

/// No aligned window has more than the amount, and at no admission of a sliding one does what it
/// weighs exceed it.
fn keeps_to_the_windows(limit: &Limit, admitted: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let (amount, window) = (limit.quota().amount(), limit.quota().window().as_micros());
    let sliding = matches!(limit, Limit::SlidingWindow(_));
    for (place, (now, _)) in admitted.iter().enumerate() {
        let so_far = &admitted[..=place];
        let spent_in = |index: u64| -> u64 {
            so_far.iter().filter(|(at, _)| at / window == index).map(|(_, cost)| cost).sum()
        };
        let current = spent_in(now / window);
        prop_assert!(current <= amount, "{current} of {amount} in a window");
        let left = u128::from(window - now % window);
        let carried = u128::from(spent_in(now / window - 1)) * left;
        let room = u128::from(amount - current) * u128::from(window);
        prop_assert!(!sliding || carried <= room, "{carried} into {room}");
    }
    Ok(())
}

/// Number of cases of each property; `make soak` asks for many more.
#[allow(clippy::disallowed_methods, reason = "a soak says how long it is")]
fn cases() -> u32 {
    std::env::var("TIDEGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fleet_stays_within_the_limit_when_messages_are_lost_late_or_duplicated(
        limit in limits(), steps in steps(),
    ) {
        let mut fleet = Fleet::new(limit);
        for step in &steps {
            fleet.walk(step)?;
        }
        match fleet.limit {
            Limit::TokenBucket(_) => keeps_to_the_bucket(&fleet.limit, &fleet.admitted)?,
            _ => keeps_to_the_windows(&fleet.limit, &fleet.admitted)?,
        }
    }

    /// Numbers stay such that every store can count them, and what is held never counts for more than
    /// the limit in force, however limits change under it and wherever clocks are set.
    #[test]
    fn leases_never_count_for_more_than_a_changed_limit(
        first in limits(), steps in steps(), changes in proptest::collection::vec((0usize..150, limits(), 0u64..90_000_000), 1..4),
    ) {
        let mut fleet = Fleet::new(first);
        for (number, step) in steps.iter().enumerate() {
            for (_, limit, back) in changes.iter().filter(|(when, _, _)| *when == number) {
                let now = Timestamp::from_micros(fleet.now);
                fleet.state = limit.migrate(&fleet.limit, &fleet.state, now);
                fleet.limit = limit.clone();
                if matches!(step, Step::Advance { .. }) {
                    let now = now - Span::from_micros(*back);
                    let look = ask(0, 1);
                    fleet.limit.apply_lease_request(&mut fleet.state, &mut fleet.leases, now, &look);
                }
            }
            // What is over the new limit does not fit, so only the rest of the promises is looked at.
            let _ = fleet.walk(step);
            let capacity = fleet.limit.capacity();
            prop_assert!(fleet.leases.reserved(capacity) <= capacity);
            let kept = match fleet.state {
                State::Tokens(level) => level.due.micros,
                State::Fixed(count) => count.spent,
                State::Sliding(counts) => counts.current.max(counts.previous),
                _ => 0,
            };
            prop_assert!(kept < 1 << 53);
        }
    }

    /// If reports are lost, duplicated or reordered, the counted usage is the largest total that arrived.
    #[test]
    fn counted_usage_is_the_largest_total_that_arrived(
        algorithm in 0..3usize,
        more in proptest::collection::vec(0u64..40, 1..20),
        arrivals in proptest::collection::vec((any::<usize>(), 0u64..2_000), 1..40),
    ) {
        let mut client = Client::new(LEASING[algorithm], Quota::per(1_000, Quota::MAX_WINDOW));
        let mut sum = 0;
        let totals: Vec<u64> = more.iter().map(|more| { sum += more; sum }).collect();
        let (mut now, mut heard) = (START, 0);
        for (which, wait) in arrivals {
            now += wait;
            let total = totals[which % totals.len()];
            heard = heard.max(total);
            prop_assert_eq!(client.owe(now, 1, now, total), 1_000 - heard);
        }
    }

    /// A settled state can be dropped: the store returns the same outcomes without it.
    #[test]
    fn settled_state_decides_like_a_fresh_one(limit in limits(), steps in steps()) {
        let mut fleet = Fleet::new(limit);
        for step in &steps {
            fleet.walk(step)?;
        }
        let Fleet { limit, mut state, mut leases, now, .. } = fleet;
        let later = limit.settled_at(&state, &leases).max(Timestamp::from_micros(now));
        let ask = LeaseRequest { cost: 1, ..ask(20, 1_000_000) };
        let (mut fresh, mut none) = (limit.fresh(), LeaseSet::default());
        prop_assert_eq!(
            limit.apply_lease_request(&mut state, &mut leases, later, &ask).outcome.non_refundable(),
            limit.apply_lease_request(&mut fresh, &mut none, later, &ask).outcome.non_refundable()
        );
        prop_assert_eq!(leases, none);
    }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn id(number: u32) -> LeaseId {
    LeaseId { node: 7, number }
}

/// Returns a lease request without cost and reports.
fn ask(requested: u64, ttl: u64) -> LeaseRequest {
    let ttl = Span::from_micros(ttl);
    LeaseRequest {
        cost: 0,
        requested,
        id: id(1),
        unreported: SmallVec::new(),
        reports: SmallVec::new(),
        ttl,
        fleet_size: 1,
    }
}

/// One client of one limit.
struct Client {
    limit: Limit,
    state: State,
    leases: LeaseSet,
}

impl Client {
    fn new(algorithm: Algorithm, quota: Quota) -> Self {
        let limit = Limit::new(algorithm, quota).unwrap();
        Self { state: limit.fresh(), limit, leases: LeaseSet::default() }
    }

    fn ask(&mut self, now: u64, ask: &LeaseRequest) -> LeaseGrant {
        self.limit.apply_lease_request(&mut self.state, &mut self.leases, at(now), ask)
    }

    /// Reports the total that the node `name` had admitted by `when`, and returns what remains.
    fn owe(&mut self, now: u64, name: u32, when: u64, total: u64) -> u64 {
        let unreported = smallvec![UnreportedUsage { at: at(when), total }];
        self.ask(now, &LeaseRequest { unreported, id: id(name), ..ask(0, 1_000_000) })
            .outcome
            .remaining
    }

    fn report(&mut self, now: u64, spent: u64, closed: bool) -> LeaseGrant {
        let reports = smallvec![UsageReport { id: id(1), spent, closed }];
        self.ask(now, &LeaseRequest { reports, ..ask(0, 0) })
    }
}

/// The start of a second.
const SECOND: u64 = START / 1_000_000 * 1_000_000;

#[test]
fn leased_tokens_stay_reserved_and_do_not_refill() {
    let mut client = Client::new(Algorithm::TokenBucket, Quota::per_second(100));
    assert_eq!(client.ask(START, &ask(50, 10_000_000)).granted, 50);
    // The leased half stays reserved for any length of time.
    let spent = client.ask(START + 5_000_000, &LeaseRequest { cost: 50, ..ask(0, 0) });
    assert_eq!((spent.outcome.is_allowed(), spent.outcome.remaining), (true, 0));
    // Tokens refill only after they are reported as spent.
    assert_eq!(client.report(START + 5_500_000, 20, false).outcome.remaining, 50);
    assert_eq!(client.report(START + 6_000_000, 20, false).outcome.remaining, 70);
}

#[test]
fn closing_report_counts_once() {
    for algorithm in LEASING {
        let mut client = Client::new(algorithm, Quota::per_minute(100));
        let now = START / 60_000_000 * 60_000_000;
        assert_eq!(client.ask(now, &ask(50, 10_000_000)).granted, 50);
        assert_eq!(client.report(now, 10, true).outcome.remaining, 90, "{algorithm}");
        assert_eq!(client.report(now, 10, true).outcome.remaining, 90, "{algorithm}");
        assert_eq!(client.report(now, 50, true).outcome.remaining, 90, "{algorithm}");
        assert!(client.leases.is_empty());
    }
}

#[test]
fn report_below_the_known_usage_changes_nothing() {
    let mut client = Client::new(Algorithm::FixedWindow, Quota::per_minute(100));
    client.ask(SECOND, &ask(50, 10_000_000));
    client.report(SECOND, 30, false);
    let before = (client.state.clone(), client.leases.clone());
    client.report(SECOND, 10, false);
    client.report(SECOND, 30, false);
    assert_eq!((client.state.clone(), client.leases.clone()), before);
    // A node can't have spent more than the lease.
    client.report(SECOND, u64::MAX, false);
    assert_eq!(client.report(SECOND, 0, false).outcome.remaining, 50);
}

#[test]
fn repeated_lease_request_gets_the_same_lease() {
    for algorithm in LEASING {
        let mut client = Client::new(algorithm, Quota::per_second(100));
        let first = client.ask(SECOND, &ask(20, 500_000));
        let leases = client.leases.clone();
        let second = client.ask(SECOND + 100_000, &ask(20, 500_000));
        assert_eq!((first.granted, second.granted), (20, 20), "{algorithm}");
        // Counted from when it was asked first, the second answer ends no later than the hold.
        let kept = leases.get(id(1)).unwrap().until;
        assert!(at(SECOND + 100_000) + second.ttl + clock_margin(second.ttl) <= kept);
        assert_eq!(client.leases, leases, "{algorithm}");
    }
}

#[test]
fn expired_lease_counts_as_spent_at_its_end() {
    let mut client = Client::new(Algorithm::TokenBucket, Quota::per_second(100));
    client.ask(START, &ask(50, 1_000_000));
    // A second, a hundredth of it and ten milliseconds.
    assert_eq!(client.leases.iter().next().unwrap().until, at(START + 1_020_000));
    let look = ask(0, 0);
    assert_eq!(client.ask(START + 1_019_999, &look).outcome.remaining, 50);
    assert!(!client.leases.is_empty());
    assert_eq!(client.ask(START + 1_120_000, &look).outcome.remaining, 60);
    assert!(client.leases.is_empty());
    assert_eq!(client.ask(START + 1_620_000, &look).outcome.remaining, 100);
}

#[test]
fn lease_ends_with_its_window() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut client = Client::new(algorithm, Quota::per_second(100));
        let granted = client.ask(SECOND + 900_000, &ask(50, 10_000_000));
        assert_eq!(granted.granted, 50);
        assert!(granted.ttl < Span::from_millis(90), "{}", granted.ttl);
        let Lease { until, .. } = *client.leases.iter().next().unwrap();
        assert!(until <= at(SECOND + 1_000_000));
        // A fixed window starts again from zero; a sliding window still counts it in the previous window.
        let after = client.ask(SECOND + 1_500_000, &ask(0, 0)).outcome.remaining;
        let sliding = algorithm == Algorithm::SlidingWindow;
        assert_eq!(after, if sliding { 75 } else { 100 });
    }
}

#[test]
fn no_lease_is_granted_at_the_end_of_a_window() {
    let mut client = Client::new(Algorithm::FixedWindow, Quota::per_second(100));
    let granted = client.ask(SECOND + 990_000, &LeaseRequest { cost: 1, ..ask(50, 10_000_000) });
    assert_eq!((granted.granted, granted.ttl), (0, Span::ZERO));
    assert!(granted.outcome.is_allowed() && client.leases.is_empty());
}

#[test]
fn leases_of_a_client_are_bounded() {
    let mut client = Client::new(Algorithm::TokenBucket, Quota::per_second(1_000_000));
    for number in 0..100 {
        let asked = LeaseRequest { id: id(number), ..ask(1, 60_000_000) };
        let held = client.ask(START, &asked).granted;
        assert_eq!(held, u64::from(number < 64));
    }
}

#[test]
fn algorithm_without_leases_charges_the_cost_and_grants_nothing() {
    for algorithm in [Algorithm::LeakyBucket { queue: 9 }, Algorithm::SlidingLog] {
        let mut client = Client::new(algorithm, Quota::per_second(10));
        assert!(!client.limit.supports_leases());
        let granted = client.ask(START, &LeaseRequest { cost: 3, ..ask(5, 1_000_000) });
        assert_eq!((granted.granted, granted.outcome.remaining), (0, 7));
        assert!(granted.outcome.refund_token().is_some() && client.leases.is_empty());
    }
}

#[test]
fn cost_of_a_lease_request_can_be_refunded() {
    for algorithm in LEASING {
        let mut client = Client::new(algorithm, Quota::per_second(100));
        let granted = client.ask(SECOND, &LeaseRequest { cost: 30, ..ask(20, 500_000) });
        assert_eq!((granted.outcome.remaining, granted.granted), (70, 20));
        let refund_token = granted.outcome.refund_token().unwrap();
        let limit = client.limit.clone();
        assert!(limit.refund(&mut client.state, at(SECOND), &limit, &refund_token, 30));
        assert_eq!(client.ask(SECOND, &ask(0, 0)).outcome.remaining, 80, "{algorithm}");
    }
}

#[test]
fn lease_under_a_lowered_limit_counts_for_at_most_its_capacity() {
    for algorithm in LEASING {
        let mut client = Client::new(algorithm, Quota::per_minute(1_000));
        let now = START / 60_000_000 * 60_000_000;
        client.ask(now, &ask(500, 10_000_000));
        let lower = Limit::new(algorithm, Quota::per_minute(10)).unwrap();
        client.state = lower.migrate(&client.limit, &client.state, at(now));
        client.limit = lower;
        assert_eq!(client.ask(now, &LeaseRequest { cost: 1, ..ask(0, 0) }).outcome.remaining, 0);
        client.report(now, 500, true);
        // Its ten tokens are spent; the rest does not count.
        let later = client.report(now + 30_000_000, 0, false).outcome.remaining;
        let expected = if algorithm == Algorithm::TokenBucket { 5 } else { 0 };
        assert_eq!(later, expected, "{algorithm}");
    }
}

#[test]
fn repeated_and_late_usage_reports_count_once() {
    for algorithm in LEASING {
        let mut client = Client::new(algorithm, Quota::per(100, Quota::MAX_WINDOW));
        assert_eq!(client.owe(START, 1, START, 10), 90, "{algorithm}");
        assert_eq!(client.owe(START + 9, 1, START, 10), 90, "{algorithm}");
        assert_eq!(client.owe(START + 9, 1, START + 9, 15), 85, "{algorithm}");
        // An earlier report that arrives later changes nothing.
        assert_eq!(client.owe(START + 9, 1, START, 10), 85, "{algorithm}");
        // The same report of another node counts; the entry of the first node is dropped.
        assert_eq!(client.owe(START + 10, 2, START, 10), 75, "{algorithm}");
        assert_eq!(client.leases.iter().len(), 1);
    }
}

#[test]
fn usage_record_reserves_nothing_and_expires() {
    let mut client = Client::new(Algorithm::TokenBucket, Quota::per_second(100));
    client.owe(START, 1, START, 50);
    assert_eq!(client.leases.reserved(100), 0);
    // Half a second later all has refilled: what is remembered of it is not held.
    assert_eq!(client.ask(START + 500_000, &ask(0, 0)).outcome.remaining, 100);
    assert!(!client.leases.is_empty());
    client.ask(START + 1_000_000, &ask(0, 0));
    assert!(client.leases.is_empty());
}

#[test]
fn usage_beyond_a_bucket_delays_later_requests_in_full() {
    let mut client = Client::new(Algorithm::TokenBucket, Quota::per_second(100));
    assert_eq!(client.owe(START, 1, START, 1_000), 0);
    // Nine seconds of debt, and one to fill up.
    assert_eq!(client.ask(START + 9_000_000, &ask(0, 0)).outcome.remaining, 0);
    assert_eq!(client.ask(START + 9_500_000, &ask(0, 0)).outcome.remaining, 50);
    assert_eq!(client.ask(START + 10_000_000, &ask(0, 0)).outcome.remaining, 100);
    // The debt is bounded, also for a wrong report.
    client.owe(START, 2, START, u64::MAX);
    let later = START + 2 * Quota::MAX_FILL.as_micros();
    assert_eq!(client.ask(later, &ask(0, 0)).outcome.remaining, 100);
}

#[test]
fn usage_counts_in_the_window_of_its_admission() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut client = Client::new(algorithm, Quota::per_second(100));
        let (before, middle) = (SECOND + 999_999, SECOND + 1_500_000);
        let sliding = algorithm == Algorithm::SlidingWindow;
        // More than the limit, and all of it is known in the window after.
        let left = client.owe(middle, 1, before, 150);
        assert_eq!(left, if sliding { 25 } else { 100 }, "{algorithm}");
        // What is later than now counts now.
        let left = client.owe(middle, 2, u64::MAX, 20);
        assert_eq!(left, if sliding { 5 } else { 80 }, "{algorithm}");
    }
}

#[test]
fn request_with_unreported_usage_gets_a_snapshot_and_no_lease() {
    for algorithm in LEASING {
        let mut client = Client::new(algorithm, Quota::per_second(100));
        let unreported = smallvec![UnreportedUsage { at: at(SECOND), total: 30 }];
        let granted = client.ask(SECOND, &LeaseRequest { unreported, cost: 5, ..ask(20, 500_000) });
        assert_eq!((granted.outcome.remaining, granted.granted), (65, 0), "{algorithm}");
        let snapshot = granted.snapshot.unwrap();
        assert_eq!((snapshot.at, &snapshot.state), (at(SECOND), &client.state));
        // Nor under that name later.
        assert_eq!(client.ask(SECOND, &ask(20, 500_000)).granted, 0, "{algorithm}");
    }
}
