use tidegate_core::lease::LeaseSet;
use tidegate_core::{Algorithm, LeaseGrant, Quota};
use tidegate_rules::MaxAhead;

use super::*;

/// A store of one client, and time. Nodes read the same clock as the store, some time apart.
struct Scene {
    limit: Limit,
    state: State,
    leases: LeaseSet,
    now: Timestamp,
    synced: SyncSettings,
    numbers: u32,
}

/// Where the clocks of nodes began.
const APART: Span = Span::from_secs(500);
const START: Timestamp = Timestamp::from_secs(1_000_000);

impl Scene {
    fn new(algorithm: Algorithm, quota: Quota, max_ahead: MaxAhead) -> Self {
        let limit = Limit::new(algorithm, quota).unwrap();
        let synced = SyncSettings { max_ahead, ..SyncSettings::default() };
        let (state, leases) = (limit.fresh(), LeaseSet::default());
        Self { limit, state, leases, now: START, synced, numbers: 0 }
    }

    fn clock(&self) -> Timestamp {
        self.now - APART
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now + Span::from_millis(millis);
    }

    fn request(&mut self, view: &mut ClientView, node: u64, cost: u64) -> (LeaseId, LeaseRequest) {
        self.numbers += 1;
        let id = LeaseId { node, number: self.numbers };
        (id, view.request(self.clock(), id, self.synced.every, cost))
    }

    fn decide(&mut self, request: &LeaseRequest) -> LeaseGrant {
        self.limit.apply_lease_request(&mut self.state, &mut self.leases, self.now, request)
    }

    /// A question and its answer, at once.
    fn sync(&mut self, view: &mut ClientView, node: u64, cost: u64) -> bool {
        let (id, request) = self.request(view, node, cost);
        let grant = self.decide(&request);
        view.on_reply(self.clock(), id, &self.limit, grant.snapshot);
        grant.outcome.is_allowed()
    }

    fn take(&self, view: &mut ClientView, cost: u64) -> SyncDecision {
        view.take(self.clock(), &self.limit, self.synced, cost)
    }

    /// How many checks of cost 1 pass until one is not admitted here.
    fn exhaust(&self, view: &mut ClientView) -> u64 {
        let mut passed = 0;
        while let SyncDecision::Admitted(..) = self.take(view, 1) {
            passed += 1;
        }
        passed
    }

    fn left(&mut self) -> u64 {
        self.limit.peek(&mut self.state, self.now, 1).remaining
    }
}

fn day(amount: u64, max_ahead: MaxAhead) -> Scene {
    Scene::new(Algorithm::FixedWindow, Quota::per_day(amount), max_ahead)
}

#[test]
fn a_client_that_is_not_known_is_asked_for() {
    let (scene, mut view) = (day(100, MaxAhead::Tenth), ClientView::default());
    assert_eq!(scene.take(&mut view, 1), SyncDecision::AskStore);
    assert_eq!(view.peek(scene.clock(), &scene.limit, scene.synced.every, 1), None);
}

#[test]
fn a_node_admits_max_ahead_and_then_has_to_ask() {
    let (mut scene, mut view) = (day(100, MaxAhead::Tokens(7)), ClientView::default());
    assert!(scene.sync(&mut view, 1, 1));
    assert_eq!(scene.exhaust(&mut view), 7);
    assert_eq!((scene.take(&mut view, 1), view.unsynced()), (SyncDecision::AskStore, 7));
    assert_eq!(scene.left(), 99);
    // The sync tells all of it, and there is room again.
    assert!(scene.sync(&mut view, 1, 0));
    assert_eq!((scene.left(), view.unsynced(), scene.exhaust(&mut view)), (92, 0, 7));
}

#[test]
fn what_the_view_has_not_is_denied_without_asking() {
    let (mut scene, mut view) = (day(10, MaxAhead::Tokens(50)), ClientView::default());
    assert!(scene.sync(&mut view, 1, 1));
    assert_eq!(scene.exhaust(&mut view), 9);
    assert!(
        matches!(scene.take(&mut view, 1), SyncDecision::Denied(outcome) if outcome.remaining == 0)
    );
}

