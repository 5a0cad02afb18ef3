use tidegate_core::lease::LeaseSet;
use tidegate_core::{Algorithm, LeaseGrant, Quota};
use tidegate_rules::MaxAhead;

use super::*;

/// A store with one client, and a manual clock. The clocks of nodes are [`CLOCK_OFFSET`] behind the store's.
struct TestStore {
    limit: Limit,
    state: State,
    leases: LeaseSet,
    now: Timestamp,
    synced: SyncSettings,
    last_number: u32,
}

const CLOCK_OFFSET: Span = Span::from_secs(500);
const START: Timestamp = Timestamp::from_secs(1_000_000);

impl TestStore {
    fn new(algorithm: Algorithm, quota: Quota, max_ahead: MaxAhead) -> Self {
        let limit = Limit::new(algorithm, quota).unwrap();
        let synced = SyncSettings { max_ahead, ..SyncSettings::default() };
        let (state, leases) = (limit.fresh(), LeaseSet::default());
        Self { limit, state, leases, now: START, synced, last_number: 0 }
    }

    fn clock(&self) -> Timestamp {
        self.now - CLOCK_OFFSET
    }

    fn advance(&mut self, millis: u64) {
        self.now = self.now + Span::from_millis(millis);
    }

    fn request(&mut self, view: &mut ClientView, node: u64, cost: u64) -> (LeaseId, LeaseRequest) {
        self.last_number += 1;
        let id = LeaseId { node, number: self.last_number };
        (id, view.request(self.clock(), id, self.synced.every, cost))
    }

    fn decide(&mut self, request: &LeaseRequest) -> LeaseGrant {
        self.limit.apply_lease_request(&mut self.state, &mut self.leases, self.now, request)
    }

    /// Sends a request and applies its reply, without delay. Returns whether the cost was admitted.
    fn sync(&mut self, view: &mut ClientView, node: u64, cost: u64) -> bool {
        let (id, request) = self.request(view, node, cost);
        let grant = self.decide(&request);
        view.on_reply(self.clock(), id, &self.limit, grant.snapshot);
        grant.outcome.is_allowed()
    }

    fn take(&self, view: &mut ClientView, cost: u64) -> SyncDecision {
        view.take(self.clock(), &self.limit, self.synced, cost)
    }

    /// Returns the number of checks of cost 1 that are admitted before the first one that is not.
    fn exhaust(&self, view: &mut ClientView) -> u64 {
        let mut passed = 0;
        while let SyncDecision::Admitted(..) = self.take(view, 1) {
            passed += 1;
        }
        passed
    }

    fn remaining(&mut self) -> u64 {
        self.limit.peek(&mut self.state, self.now, 1).remaining
    }
}

fn day(amount: u64, max_ahead: MaxAhead) -> TestStore {
    TestStore::new(Algorithm::FixedWindow, Quota::per_day(amount), max_ahead)
}

#[test]
fn first_check_of_a_client_goes_to_the_store() {
    let (store, mut view) = (day(100, MaxAhead::Tenth), ClientView::default());
    assert_eq!(store.take(&mut view, 1), SyncDecision::AskStore);
    assert_eq!(view.peek(store.clock(), &store.limit, store.synced.every, 1), None);
}

#[test]
fn node_admits_max_ahead_and_then_goes_to_the_store() {
    let (mut store, mut view) = (day(100, MaxAhead::Tokens(7)), ClientView::default());
    assert!(store.sync(&mut view, 1, 1));
    assert_eq!(store.exhaust(&mut view), 7);
    assert_eq!((store.take(&mut view, 1), view.unsynced()), (SyncDecision::AskStore, 7));
    assert_eq!(store.remaining(), 99);
    // The sync reports all of it, so the node may admit max_ahead again.
    assert!(store.sync(&mut view, 1, 0));
    assert_eq!((store.remaining(), view.unsynced(), store.exhaust(&mut view)), (92, 0, 7));
}

#[test]
fn exhausted_view_denies_without_the_store() {
    let (mut store, mut view) = (day(10, MaxAhead::Tokens(50)), ClientView::default());
    assert!(store.sync(&mut view, 1, 1));
    assert_eq!(store.exhaust(&mut view), 9);
    assert!(
        matches!(store.take(&mut view, 1), SyncDecision::Denied(outcome) if outcome.remaining == 0)
    );
}

