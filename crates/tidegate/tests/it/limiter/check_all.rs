//! Several checks that are charged all or none.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tidegate::block::{BlockAction, BlockOrigin, Entry, Reason};
use tidegate::store::RuleIndex;
use tidegate::{
    Algorithm, CheckRequest, CheckTarget, Decision, DecisionStatus, Limit, Limiter, ManualClock,
    Quota, Request, Rule, RuleSet, Span,
};

use super::store_failure::limiter_with_failing_keys;
use super::{limiter, remaining, request};

/// Returns a check of every matching rule.
fn check_of_all_rules<'a, 'q>(request: &'a Request<'q>) -> CheckRequest<'a, 'q> {
    CheckRequest { request, target: CheckTarget::AllMatching }
}

fn statuses(decisions: &[Decision]) -> Vec<DecisionStatus> {
    decisions.iter().map(Decision::status).collect()
}

const CALLER_AND_CALLEE: &str = "
rules:
  - {name: caller, match: {caller: '*'}, per: [caller], limit: 5 per minute}
  - {name: callee, match: {callee: '*'}, per: [callee], limit: 2 per minute}
";

#[tokio::test]
async fn one_denied_check_charges_no_check() {
    let time = ManualClock::default();
    let limiter = limiter(&time, CALLER_AND_CALLEE);
    let (alice, orders) = (request(&[("caller", "alice")]), request(&[("callee", "orders")]));
    let both = [check_of_all_rules(&alice), check_of_all_rules(&orders)];
    for expected in [1, 0] {
        let decisions = limiter.check_all(&both).await;
        assert_eq!(statuses(&decisions), [DecisionStatus::Allow, DecisionStatus::Allow]);
        assert_eq!(remaining(&decisions[1]), [("callee", expected)]);
    }
    for _ in 0..9 {
        let decisions = limiter.check_all(&both).await;
        assert_eq!(statuses(&decisions), [DecisionStatus::Allow, DecisionStatus::Deny]);
        assert_eq!(remaining(&decisions[0]), [("caller", 3)], "the check fits, and is not charged");
    }
}

#[tokio::test]
async fn checks_of_one_bucket_add_up() {
    let time = ManualClock::default();
    let limiter = limiter(&time, CALLER_AND_CALLEE);
    let alice = request(&[("caller", "alice")]).cost(3);
    let decisions =
        limiter.check_all(&[check_of_all_rules(&alice), check_of_all_rules(&alice)]).await;
    assert_eq!(statuses(&decisions), [DecisionStatus::Allow, DecisionStatus::Deny]);
    let two = request(&[("caller", "alice")]).cost(2);
    let decisions =
        limiter.check_all(&[check_of_all_rules(&alice), check_of_all_rules(&two)]).await;
    assert_eq!(statuses(&decisions), [DecisionStatus::Allow, DecisionStatus::Allow]);
    assert_eq!(
        (remaining(&decisions[0]), remaining(&decisions[1])),
        (vec![("caller", 2)], vec![("caller", 0)])
    );
}

#[tokio::test]
async fn denied_peek_prevents_charges_of_the_same_call() {
    let time = ManualClock::default();
    let limiter = limiter(&time, CALLER_AND_CALLEE);
    let (alice, peek) = (request(&[("caller", "alice")]), request(&[("callee", "orders")]).cost(0));
    let decisions =
        limiter.check_all(&[check_of_all_rules(&alice), check_of_all_rules(&peek)]).await;
    assert_eq!(
        (remaining(&decisions[0]), remaining(&decisions[1])),
        (vec![("caller", 4)], vec![("callee", 2)])
    );
    assert!(limiter.check(&request(&[("callee", "orders")]).cost(2)).await.is_allowed());
    let decisions =
        limiter.check_all(&[check_of_all_rules(&alice), check_of_all_rules(&peek)]).await;
    assert_eq!(statuses(&decisions), [DecisionStatus::Allow, DecisionStatus::Deny]);
    assert_eq!(remaining(&decisions[0]), [("caller", 4)]);
    // A check that is not charged still gets the outcome for its cost.
    let five = request(&[("caller", "alice")]).cost(5);
    let decisions =
        limiter.check_all(&[check_of_all_rules(&five), check_of_all_rules(&peek)]).await;
    assert_eq!(statuses(&decisions), [DecisionStatus::Deny, DecisionStatus::Deny]);
}