#[test]
fn nodes_that_do_not_know_of_each_other_exceed_the_limit_by_what_they_are_ahead() {
    let mut scene = day(60, MaxAhead::Unbounded);
    let mut views: [ClientView; 3] = Default::default();
    let mut admitted = 0;
    for (node, view) in (1..).zip(&mut views) {
        assert!(scene.sync(view, node, 1));
        admitted += 1;
    }
    for view in &mut views {
        admitted +=
            (0..35).filter(|_| matches!(scene.take(view, 1), SyncDecision::Admitted(..))).count();
    }
    assert_eq!(admitted, 108);
    for _ in 0..2 {
        (1..).zip(&mut views).for_each(|(node, view)| {
            scene.sync(view, node, 0);
        });
    }
    assert!(views.iter_mut().all(|view| scene.exhaust(view) == 0));
}

#[test]
fn what_is_admitted_while_a_sync_is_under_way_is_told_with_the_next() {
    let (mut scene, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    scene.sync(&mut view, 1, 0);
    (0..4).for_each(|_| assert!(matches!(scene.take(&mut view, 1), SyncDecision::Admitted(..))));
    let (id, request) = scene.request(&mut view, 1, 0);
    (0..3).for_each(|_| assert!(matches!(scene.take(&mut view, 1), SyncDecision::Admitted(..))));
    let grant = scene.decide(&request);
    assert_eq!(view.unsynced(), 7);
    view.on_reply(scene.clock(), id, &scene.limit, grant.snapshot);
    assert_eq!((scene.left(), view.unsynced()), (96, 3));
    // Its own are on top of what the store said.
    let look = view.peek(scene.clock(), &scene.limit, scene.synced.every, 1).unwrap();
    assert_eq!(look.remaining, 93);
    scene.sync(&mut view, 1, 0);
    assert_eq!((scene.left(), view.unsynced()), (93, 0));
}

#[test]
fn an_answer_that_was_lost_is_told_again_and_counts_once() {
    let (mut scene, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    scene.sync(&mut view, 1, 0);
    assert!(matches!(scene.take(&mut view, 4), SyncDecision::Admitted(..)));
    for _ in 0..20 {
        let (id, request) = scene.request(&mut view, 1, 0);
        let grant = scene.decide(&request);
        view.on_failure(id);
        // It comes after all, and nobody waits for it.
        view.on_reply(scene.clock(), id, &scene.limit, grant.snapshot);
        assert_eq!((scene.left(), view.unsynced()), (96, 4));
    }
    assert!(matches!(scene.take(&mut view, 6), SyncDecision::Admitted(..)));
    assert_eq!(scene.take(&mut view, 1), SyncDecision::AskStore);
    scene.sync(&mut view, 1, 0);
    assert_eq!((scene.left(), view.unsynced()), (90, 0));
}

#[test]
fn what_is_put_back_can_be_taken_again_unless_the_store_may_know_of_it() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut scene = Scene::new(algorithm, Quota::per_day(100), MaxAhead::Tokens(10));
        let mut view = ClientView::default();
        scene.sync(&mut view, 1, 0);
        let SyncDecision::Admitted(_, advance) = scene.take(&mut view, 10) else {
            panic!("{algorithm}")
        };
        assert!(view.roll_back(scene.clock(), &scene.limit, &advance));
        assert_eq!((view.unsynced(), scene.exhaust(&mut view)), (0, 10), "{algorithm}");
        scene.sync(&mut view, 1, 0);
        let SyncDecision::Admitted(_, advance) = scene.take(&mut view, 10) else {
            panic!("{algorithm}")
        };
        let (id, _) = scene.request(&mut view, 1, 0);
        assert!(!view.roll_back(scene.clock(), &scene.limit, &advance), "{algorithm}");
        view.on_failure(id);
        assert!(!view.roll_back(scene.clock(), &scene.limit, &advance), "{algorithm}");
        assert_eq!(view.unsynced(), 10);
    }
}

#[test]
fn an_old_view_is_not_used() {
    let (mut scene, mut view) = (day(100, MaxAhead::Unbounded), ClientView::default());
    scene.sync(&mut view, 1, 0);
    scene.pass(1_999);
    assert!(matches!(scene.take(&mut view, 1), SyncDecision::Admitted(..)));
    scene.pass(1);
    assert_eq!(scene.take(&mut view, 1), SyncDecision::AskStore);
    assert_eq!(view.unsynced(), 1);
}

