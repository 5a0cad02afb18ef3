//! Slots in flight, whichever way a request ends.

use proptest::prelude::*;
use tidegate::{
    CheckRequest, CheckTarget, Limiter, ManualClock, Receipt, Refund, Request, RuleSet, SlotGuard,
    Span,
};

use super::{limiter, request};

const RULES: &str = "
rules:
  - {name: exports, per: [user], limit: 3 in flight, hold: 30s}
  - {name: api, per: [user], limit: 100 per hour}
";

/// How many more exports alice may have in flight, and how many more requests she may send.
async fn left(limiter: &Limiter, alice: &Request<'_>) -> (u64, u64) {
    let decision = limiter.peek(alice).await;
    let of = |rule: &str| {
        let policy = decision.rule_outcomes().iter().find(|policy| &*policy.rule == rule);
        policy.unwrap().outcome.remaining
    };
    (of("exports"), of("api"))
}

/// Lets whatever was woken run.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_guard_that_is_dropped_releases_its_slot_and_no_more() {
    let time = ManualClock::default();
    let limiter = limiter(&time, RULES);
    let alice = request(&[("user", "alice")]);
    let mut held: Vec<SlotGuard> = Vec::new();
    for _ in 0..3 {
        let (decision, slot) = limiter.acquire_slots(&alice).await;
        assert!(decision.is_allowed() && !slot.is_empty());
        held.push(slot);
    }
    let (denied, nothing) = limiter.acquire_slots(&alice).await;
    assert_eq!((denied.is_allowed(), nothing.is_empty()), (false, true));
    assert_eq!(denied.retry_after(), Some(Span::from_secs(30)), "when the first hold ends");
    drop(nothing);
    assert_eq!(left(&limiter, &alice).await, (0, 97), "a denied request consumes nothing");
    held.pop();
    assert_eq!(left(&limiter, &alice).await, (1, 97), "what was spent per time stays spent");
    assert_eq!(held.pop().unwrap().release().await, Ok(1));
    drop(held);
    assert_eq!(left(&limiter, &alice).await, (3, 97));
}

#[tokio::test]
async fn a_guard_renews_its_slot_and_a_slot_that_is_not_renewed_expires() {
    let time = ManualClock::default();
    let limiter = limiter(&time, RULES);
    let alice = request(&[("user", "alice")]);
    let (_, guarded) = limiter.acquire_slots(&alice).await;
    let (_, receipt) = limiter.check_with_receipt(&alice).await;
    assert!(receipt.has_slots());
    settle().await;
    for _ in 0..4 {
        assert_eq!(left(&limiter, &alice).await.0, 1);
        time.advance(Span::from_secs(10));
        settle().await;
        if time.now().as_micros() % 30_000_000 == 0 {
            break;
        }
    }
    time.advance(Span::from_secs(10));
    settle().await;
    assert_eq!(left(&limiter, &alice).await.0, 2, "one was renewed, the other is lost");
    assert_eq!(limiter.release(receipt.clone()).await, Ok(0));
    assert_eq!(limiter.renew(&receipt).await, Ok(0), "what was released stays released");
    assert_eq!(guarded.release().await, Ok(1));
    assert_eq!(left(&limiter, &alice).await.0, 3);
}

#[tokio::test]
async fn slots_that_were_kept_elsewhere_are_renewed_and_released_by_other_rules_too() {
    let time = ManualClock::default();
    let limiter = limiter(&time, RULES);
    let alice = request(&[("user", "alice")]);
    let claim = CheckRequest { request: &alice, target: CheckTarget::AllMatching };
    let (decision, receipt) = limiter.check_with_receipt(claim).await;
    assert!(decision.is_allowed());
    let kept: Vec<Refund> = receipt.slots().cloned().collect();
    assert_eq!(kept.len(), 1, "what is spent per time is no slot");
    let other = limiter.with_rules(RuleSet::default());
    let again = || kept.iter().cloned().collect::<Receipt>();
    time.advance(Span::from_secs(20));
    assert_eq!(other.renew(&again()).await, Ok(1));
    time.advance(Span::from_secs(20));
    assert_eq!(left(&limiter, &alice).await.0, 2);
    assert_eq!(other.release(again()).await, Ok(1));
    assert_eq!(other.release(again()).await, Ok(0));
    assert_eq!(left(&limiter, &alice).await.0, 3);
}