#[test]
fn unsynced_nodes_exceed_the_limit_by_their_unsynced_usage() {
    let mut store = day(60, MaxAhead::Unbounded);
    let mut views: [ClientView; 3] = Default::default();
    let mut admitted = 0;
    for (node, view) in (1..).zip(&mut views) {
        assert!(store.sync(view, node, 1));
        admitted += 1;
    }
    for view in &mut views {
        admitted +=
            (0..35).filter(|_| matches!(store.take(view, 1), SyncDecision::Admitted(..))).count();
    }
    assert_eq!(admitted, 108);
    for _ in 0..2 {
        (1..).zip(&mut views).for_each(|(node, view)| {
            store.sync(view, node, 0);
        });
    }
    assert!(views.iter_mut().all(|view| store.exhaust(view) == 0));
}

#[test]
fn usage_admitted_during_a_sync_is_reported_by_the_next() {
    let (mut store, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    store.sync(&mut view, 1, 0);
    (0..4).for_each(|_| assert!(matches!(store.take(&mut view, 1), SyncDecision::Admitted(..))));
    let (id, request) = store.request(&mut view, 1, 0);
    (0..3).for_each(|_| assert!(matches!(store.take(&mut view, 1), SyncDecision::Admitted(..))));
    let grant = store.decide(&request);
    assert_eq!(view.unsynced(), 7);
    view.on_reply(store.clock(), id, &store.limit, grant.snapshot);
    assert_eq!((store.remaining(), view.unsynced()), (96, 3));
    // Unsynced usage is charged on top of the snapshot.
    let peek = view.peek(store.clock(), &store.limit, store.synced.every, 1).unwrap();
    assert_eq!(peek.remaining, 93);
    store.sync(&mut view, 1, 0);
    assert_eq!((store.remaining(), view.unsynced()), (93, 0));
}

#[test]
fn report_with_a_lost_reply_is_repeated_and_counts_once() {
    let (mut store, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    store.sync(&mut view, 1, 0);
    assert!(matches!(store.take(&mut view, 4), SyncDecision::Admitted(..)));
    for _ in 0..20 {
        let (id, request) = store.request(&mut view, 1, 0);
        let grant = store.decide(&request);
        view.on_failure(id);
        // A reply that arrives after the failure is ignored.
        view.on_reply(store.clock(), id, &store.limit, grant.snapshot);
        assert_eq!((store.remaining(), view.unsynced()), (96, 4));
    }
    assert!(matches!(store.take(&mut view, 6), SyncDecision::Admitted(..)));
    assert_eq!(store.take(&mut view, 1), SyncDecision::AskStore);
    store.sync(&mut view, 1, 0);
    assert_eq!((store.remaining(), view.unsynced()), (90, 0));
}

#[test]
fn rolled_back_usage_is_available_again_unless_it_was_reported() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut store = TestStore::new(algorithm, Quota::per_day(100), MaxAhead::Tokens(10));
        let mut view = ClientView::default();
        store.sync(&mut view, 1, 0);
        let SyncDecision::Admitted(_, debit) = store.take(&mut view, 10) else {
            panic!("{algorithm}")
        };
        assert!(view.roll_back(store.clock(), &store.limit, &debit));
        assert_eq!((view.unsynced(), store.exhaust(&mut view)), (0, 10), "{algorithm}");
        store.sync(&mut view, 1, 0);
        let SyncDecision::Admitted(_, debit) = store.take(&mut view, 10) else {
            panic!("{algorithm}")
        };
        let (id, _) = store.request(&mut view, 1, 0);
        assert!(!view.roll_back(store.clock(), &store.limit, &debit), "{algorithm}");
        view.on_failure(id);
        assert!(!view.roll_back(store.clock(), &store.limit, &debit), "{algorithm}");
        assert_eq!(view.unsynced(), 10);
    }
}

#[test]
fn stale_snapshot_is_not_used() {
    let (mut store, mut view) = (day(100, MaxAhead::Unbounded), ClientView::default());
    store.sync(&mut view, 1, 0);
    store.advance(1_999);
    assert!(matches!(store.take(&mut view, 1), SyncDecision::Admitted(..)));
    store.advance(1);
    assert_eq!(store.take(&mut view, 1), SyncDecision::AskStore);
    assert_eq!(view.unsynced(), 1);
}

