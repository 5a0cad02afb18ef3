//! Split limits on one node, with a manual clock.

use std::sync::Arc;

use tidegate_core::{Algorithm, Limit, Quota};

use super::*;
use crate::coordination::membership::{HeartbeatReply, Membership};

const HEARTBEAT_TIMEOUT: Span = Span::from_secs(4);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000_000) + Span::from_millis(millis)
}

struct TestNode {
    membership: Membership,
    split: SplitLimits,
    limit: Arc<Limit>,
}

impl TestNode {
    fn new(algorithm: Algorithm, quota: Quota) -> Self {
        let limit = Arc::new(Limit::new(algorithm, quota).unwrap());
        Self { membership: Membership::new(HEARTBEAT_TIMEOUT), split: SplitLimits::new(), limit }
    }

    /// Applies a heartbeat reply at a time in milliseconds, with `of` nodes.
    fn heartbeat(&mut self, millis: u64, of: u64, since: u64) {
        let share = Share { index: 0, of };
        self.membership.on_heartbeat(HeartbeatReply {
            sent: at(millis),
            received: at(millis),
            share,
            since,
        });
    }

    /// Applies a heartbeat reply every second of a range.
    fn heartbeats(&mut self, seconds: std::ops::RangeInclusive<u64>, of: u64, since: u64) {
        seconds.for_each(|second| self.heartbeat(second * 1_000, of, since));
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
        let overflow_key = Key::from_u128(1 << 100);
        let charge = Charge { key, overflow_key, limit: &self.limit, cost, independent: false };
        self.split.charge(Some(&self.membership_view(millis)), &charge, ChargeMode::of_cost(cost))
    }

    fn remaining(&self, millis: u64, client: u128) -> u64 {
        self.check(millis, client, 0).unwrap().remaining
    }
}

fn bucket() -> TestNode {
    TestNode::new(Algorithm::TokenBucket, Quota::per_second(100))
}

fn window() -> TestNode {
    TestNode::new(Algorithm::FixedWindow, Quota::per_minute(100))
}

#[test]
fn new_node_denies_until_its_share_starts_and_then_has_no_tokens() {
    let mut node = bucket();
    assert!(node.check(0, 1, 1).is_err(), "no heartbeat was answered yet");
    node.heartbeats(0..=4, 2, 7);
    let early = node.check(1_000, 1, 1).unwrap();
    assert_eq!((early.limit, early.remaining), (50, 0));
    assert_eq!(early.retry_after(), Some(Span::from_millis(3_050)));
    assert_eq!(node.remaining(4_050, 1), 0);
    assert_eq!(node.remaining(4_150, 1), 5, "50 per second");
    assert_eq!(node.remaining(7_000, 1), 50);
    node.heartbeats(5..=59, 2, 7);
    let mut node = TestNode { limit: window().limit, ..node };
    // The test starts 40 s into a minute: the first window ends at 20 s.
    assert_eq!(node.remaining(19_000, 1), 0, "the usage of this window on other nodes is unknown");
    assert_eq!(node.remaining(20_000, 1), 50);
    node.membership.leave();
    assert!(node.check(21_000, 1, 1).is_err());
}

#[test]
fn growing_share_adds_capacity_and_no_tokens() {
    for was_checked in [true, false] {
        let mut node = bucket();
        node.heartbeats(0..=9, 4, 7);
        if was_checked {
            assert_eq!(node.remaining(9_000, 1), 25);
            assert!(node.check(9_000, 1, 5).unwrap().is_allowed());
        }
        node.heartbeat(10_000, 1, 7);
        assert_eq!(node.remaining(10_000, 1), 25, "the other nodes may have spent their tokens");
        assert_eq!(node.remaining(10_500, 1), 75);
        assert_eq!(node.remaining(10_750, 1), 100);

        let mut node = window();
        node.heartbeats(0..=9, 4, 7);
        node.heartbeat(10_000, 4, 7);
        node.heartbeats(11..=19, 4, 7);
        assert_eq!(node.remaining(20_001, 1), 25);
        if was_checked {
            assert!(node.check(20_001, 1, 5).unwrap().is_allowed());
        }
        node.heartbeat(21_000, 1, 7);
        assert_eq!(node.remaining(21_000, 1), if was_checked { 20 } else { 25 });
        node.heartbeats(22..=79, 1, 7);
        assert_eq!(node.remaining(79_999, 1), if was_checked { 20 } else { 25 });
        assert_eq!(node.remaining(80_000, 1), 100);
    }
}

