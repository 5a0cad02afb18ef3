//! Clients of one node, by the clock of a test.

use std::sync::Arc;

use tidegate_core::{Algorithm, Limit, Quota};

use super::*;
use crate::coordination::membership::{HeartbeatReply, Membership};

const SILENCE: Span = Span::from_secs(4);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000_000) + Span::from_millis(millis)
}

struct Node {
    membership: Membership,
    split: Split,
    limit: Arc<Limit>,
}

impl Node {
    fn new(algorithm: Algorithm, quota: Quota) -> Self {
        let limit = Arc::new(Limit::new(algorithm, quota).unwrap());
        Self { membership: Membership::new(SILENCE), split: Split::new(), limit }
    }

    /// A node that is one of so many at an instant.
    fn hears(&mut self, millis: u64, of: u64, since: u64) {
        let share = Share { index: 0, of };
        self.membership.on_heartbeat(HeartbeatReply {
            sent: at(millis),
            received: at(millis),
            share,
            since,
        });
    }

    /// The same every second, from one to another.
    fn hears_through(&mut self, seconds: std::ops::RangeInclusive<u64>, of: u64, since: u64) {
        seconds.for_each(|second| self.hears(second * 1_000, of, since));
    }

    fn membership_view(&self, millis: u64) -> MembershipView {
        MembershipView { at: at(millis), membership: Arc::new(self.membership.clone()) }
    }

    fn check(&self, millis: u64, client: u128, cost: u64) -> Result<Outcome, StoreError> {
        Ok(self.charge(millis, client, cost)?.0)
    }

    fn charge(
        &self,
        millis: u64,
        client: u128,
        cost: u64,
    ) -> Result<(Outcome, Option<Refund>), StoreError> {
        let key = Key::from_u128(client);
        let shared = Key::from_u128(1 << 100);
        let charge =
            Charge { key, overflow_key: shared, limit: &self.limit, cost, independent: false };
        self.split.charge(Some(&self.membership_view(millis)), &charge, ChargeMode::of_cost(cost))
    }

    fn left(&self, millis: u64, client: u128) -> u64 {
        self.check(millis, client, 0).unwrap().remaining
    }
}

fn bucket() -> Node {
    Node::new(Algorithm::TokenBucket, Quota::per_second(100))
}

fn window() -> Node {
    Node::new(Algorithm::FixedWindow, Quota::per_minute(100))
}

#[test]
fn a_newcomer_denies_until_its_share_is_its_own_and_then_starts_empty() {
    let mut node = bucket();
    assert!(node.check(0, 1, 1).is_err(), "it knows of no fleet yet");
    node.hears_through(0..=4, 2, 7);
    let early = node.check(1_000, 1, 1).unwrap();
    assert_eq!((early.limit, early.remaining), (50, 0));
    assert_eq!(early.retry_after(), Some(Span::from_millis(3_050)));
    assert_eq!(node.left(4_050, 1), 0);
    assert_eq!(node.left(4_150, 1), 5, "50 per second");
    assert_eq!(node.left(7_000, 1), 50);
    node.hears_through(5..=59, 2, 7);
    let mut node = Node { limit: window().limit, ..node };
    // 40 s into a minute.
    assert_eq!(node.left(19_000, 1), 0, "nobody knows what was spent of this window");
    assert_eq!(node.left(20_000, 1), 50);
    node.membership.leave();
    assert!(node.check(21_000, 1, 1).is_err());
}

#[test]
fn a_share_that_grows_brings_room_and_no_tokens() {
    for seen in [true, false] {
        let mut node = bucket();
        node.hears_through(0..=9, 4, 7);
        if seen {
            assert_eq!(node.left(9_000, 1), 25);
            assert!(node.check(9_000, 1, 5).unwrap().is_allowed());
        }
        node.hears(10_000, 1, 7);
        assert_eq!(node.left(10_000, 1), 25, "what was another node's may be spent");
        assert_eq!(node.left(10_500, 1), 75);
        assert_eq!(node.left(10_750, 1), 100);

        let mut node = window();
        node.hears_through(0..=9, 4, 7);
        node.hears(10_000, 4, 7);
        node.hears_through(11..=19, 4, 7);
        assert_eq!(node.left(20_001, 1), 25);
        if seen {
            assert!(node.check(20_001, 1, 5).unwrap().is_allowed());
        }
        node.hears(21_000, 1, 7);
        assert_eq!(node.left(21_000, 1), if seen { 20 } else { 25 });
        node.hears_through(22..=79, 1, 7);
        assert_eq!(node.left(79_999, 1), if seen { 20 } else { 25 });
        assert_eq!(node.left(80_000, 1), 100);
    }
}

#[test]
fn a_share_that_shrinks_and_grows_unseen_gains_nothing() {
    let mut node = bucket();
    node.hears_through(0..=9, 1, 7);
    assert_eq!(node.left(9_900, 1), 100);
    node.hears(10_000, 50, 7);
    node.hears(10_100, 1, 7);
    assert_eq!(node.left(10_100, 1), 2, "there was room for 2 in between");
    assert_eq!(node.left(10_100, 2), 2);
}