#[test]
fn at_the_edge_of_a_window_the_store_is_asked_and_then_there_is_a_new_one() {
    let second = Quota::per_second(100);
    let mut scene = Scene::new(Algorithm::FixedWindow, second, MaxAhead::Unbounded);
    let mut view = ClientView::default();
    scene.pass(500);
    scene.sync(&mut view, 1, 0);
    assert_eq!(scene.exhaust(&mut view), 100);
    // A hundredth of half a second before and after, it may be either.
    scene.pass(496);
    assert_eq!(scene.take(&mut view, 1), SyncDecision::AskStore);
    scene.pass(8);
    assert_eq!(scene.take(&mut view, 1), SyncDecision::AskStore);
    scene.pass(6);
    assert_eq!(scene.exhaust(&mut view), 100);
    // Each was admitted in its own window, and is told so: the store forgets those of the first.
    scene.sync(&mut view, 1, 0);
    assert_eq!((scene.left(), scene.exhaust(&mut view)), (0, 0));
    let mut other = ClientView::default();
    scene.sync(&mut other, 2, 0);
    assert_eq!(scene.exhaust(&mut other), 0);
}

#[test]
fn what_was_admitted_in_the_window_before_weighs_on_a_sliding_one() {
    let second = Quota::per_second(100);
    let mut scene = Scene::new(Algorithm::SlidingWindow, second, MaxAhead::Unbounded);
    let mut view = ClientView::default();
    scene.pass(500);
    scene.sync(&mut view, 1, 0);
    assert_eq!(scene.exhaust(&mut view), 100);
    scene.pass(1_000);
    scene.sync(&mut view, 1, 0);
    assert_eq!((scene.left(), scene.exhaust(&mut view)), (50, 50));
}

#[test]
fn a_bucket_refills_in_the_view_and_never_faster_than_in_the_store() {
    let mut scene =
        Scene::new(Algorithm::TokenBucket, Quota::per_second(1_000), MaxAhead::Unbounded);
    let mut view = ClientView::default();
    scene.sync(&mut view, 1, 0);
    let mut admitted = scene.exhaust(&mut view);
    for _ in 0..100 {
        scene.pass(10);
        admitted += scene.exhaust(&mut view);
    }
    // A second later, less the hundredth that clocks may run apart.
    assert!((1_980..=1_991).contains(&admitted), "{admitted}");
    scene.sync(&mut view, 1, 0);
    assert!(scene.left() <= 20);
}

#[test]
fn what_buckets_gave_too_much_is_paid_back_in_full() {
    let mut scene = Scene::new(Algorithm::TokenBucket, Quota::per_second(10), MaxAhead::Unbounded);
    let mut views: [ClientView; 5] = Default::default();
    (1..).zip(&mut views).for_each(|(node, view)| {
        scene.sync(view, node, 0);
    });
    let admitted: u64 = views.iter_mut().map(|view| scene.exhaust(view)).sum();
    assert_eq!(admitted, 50);
    (1..).zip(&mut views).for_each(|(node, view)| {
        scene.sync(view, node, 0);
    });
    scene.pass(3_999);
    assert_eq!(scene.left(), 0);
    scene.pass(1_001);
    assert_eq!(scene.left(), 10);
}

#[test]
fn a_sync_is_due_when_there_is_something_to_tell_or_somebody_to_know() {
    let (mut scene, mut view) = (day(100, MaxAhead::Tenth), ClientView::default());
    let every = scene.synced.every;
    scene.sync(&mut view, 1, 1);
    scene.pass(200);
    assert!(!view.is_due(scene.clock(), every));
    scene.take(&mut view, 1);
    assert!(view.is_due(scene.clock(), every));
    let (id, _) = scene.request(&mut view, 1, 0);
    assert!(!view.is_due(scene.clock(), every));
    view.on_failure(id);
    // What was lost is told again, one time later.
    assert!(!view.is_due(scene.clock(), every));
    scene.pass(200);
    assert!(view.is_due(scene.clock(), every) && !view.is_over(scene.clock(), every));
    scene.sync(&mut view, 1, 0);
    scene.pass(1_999);
    assert!(!view.is_due(scene.clock(), every) && !view.is_over(scene.clock(), every));
    scene.pass(1);
    assert!(view.is_over(scene.clock(), every));
}