#[tokio::test]
async fn blocked_client_prevents_charges_of_the_same_call() {
    let time = ManualClock::default();
    let limiter = limiter(&time, CALLER_AND_CALLEE);
    let (alice, orders) = (request(&[("caller", "alice")]), request(&[("callee", "orders")]));
    let subject = limiter.blocks().client("caller", "alice").unwrap();
    let (until, added) = (time.now() + Span::MINUTE, time.now());
    let entry = Entry {
        subject,
        action: BlockAction::Block,
        until,
        reason: Reason::default(),
        origin: BlockOrigin::Operator,
        added,
    };
    limiter.blocks().add(entry, time.now()).unwrap();
    let decisions =
        limiter.check_all(&[check_of_all_rules(&alice), check_of_all_rules(&orders)]).await;
    assert_eq!(decisions[0].block().unwrap().retry_after, Span::MINUTE);
    assert_eq!(remaining(&decisions[1]), [("callee", 2)]);
    assert!(decisions[1].is_allowed());
}

#[tokio::test]
async fn check_of_a_rule_in_mode_off_is_allowed_without_a_limit() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: off, limit: 0 per minute, mode: off}
  - {name: trial, limit: 1 per minute, mode: shadow}
  - {name: on, limit: 3 per minute}
",
    );
    let anyone = Request::new();
    let check_of_rule = |rule_index| CheckRequest {
        request: &anyone,
        target: CheckTarget::Rule(RuleIndex(rule_index)),
    };
    for expected in [2, 1, 0] {
        let decisions =
            limiter.check_all(&[check_of_rule(0), check_of_rule(1), check_of_rule(2)]).await;
        assert!(decisions.iter().all(Decision::is_allowed));
        assert!(decisions[0].rule_outcomes().is_empty());
        assert_eq!(remaining(&decisions[1]), [("trial", 0)]);
        assert_eq!(remaining(&decisions[2]), [("on", expected)]);
    }
}

/// Returns a limiter with a rule that applies only to checks that name it.
fn with_throttle(time: &ManualClock) -> Limiter {
    let rule = Rule::new("cl.throttle", Algorithm::TokenBucket, Quota::per_second(1)).unwrap();
    let rules = RuleSet::parse("rules.yaml", CALLER_AND_CALLEE).unwrap();
    let rules = rules.with_named(vec![rule.with_per("key").unwrap()]).unwrap();
    Limiter::builder().rules(rules).clock(time.clock()).build()
}

#[tokio::test]
async fn limit_of_the_caller_replaces_that_of_the_rule_and_a_change_keeps_the_used_fraction() {
    let time = ManualClock::default();
    let limiter = with_throttle(&time);
    let limit =
        |amount| Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_minute(amount)).unwrap());
    let (small, large, key) = (limit(10), limit(100), request(&[("key", "k")]).cost(5));
    let check_of_rule = |limit| CheckRequest {
        request: &key,
        target: CheckTarget::RuleWithLimit(RuleIndex(2), limit),
    };
    let decisions = limiter.check_all(&[check_of_rule(&small)]).await;
    assert_eq!(remaining(&decisions[0]), [("cl.throttle", 5)]);
    assert_eq!(decisions[0].rule_outcomes()[0].limit, small);
    let decisions = limiter.check_all(&[check_of_rule(&large)]).await;
    assert_eq!(remaining(&decisions[0]), [("cl.throttle", 45)]);
    // Of two limits for one bucket the first one is used.
    let decisions = limiter.check_all(&[check_of_rule(&large), check_of_rule(&small)]).await;
    assert_eq!(
        (remaining(&decisions[0]), remaining(&decisions[1])),
        (vec![("cl.throttle", 40)], vec![("cl.throttle", 35)])
    );
    assert!(limiter.check(&key).await.rule_outcomes().is_empty(), "no rule matches the request");
}