#[tokio::test]
async fn a_slot_that_expired_counts_again_once_it_is_renewed() {
    let time = ManualClock::default();
    let limiter = limiter(&time, RULES);
    let alice = request(&[("user", "alice")]);
    let mut receipts = Vec::new();
    for outage in 1..=3 {
        loop {
            let (decision, receipt) = limiter.check_with_receipt(&alice).await;
            if !decision.is_allowed() {
                break;
            }
            receipts.push(receipt);
        }
        time.advance(Span::from_secs(40));
        for receipt in &receipts {
            assert_eq!(limiter.renew(receipt).await, Ok(1), "outage {outage}");
        }
    }
    assert_eq!(receipts.len(), 3, "outages do not add up");
    for receipt in receipts {
        assert_eq!(limiter.release(receipt.clone()).await, Ok(1));
        assert_eq!(limiter.renew(&receipt).await, Ok(0));
    }
    assert_eq!(left(&limiter, &alice).await.0, 3);
}

#[derive(Clone, Debug)]
enum Step {
    /// The store loses all slots.
    Lose,
    Hold,
    Take,
    Drop(usize),
    Release(usize),
    Refund(usize),
    Renew(usize),
    Abandon(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => Just(Step::Lose),
        4 => Just(Step::Hold),
        4 => Just(Step::Take),
        2 => any::<usize>().prop_map(Step::Drop),
        2 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::Refund),
        2 => any::<usize>().prop_map(Step::Renew),
        1 => any::<usize>().prop_map(Step::Abandon),
        3 => (0u64..20).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

/// The n-th of some, taken out.
fn one_of<T>(of: &mut Vec<T>, number: usize) -> Option<T> {
    number.checked_rem(of.len()).map(|place| of.swap_remove(place))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guards_are_counted_until_they_end_also_after_the_store_lost_them(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let afterwards = runtime.block_on(async {
            let time = ManualClock::default();
            let limiter = limiter(&time, "rules: [{name: exports, per: [user], limit: 3 in flight, hold: 30s}]");
            let alice = request(&[("user", "alice")]);
            // Beside each guard whether the store counts it: not between a loss and the next renewal.
            let (mut guards, mut receipts) = (Vec::<(SlotGuard, bool)>::new(), Vec::<Receipt>::new());
            let counted = |guards: &[(SlotGuard, bool)]| guards.iter().filter(|(_, counts)| *counts).count() as u64;
            for step in steps {
                settle().await;
                match step {
                    Step::Lose => {
                        limiter.forget("exports", &alice).await.unwrap();
                        guards.iter_mut().for_each(|(_, counts)| *counts = false);
                        // At the same instant the same ids would be given out again.
                        time.advance(Span::from_millis(1));
                    }
                    Step::Hold => {
                        let (decision, held) = limiter.acquire_slots(&alice).await;
                        assert_eq!(decision.is_allowed(), !held.is_empty());
                        guards.extend(decision.is_allowed().then_some((held, true)));
                        assert!(!decision.is_allowed() || counted(&guards) <= 3, "one too many was admitted");
                    }
                    Step::Take => {
                        let (decision, receipt) = limiter.check_with_receipt(&alice).await;
                        receipts.extend(decision.is_allowed().then_some(receipt));
                    }
                    Step::Drop(which) => drop(one_of(&mut guards, which)),
                    Step::Release(which) => {
                        if let Some(receipt) = one_of(&mut receipts, which) {
                            limiter.release(receipt.clone()).await.unwrap();
                            assert_eq!(limiter.release(receipt).await, Ok(0), "once is all");
                        }
                    }
                    Step::Refund(which) => {
                        if let Some(receipt) = one_of(&mut receipts, which) {
                            limiter.refund_detached(receipt);
                        }
                    }
                    Step::Renew(which) => {
                        if let Some(place) = which.checked_rem(receipts.len()) {
                            limiter.renew(&receipts[place]).await.unwrap();
                        }
                    }
                    // A holder that dies: nobody will release or renew.
                    Step::Abandon(which) => drop(one_of(&mut receipts, which)),
                    Step::Pass(seconds) => {
                        // No faster than guards are renewed.
                        for _ in 0..seconds.div_ceil(5) {
                            time.advance(Span::from_secs(5));
                            settle().await;
                        }
                        // A third of the hold: each guard was renewed.
                        if seconds > 5 {
                            guards.iter_mut().for_each(|(_, counts)| *counts = true);
                        }
                    }
                }
                let free = limiter.peek(&alice).await.rule_outcomes()[0].outcome.remaining;
                let counted = counted(&guards);
                assert!(free == 0 || counted <= 3 - free, "{counted} guards, {free} free");
            }
            drop(guards);
            time.advance(Span::from_secs(30));
            settle().await;
            limiter.peek(&alice).await.rule_outcomes()[0].outcome.remaining
        });
        prop_assert_eq!(afterwards, 3);
    }
}