#[test]
fn what_another_question_learned_does_not_forget_what_is_owed() {
    let (mut scene, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    scene.sync(&mut view, 1, 0);
    assert!(matches!(scene.take(&mut view, 6), SyncDecision::Admitted(..)));
    let (id, request) = scene.request(&mut view, 1, 0);
    // A cost above max_ahead is asked for by itself, and its answer is older than the sync.
    let sent = scene.clock();
    let exact = exact_request(LeaseId { node: 1, number: 99 }, scene.synced.every, 50);
    let costly = scene.decide(&exact);
    let synced = scene.decide(&request);
    view.learn(sent, scene.clock(), &scene.limit, costly.snapshot);
    let look = |view: &mut ClientView, scene: &Scene| {
        view.peek(scene.clock(), &scene.limit, scene.synced.every, 1).unwrap().remaining
    };
    assert_eq!((look(&mut view, &scene), view.unsynced()), (44, 6));
    view.on_reply(scene.clock(), id, &scene.limit, synced.snapshot);
    assert_eq!((look(&mut view, &scene), view.unsynced()), (44, 0));
}

/// Regression: the log was confirmed and the snapshot discarded as older, so each sync freed what the node
/// had admitted.
#[test]
fn store_clock_set_back_frees_nothing_that_was_confirmed() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut scene = Scene::new(algorithm, Quota::per_day(100), MaxAhead::Tokens(10));
        let mut view = ClientView::default();
        scene.now = scene.now + Span::HOUR;
        scene.sync(&mut view, 1, 0);
        let mut admitted = scene.exhaust(&mut view);
        // The node's clock goes on; the store's is an hour behind from here on.
        let mut clock = scene.clock();
        scene.now = scene.now - Span::HOUR;
        for _ in 0..50 {
            clock = clock + Span::from_millis(200);
            scene.pass(200);
            scene.numbers += 1;
            let id = LeaseId { node: 1, number: scene.numbers };
            let request = view.request(clock, id, scene.synced.every, 0);
            let grant = scene.decide(&request);
            view.on_reply(clock, id, &scene.limit, grant.snapshot);
            while let SyncDecision::Admitted(..) = view.take(clock, &scene.limit, scene.synced, 1) {
                admitted += 1;
            }
        }
        assert!(admitted <= 110, "{algorithm}: {admitted}");
    }
}

/// Two questions under way together, and a store clock that is set back between them: their order is not known.
#[test]
fn view_is_invalidated_when_the_snapshot_in_use_may_lack_what_was_confirmed() {
    let (mut scene, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
    scene.now = scene.now + Span::HOUR;
    scene.sync(&mut view, 1, 0);
    assert_eq!(scene.exhaust(&mut view), 10);
    let sent = scene.clock();
    let (id, request) = scene.request(&mut view, 1, 0);
    let exact =
        scene.decide(&exact_request(LeaseId { node: 1, number: 99 }, scene.synced.every, 0));
    let heard = sent + Span::from_millis(1);
    view.learn(sent, heard, &scene.limit, exact.snapshot);
    scene.now = scene.now - Span::SECOND;
    let synced = scene.decide(&request);
    view.on_reply(heard, id, &scene.limit, synced.snapshot);
    assert_eq!(view.unsynced(), 0);
    assert_eq!(view.take(heard, &scene.limit, scene.synced, 1), SyncDecision::AskStore);
}

#[test]
fn snapshot_requested_before_the_last_confirmation_is_discarded() {
    // Also after the view was invalidated, and whatever the store's clock showed.
    for (back, invalidated) in [(Span::ZERO, true), (Span::SECOND, false), (Span::SECOND, true)] {
        let (mut scene, mut view) = (day(100, MaxAhead::Tokens(10)), ClientView::default());
        scene.now = scene.now + Span::HOUR;
        scene.sync(&mut view, 1, 0);
        assert_eq!(scene.exhaust(&mut view), 10);
        let sent = scene.clock();
        let late =
            scene.decide(&exact_request(LeaseId { node: 1, number: 99 }, scene.synced.every, 0));
        let (id, request) = scene.request(&mut view, 1, 0);
        scene.now = scene.now - back;
        let synced = scene.decide(&request);
        let heard = sent + Span::from_millis(1);
        view.on_reply(heard, id, &scene.limit, synced.snapshot);
        if invalidated {
            view.invalidate();
        }
        view.learn(sent, heard, &scene.limit, late.snapshot);
        let left = view.peek(heard, &scene.limit, scene.synced.every, 1);
        assert!(left.is_none_or(|left| left.remaining == 90), "{left:?}");
    }
}