#[test]
fn checks_near_the_end_of_a_window_go_to_the_store() {
    let second = Quota::per_second(100);
    let mut store = TestStore::new(Algorithm::FixedWindow, second, MaxAhead::Unbounded);
    let mut view = ClientView::default();
    store.advance(500);
    store.sync(&mut view, 1, 0);
    assert_eq!(store.exhaust(&mut view), 100);
    // Within 1 % of the snapshot's age around the boundary, the time may be in either window.
    store.advance(496);
    assert_eq!(store.take(&mut view, 1), SyncDecision::AskStore);
    store.advance(8);
    assert_eq!(store.take(&mut view, 1), SyncDecision::AskStore);
    store.advance(6);
    assert_eq!(store.exhaust(&mut view), 100);
    // Usage is reported with its window, so the store ignores that of the first window.
    store.sync(&mut view, 1, 0);
    assert_eq!((store.remaining(), store.exhaust(&mut view)), (0, 0));
    let mut other = ClientView::default();
    store.sync(&mut other, 2, 0);
    assert_eq!(store.exhaust(&mut other), 0);
}

#[test]
fn unsynced_usage_of_the_previous_window_counts_in_a_sliding_window() {
    let second = Quota::per_second(100);
    let mut store = TestStore::new(Algorithm::SlidingWindow, second, MaxAhead::Unbounded);
    let mut view = ClientView::default();
    store.advance(500);
    store.sync(&mut view, 1, 0);
    assert_eq!(store.exhaust(&mut view), 100);
    store.advance(1_000);
    store.sync(&mut view, 1, 0);
    assert_eq!((store.remaining(), store.exhaust(&mut view)), (50, 50));
}

#[test]
fn bucket_refills_in_the_view_no_faster_than_in_the_store() {
    let mut store =
        TestStore::new(Algorithm::TokenBucket, Quota::per_second(1_000), MaxAhead::Unbounded);
    let mut view = ClientView::default();
    store.sync(&mut view, 1, 0);
    let mut admitted = store.exhaust(&mut view);
    for _ in 0..100 {
        store.advance(10);
        admitted += store.exhaust(&mut view);
    }
    // One second of refill, less 1 % for clock drift.
    assert!((1_980..=1_991).contains(&admitted), "{admitted}");
    store.sync(&mut view, 1, 0);
    assert!(store.remaining() <= 20);
}

#[test]
fn overdraft_of_a_bucket_is_paid_back_in_full() {
    let mut store =
        TestStore::new(Algorithm::TokenBucket, Quota::per_second(10), MaxAhead::Unbounded);
    let mut views: [ClientView; 5] = Default::default();
    (1..).zip(&mut views).for_each(|(node, view)| {
        store.sync(view, node, 0);
    });
    let admitted: u64 = views.iter_mut().map(|view| store.exhaust(view)).sum();
    assert_eq!(admitted, 50);
    (1..).zip(&mut views).for_each(|(node, view)| {
        store.sync(view, node, 0);
    });
    store.advance(3_999);
    assert_eq!(store.remaining(), 0);
    store.advance(1_001);
    assert_eq!(store.remaining(), 10);
}

#[test]
fn sync_is_due_after_a_check_or_unsynced_usage() {
    let (mut store, mut view) = (day(100, MaxAhead::Tenth), ClientView::default());
    let every = store.synced.every;
    store.sync(&mut view, 1, 1);
    store.advance(200);
    assert!(!view.is_due(store.clock(), every));
    store.take(&mut view, 1);
    assert!(view.is_due(store.clock(), every));
    let (id, _) = store.request(&mut view, 1, 0);
    assert!(!view.is_due(store.clock(), every));
    view.on_failure(id);
    // The lost report is repeated one interval later.
    assert!(!view.is_due(store.clock(), every));
    store.advance(200);
    assert!(view.is_due(store.clock(), every) && !view.is_expired(store.clock(), every));
    store.sync(&mut view, 1, 0);
    store.advance(1_999);
    assert!(!view.is_due(store.clock(), every) && !view.is_expired(store.clock(), every));
    store.advance(1);
    assert!(view.is_expired(store.clock(), every));
}