#[test]
fn after_a_gap_a_bucket_is_empty_and_a_window_goes_on() {
    let mut node = bucket();
    node.hears_through(0..=9, 2, 7);
    assert_eq!(node.left(9_900, 1), 50);
    node.hears_through(20..=25, 2, 8);
    assert!(node.check(21_000, 1, 1).is_err());
    assert_eq!(node.left(24_050, 1), 0);

    let mut node = window();
    node.hears_through(0..=25, 2, 7);
    assert!(node.check(25_000, 1, 20).unwrap().is_allowed());
    // It was over at 28.95 s; the window ends at 80 s.
    node.hears_through(40..=75, 2, 8);
    assert_eq!(node.left(44_050, 1), 30, "nobody else had this");
    assert_eq!(node.left(44_050, 2), 50);
    node.hears_through(90..=99, 2, 9);
    assert_eq!(node.left(94_050, 1), 0, "others may have had all of this window");
    assert_eq!(node.left(94_050, 2), 0);
}

#[test]
fn a_limit_that_changes_keeps_the_tokens_that_are_left() {
    let mut node = bucket();
    node.hears_through(0..=9, 2, 7);
    assert!(node.check(9_000, 1, 40).unwrap().is_allowed());
    node.limit = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_second(1_000)).unwrap());
    assert_eq!(node.left(9_000, 1), 10);
    assert_eq!(node.left(9_000, 2), 500);
}

#[test]
fn what_is_taken_back_can_be_spent_again_and_only_once() {
    let mut node = window();
    node.hears_through(0..=25, 2, 7);
    let (_, refund) = node.charge(25_000, 1, 20).unwrap();
    let refund = refund.unwrap();
    node.split.take_back(Some(&node.membership_view(25_001)), &refund);
    assert_eq!(node.left(25_002, 1), 50);
    node.split.take_back(Some(&node.membership_view(25_003)), &refund);
    assert_eq!(node.left(25_004, 1), 50);
    // Without a refund token, by the limit of the rule.
    assert!(node.check(25_005, 1, 20).unwrap().is_allowed());
    let refund = Refund { limit: Arc::clone(&node.limit), cost: 5, refund_token: None, ..refund };
    node.split.take_back(Some(&node.membership_view(25_006)), &refund);
    assert_eq!(node.left(25_007, 1), 35);
}

#[test]
fn a_client_that_is_forgotten_starts_like_one_never_seen() {
    let mut node = window();
    node.hears_through(0..=25, 2, 7);
    assert!(node.check(25_000, 1, 50).unwrap().is_allowed());
    assert!(!node.check(25_000, 1, 1).unwrap().is_allowed());
    node.split.forget(Key::from_u128(1));
    assert_eq!(node.left(25_001, 1), 50);
}

#[test]
fn a_share_of_nothing_denies() {
    let mut node = Node::new(Algorithm::TokenBucket, Quota::per_second(3));
    for second in 0..=9 {
        let share = Share { index: 4, of: 5 };
        let now = at(second * 1_000);
        node.membership.on_heartbeat(HeartbeatReply { sent: now, received: now, share, since: 7 });
    }
    let denied = node.check(9_000, 1, 1).unwrap();
    assert_eq!((denied.limit, denied.retry_after()), (0, None));
    assert!(!denied.is_allowed());
}

#[test]
fn clients_that_have_all_of_their_part_are_forgotten_and_others_are_not() {
    let mut node = bucket();
    node.hears_through(0..=9, 2, 7);
    // All in one shard.
    let key = |number: u128| number << 8;
    for number in 0..10_000 {
        let now = 9_000 + u64::try_from(number).unwrap() / 4;
        if number % 1_000 == 0 {
            node.hears(now, 2, 7);
        }
        assert!(node.check(now, key(number), 1).unwrap().is_allowed());
    }
    let kept = node.split.shards.shard(Key::from_u128(0)).read().clients.len();
    assert!(kept < 1_000, "{kept} are kept, of whom 80 have less than all");
}

#[test]
fn when_there_is_no_room_newcomers_share_and_nobody_is_freed() {
    let mut node = window();
    node.hears_through(0..=25, 2, 7);
    let key = |number: u128| number << 8;
    let most = u128::try_from(ROOM).unwrap();
    for number in 0..most {
        assert!(node.check(25_000, key(number), 50).unwrap().is_allowed());
    }
    let mut admitted = 0;
    for number in most..2 * most {
        admitted += u64::from(node.check(25_000, key(number), 1).unwrap().is_allowed());
    }
    let shared = 50 * MemoryStore::SHARED_BUCKETS;
    assert!(admitted <= shared, "{admitted} of {shared}");
    assert!(!node.check(25_000, key(0), 1).unwrap().is_allowed());
}
