//! Entries of the block list that allow: clients to which no rule applies.

use std::sync::Arc;

use tidegate::block::{BlockAction, BlockList, BlockOrigin, Entry, Reason};
use tidegate::{CheckRequest, CheckTarget, Limiter, ManualClock, Request, RuleSet, Span};

const LOGIN: &str = "{name: login, per: [ip], limit: 2 per minute, algorithm: fixed_window, \
                     penalty: {after: 2x, within: 1m, block: 10m}}";

fn limiter(time: &ManualClock, rule: &str) -> Limiter {
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{rule}]")).unwrap();
    Limiter::builder().rules(rules).clock(time.clock()).build()
}

fn add(blocks: &BlockList, time: &ManualClock, client: &str, action: BlockAction, span: Span) {
    add_by(blocks, time, client, action, BlockOrigin::Operator, span);
}

fn add_by(
    blocks: &BlockList,
    time: &ManualClock,
    client: &str,
    action: BlockAction,
    origin: BlockOrigin,
    span: Span,
) {
    let now = time.clock().now();
    let (attribute, value) = client.split_once('=').unwrap();
    let subject = blocks.client(attribute, value).unwrap();
    let reason = Reason::default();
    blocks
        .add(Entry { subject, action, until: now + span, reason, origin, added: now }, now)
        .unwrap();
}

fn alice() -> Request<'static> {
    Request::new().with("ip", "192.0.2.7").unwrap().with("user", "alice").unwrap()
}

#[tokio::test]
async fn allowed_client_is_neither_counted_nor_denied_nor_penalised() {
    let time = ManualClock::default();
    let limiter = limiter(&time, LOGIN);
    add(limiter.blocks(), &time, "user=alice", BlockAction::Allow, Span::MINUTE);
    for _ in 0..100 {
        let decision = limiter.check(&alice()).await;
        assert!(decision.is_allowed() && decision.is_allow_listed());
        assert!(decision.rule_outcomes().is_empty());
    }
    assert!(limiter.check_rule("login", &alice()).await.unwrap().is_allow_listed());
    assert!(limiter.acquire(&alice()).await.unwrap().is_allow_listed());
    assert!(limiter.admit(&alice(), Span::SECOND).await.0.is_allow_listed());
    // Nothing was counted, so the whole limit is left when the entry ends.
    time.advance(Span::MINUTE);
    for expected in [true, true, false] {
        let decision = limiter.check(&alice()).await;
        assert_eq!((decision.is_allowed(), decision.is_allow_listed()), (expected, false));
    }
    assert!(limiter.blocks().entries(time.clock().now()).is_empty());
}

#[tokio::test]
async fn allowed_client_does_not_prevent_charges_of_the_same_call() {
    let time = ManualClock::default();
    let limiter = limiter(&time, LOGIN);
    add(limiter.blocks(), &time, "user=alice", BlockAction::Allow, Span::MINUTE);
    let (alice, other) = (alice(), Request::new().with("ip", "192.0.2.8").unwrap());
    let check = |request| CheckRequest { request, target: CheckTarget::AllMatching };
    let decisions = limiter.check_all(&[check(&alice), check(&other)]).await;
    assert!(decisions[0].is_allow_listed() && decisions[1].is_allowed());
    assert_eq!(decisions[1].rule_outcomes()[0].outcome.remaining, 1);
    assert_eq!(limiter.peek(&other).await.rule_outcomes()[0].outcome.remaining, 1);
}

#[test]
fn block_of_an_operator_wins_over_an_entry_that_allows_and_that_over_a_penalty() {
    let time = ManualClock::default();
    let list = BlockList::new([7; 32]);
    let penalty = || BlockOrigin::Penalty { rule: "login".into() };
    let action = || list.find(&alice(), time.clock().now()).map(|entry| entry.action);
    add_by(&list, &time, "ip=192.0.2.7", BlockAction::Block, penalty(), Span::HOUR);
    assert_eq!(action(), Some(BlockAction::Block));
    add(&list, &time, "user=alice", BlockAction::Allow, Span::MINUTE);
    assert_eq!(action(), Some(BlockAction::Allow));
    add(&list, &time, "ip=192.0.2.0/24", BlockAction::Block, Span::SECOND);
    assert_eq!(action(), Some(BlockAction::Block));
    time.advance(Span::SECOND);
    assert_eq!(action(), Some(BlockAction::Allow));
    time.advance(Span::MINUTE);
    assert_eq!(action(), Some(BlockAction::Block));
}

#[test]
fn client_has_one_entry_and_a_penalty_does_not_replace_one_that_allows() {
    let time = ManualClock::default();
    let list = BlockList::new([7; 32]);
    let entries = || list.entries(time.clock().now());
    let penalty = || BlockOrigin::Penalty { rule: "login".into() };
    add_by(&list, &time, "ip=192.0.2.7", BlockAction::Block, penalty(), Span::HOUR);
    assert_eq!(list.export(time.clock().now()).len(), 1);
    add(&list, &time, "ip=192.0.2.7", BlockAction::Allow, Span::MINUTE);
    add_by(&list, &time, "ip=192.0.2.7", BlockAction::Block, penalty(), Span::HOUR);
    assert_eq!(entries().len(), 1);
    assert!(entries()[0].allows(time.clock().now()));
    assert_eq!((list.usage().entries, list.usage().allowed), (1, 1));
    assert!(list.export(time.clock().now()).is_empty());
    // The latest change of an operator applies.
    add(&list, &time, "ip=192.0.2.7", BlockAction::Block, Span::MINUTE);
    assert!(entries()[0].block(time.clock().now()).is_some());
    assert_eq!((list.usage().entries, list.usage().allowed), (1, 0));
    add(&list, &time, "ip=192.0.2.7", BlockAction::Allow, Span::MINUTE);
    let subject = list.client("ip", "192.0.2.7").unwrap();
    assert!(list.remove(&subject, time.clock().now()).is_some());
    assert_eq!((list.usage().entries, list.usage().allowed), (0, 0));
}

#[test]
fn export_leaves_out_penalties_inside_an_allowed_network() {
    let time = ManualClock::default();
    let list = BlockList::new([7; 32]);
    let penalty = || BlockOrigin::Penalty { rule: Arc::from("login") };
    for client in ["ip=192.0.2.7", "ip=198.51.100.7"] {
        add_by(&list, &time, client, BlockAction::Block, penalty(), Span::HOUR);
    }
    add(&list, &time, "ip=192.0.2.9", BlockAction::Block, Span::HOUR);
    add(&list, &time, "ip=192.0.2.0/24", BlockAction::Allow, Span::HOUR);
    let lines: Vec<String> =
        list.export(time.clock().now()).iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["192.0.2.9/32", "198.51.100.7/32"]);
}