#[test]
fn snapshot_of_another_request_keeps_unsynced_usage() {
    let (mut store, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    store.sync(&mut view, 1, 0);
    assert!(matches!(store.take(&mut view, 6), SyncDecision::Admitted(..)));
    let (id, request) = store.request(&mut view, 1, 0);
    // A cost above max_ahead has its own request. Its snapshot is older than that of the sync.
    let sent = store.clock();
    let exact = exact_request(LeaseId { node: 1, number: 99 }, store.synced.every, 50);
    let costly = store.decide(&exact);
    let synced = store.decide(&request);
    view.on_snapshot(sent, store.clock(), &store.limit, costly.snapshot);
    let remaining = |view: &mut ClientView, store: &TestStore| {
        view.peek(store.clock(), &store.limit, store.synced.every, 1).unwrap().remaining
    };
    assert_eq!((remaining(&mut view, &store), view.unsynced()), (44, 6));
    view.on_reply(store.clock(), id, &store.limit, synced.snapshot);
    assert_eq!((remaining(&mut view, &store), view.unsynced()), (44, 0));
}

/// Regression: the log was confirmed and the snapshot was discarded as older, so each sync freed the usage that the
/// node had admitted.
#[test]
fn store_clock_set_back_frees_nothing_that_was_confirmed() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut store = TestStore::new(algorithm, Quota::per_day(100), MaxAhead::Tokens(10));
        let mut view = ClientView::default();
        store.now = store.now + Span::HOUR;
        store.sync(&mut view, 1, 0);
        let mut admitted = store.exhaust(&mut view);
        // The store's clock is set back by an hour; the node's clock is not.
        let mut clock = store.clock();
        store.now = store.now - Span::HOUR;
        for _ in 0..50 {
            clock = clock + Span::from_millis(200);
            store.advance(200);
            store.last_number += 1;
            let id = LeaseId { node: 1, number: store.last_number };
            let request = view.request(clock, id, store.synced.every, 0);
            let grant = store.decide(&request);
            view.on_reply(clock, id, &store.limit, grant.snapshot);
            while let SyncDecision::Admitted(..) = view.take(clock, &store.limit, store.synced, 1) {
                admitted += 1;
            }
        }
        assert!(admitted <= 110, "{algorithm}: {admitted}");
    }
}

/// Two requests are in flight together, and the store's clock is set back between them: their order is unknown.
#[test]
fn view_is_invalidated_when_its_snapshot_may_lack_confirmed_usage() {
    let (mut store, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    store.now = store.now + Span::HOUR;
    store.sync(&mut view, 1, 0);
    assert_eq!(store.exhaust(&mut view), 10);
    let sent = store.clock();
    let (id, request) = store.request(&mut view, 1, 0);
    let exact =
        store.decide(&exact_request(LeaseId { node: 1, number: 99 }, store.synced.every, 0));
    let received = sent + Span::from_millis(1);
    view.on_snapshot(sent, received, &store.limit, exact.snapshot);
    store.now = store.now - Span::SECOND;
    let synced = store.decide(&request);
    view.on_reply(received, id, &store.limit, synced.snapshot);
    assert_eq!(view.unsynced(), 0);
    assert_eq!(view.take(received, &store.limit, store.synced, 1), SyncDecision::AskStore);
}

#[test]
fn snapshot_requested_before_the_last_confirmation_is_discarded() {
    // With and without an invalidated view, and with a store clock that was set back.
    for (back, invalidated) in [(Span::ZERO, true), (Span::SECOND, false), (Span::SECOND, true)] {
        let (mut store, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
        store.now = store.now + Span::HOUR;
        store.sync(&mut view, 1, 0);
        assert_eq!(store.exhaust(&mut view), 10);
        let sent = store.clock();
        let late =
            store.decide(&exact_request(LeaseId { node: 1, number: 99 }, store.synced.every, 0));
        let (id, request) = store.request(&mut view, 1, 0);
        store.now = store.now - back;
        let synced = store.decide(&request);
        let received = sent + Span::from_millis(1);
        view.on_reply(received, id, &store.limit, synced.snapshot);
        if invalidated {
            view.invalidate();
        }
        view.on_snapshot(sent, received, &store.limit, late.snapshot);
        let left = view.peek(received, &store.limit, store.synced.every, 1);
        assert!(left.is_none_or(|left| left.remaining == 90), "{left:?}");
    }
}