#[test]
fn share_that_shrinks_and_grows_between_two_checks_adds_no_tokens() {
    let mut node = bucket();
    node.heartbeats(0..=9, 1, 7);
    assert_eq!(node.remaining(9_900, 1), 100);
    node.heartbeat(10_000, 50, 7);
    node.heartbeat(10_100, 1, 7);
    assert_eq!(node.remaining(10_100, 1), 2, "the capacity was 2 in between");
    assert_eq!(node.remaining(10_100, 2), 2);
}

#[test]
fn bucket_is_empty_after_a_gap_and_a_window_keeps_its_tokens() {
    let mut node = bucket();
    node.heartbeats(0..=9, 2, 7);
    assert_eq!(node.remaining(9_900, 1), 50);
    node.heartbeats(20..=25, 2, 8);
    assert!(node.check(21_000, 1, 1).is_err());
    assert_eq!(node.remaining(24_050, 1), 0);

    let mut node = window();
    node.heartbeats(0..=25, 2, 7);
    assert!(node.check(25_000, 1, 20).unwrap().is_allowed());
    // The share expired at 28.95 s; the window ends at 80 s.
    node.heartbeats(40..=75, 2, 8);
    assert_eq!(node.remaining(44_050, 1), 30, "no other node had these tokens");
    assert_eq!(node.remaining(44_050, 2), 50);
    node.heartbeats(90..=99, 2, 9);
    assert_eq!(node.remaining(94_050, 1), 0, "other nodes may have used all tokens of this window");
    assert_eq!(node.remaining(94_050, 2), 0);
}

#[test]
fn changed_limit_keeps_the_remaining_tokens() {
    let mut node = bucket();
    node.heartbeats(0..=9, 2, 7);
    assert!(node.check(9_000, 1, 40).unwrap().is_allowed());
    node.limit = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_second(1_000)).unwrap());
    assert_eq!(node.remaining(9_000, 1), 10);
    assert_eq!(node.remaining(9_000, 2), 500);
}

#[test]
fn refunded_tokens_can_be_spent_again_and_are_refunded_once() {
    let mut node = window();
    node.heartbeats(0..=25, 2, 7);
    let (_, refund) = node.charge(25_000, 1, 20).unwrap();
    let refund = refund.unwrap();
    node.split.refund(Some(&node.membership_view(25_001)), &refund);
    assert_eq!(node.remaining(25_002, 1), 50);
    node.split.refund(Some(&node.membership_view(25_003)), &refund);
    assert_eq!(node.remaining(25_004, 1), 50);
    // Without a refund token, the refund has the limit of the rule.
    assert!(node.check(25_005, 1, 20).unwrap().is_allowed());
    let refund = Refund { limit: Arc::clone(&node.limit), cost: 5, refund_token: None, ..refund };
    node.split.refund(Some(&node.membership_view(25_006)), &refund);
    assert_eq!(node.remaining(25_007, 1), 35);
}

#[test]
fn forgotten_client_starts_like_a_new_one() {
    let mut node = window();
    node.heartbeats(0..=25, 2, 7);
    assert!(node.check(25_000, 1, 50).unwrap().is_allowed());
    assert!(!node.check(25_000, 1, 1).unwrap().is_allowed());
    node.split.reset(Key::from_u128(1));
    assert_eq!(node.remaining(25_001, 1), 50);
}

#[test]
fn share_without_tokens_denies() {
    let mut node = TestNode::new(Algorithm::TokenBucket, Quota::per_second(3));
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
fn only_unspent_clients_are_evicted() {
    let mut node = bucket();
    node.heartbeats(0..=9, 2, 7);
    // The shard depends on the last byte, so all keys are in one shard.
    let key = |number: u128| number << 8;
    for number in 0..10_000 {
        let now = 9_000 + u64::try_from(number).unwrap() / 4;
        if number % 1_000 == 0 {
            node.heartbeat(now, 2, 7);
        }
        assert!(node.check(now, key(number), 1).unwrap().is_allowed());
    }
    let kept = node.split.shards.shard(Key::from_u128(0)).read().clients.len();
    assert!(kept < 1_000, "{kept} clients are kept, 80 of them have spent tokens");
}

#[test]
fn new_clients_of_a_full_shard_share_buckets_and_no_client_is_evicted() {
    let mut node = window();
    node.heartbeats(0..=25, 2, 7);
    let key = |number: u128| number << 8;
    let max = u128::try_from(MAX_CLIENTS_PER_SHARD).unwrap();
    for number in 0..max {
        assert!(node.check(25_000, key(number), 50).unwrap().is_allowed());
    }
    let mut admitted = 0;
    for number in max..2 * max {
        admitted += u64::from(node.check(25_000, key(number), 1).unwrap().is_allowed());
    }
    let shared = 50 * MemoryStore::OVERFLOW_BUCKETS;
    assert!(admitted <= shared, "{admitted} of {shared}");
    assert!(!node.check(25_000, key(0), 1).unwrap().is_allowed());
}