#[tokio::test]
async fn store_failure_of_a_denying_rule_refunds_the_other_checks() {
    let time = ManualClock::default();
    let rules = "
rules:
  - {name: gone, match: {to: gone}, limit: 9 per minute, on_store_failure: deny}
  - {name: there, match: {to: there}, limit: 2 per minute}
  - {name: trial, match: {to: there}, limit: 5 per minute, mode: shadow}
";
    let limiter = limiter_with_failing_keys(&time, rules, |limit| limit.capacity() == 9);
    let (gone, there) = (request(&[("to", "gone")]), request(&[("to", "there")]));
    for attempts in 1..5 {
        let decisions =
            limiter.check_all(&[check_of_all_rules(&there), check_of_all_rules(&gone)]).await;
        assert_eq!(statuses(&decisions), [DecisionStatus::Allow, DecisionStatus::Unavailable]);
        assert_eq!(limiter.store().refunded.load(Ordering::Relaxed), attempts);
        assert_eq!(remaining(&decisions[0]), [("there", 1), ("trial", 5 - attempts as u64)]);
    }
    assert_eq!(limiter.failures().next().unwrap().1.closed, 4);
}

#[tokio::test]
async fn only_denied_checks_count_towards_a_penalty() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: user, match: {user: '*'}, per: [user], limit: 9 per minute, penalty: {after: 2, within: 1m, block: 1h}}
  - {name: app, match: {app: '*'}, per: [app], limit: 1 per minute, penalty: {after: 2, within: 1m, block: 1h}}
",
    );
    let (user, app) = (request(&[("user", "u")]), request(&[("app", "a")]));
    for _ in 0..3 {
        limiter.check_all(&[check_of_all_rules(&user), check_of_all_rules(&app)]).await;
    }
    let decisions = limiter.check_all(&[check_of_all_rules(&user), check_of_all_rules(&app)]).await;
    assert!(decisions[0].is_allowed() && decisions[0].block().is_none());
    assert!(decisions[1].block().is_some());
}

/// A reference model: usage per rule and client.
#[derive(Default)]
struct ReferenceUsage(HashMap<(usize, u8), u64>);

const LIMITS: [u64; 3] = [3, 7, 20];

impl ReferenceUsage {
    /// Returns whether each check (rule, client, cost) fits after the earlier ones. Charges all of them if all fit.
    fn check(&mut self, checks: &[(usize, u8, u64)]) -> Vec<bool> {
        let peek = checks.iter().filter(|(.., cost)| *cost == 0);
        let has_denied_peek = peek.clone().any(|(rule, client, _)| {
            self.0.get(&(*rule, *client)).copied().unwrap_or(0) + 1 > LIMITS[*rule]
        });
        let mut after: HashMap<(usize, u8), u64> = self.0.clone();
        let fits: Vec<bool> = checks
            .iter()
            .map(|(rule, client, cost)| {
                let spent = match cost {
                    0 => self.0.get(&(*rule, *client)).copied().unwrap_or(0) + 1,
                    _ => {
                        let spent = after.entry((*rule, *client)).or_default();
                        *spent += cost;
                        *spent
                    }
                };
                spent <= LIMITS[*rule]
            })
            .collect();
        if !has_denied_peek && fits.iter().all(|fits| *fits) {
            self.0 = after;
        }
        fits
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_checks_are_charged_all_or_none(
        calls in prop::collection::vec(prop::collection::vec((0usize..3, 0u8..3, 0u64..5), 1..5), 1..30),
    ) {
        let rules = LIMITS.iter().enumerate().map(|(number, amount)| {
            let quota = Quota::per(*amount, Quota::MAX_WINDOW);
            let rule = Rule::new(&format!("r{number}"), Algorithm::FixedWindow, quota);
            rule.unwrap().with_per("client").unwrap()
        });
        let rules = RuleSet::default().with_named(rules.collect()).unwrap();
        let time = ManualClock::default();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).build();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut model = ReferenceUsage::default();
        for call in calls {
            let requests: Vec<Request<'static>> = call
                .iter()
                .map(|(_, client, cost)| {
                    Request::new().with("client", client.to_string()).unwrap().cost(*cost)
                })
                .collect();
            let checks: Vec<CheckRequest<'_, '_>> = requests
                .iter()
                .zip(&call)
                .map(|(request, (rule, ..))| CheckRequest { request, target: CheckTarget::Rule(RuleIndex(*rule)) })
                .collect();
            let decisions = runtime.block_on(limiter.check_all(&checks));
            let allowed: Vec<bool> = decisions.iter().map(Decision::is_allowed).collect();
            prop_assert_eq!(allowed, model.check(&call), "{:?}", call);
        }
    }
}
