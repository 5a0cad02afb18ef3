//! Concurrency slots and their guards, for every way in which a request can end.

use proptest::prelude::*;
use tidegate::store::Refund;
use tidegate::{
    CheckRequest, CheckTarget, Limiter, ManualClock, Receipt, Request, RuleSet, SlotGuard, Span,
};

use super::{limiter, request};

const RULES: &str = "
rules:
  - {name: exports, per: [user], limit: 3 in flight, hold: 30s}
  - {name: api, per: [user], limit: 100 per hour}
";

/// Returns the free slots and the remaining requests of a client.
async fn remaining(limiter: &Limiter, alice: &Request<'_>) -> (u64, u64) {
    let decision = limiter.peek(alice).await;
    let remaining_of = |rule: &str| {
        let rule_outcome =
            decision.rule_outcomes().iter().find(|rule_outcome| &*rule_outcome.rule == rule);
        rule_outcome.unwrap().outcome.remaining
    };
    (remaining_of("exports"), remaining_of("api"))
}

/// Runs all tasks that are ready.
async fn run_ready_tasks() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn dropped_guard_releases_only_its_slot() {
    let time = ManualClock::default();
    let limiter = limiter(&time, RULES);
    let alice = request(&[("user", "alice")]);
    let mut held: Vec<SlotGuard> = Vec::new();
    for _ in 0..3 {
        let (decision, slot) = limiter.acquire_slots(&alice).await;
        assert!(decision.is_allowed() && !slot.is_empty());
        held.push(slot);
    }
    let (denied, no_slot) = limiter.acquire_slots(&alice).await;
    assert_eq!((denied.is_allowed(), no_slot.is_empty()), (false, true));
    assert_eq!(
        denied.retry_after(),
        Some(Span::from_secs(30)),
        "until the hold of the first slot ends"
    );
    drop(no_slot);
    assert_eq!(remaining(&limiter, &alice).await, (0, 97), "a denied request consumes nothing");
    held.pop();
    assert_eq!(remaining(&limiter, &alice).await, (1, 97), "a rate limit is not refunded");
    assert_eq!(held.pop().unwrap().release().await, Ok(1));
    drop(held);
    assert_eq!(remaining(&limiter, &alice).await, (3, 97));
}

#[tokio::test]
async fn guard_renews_its_slot_and_a_slot_without_renewal_expires() {
    let time = ManualClock::default();
    let limiter = limiter(&time, RULES);
    let alice = request(&[("user", "alice")]);
    let (_, guarded) = limiter.acquire_slots(&alice).await;
    let (_, receipt) = limiter.check_with_receipt(&alice).await;
    assert!(receipt.has_slots());
    run_ready_tasks().await;
    for _ in 0..4 {
        assert_eq!(remaining(&limiter, &alice).await.0, 1);
        time.advance(Span::from_secs(10));
        run_ready_tasks().await;
        if time.now().as_micros() % 30_000_000 == 0 {
            break;
        }
    }
    time.advance(Span::from_secs(10));
    run_ready_tasks().await;
    assert_eq!(remaining(&limiter, &alice).await.0, 2, "one slot was renewed, the other expired");
    assert_eq!(limiter.release(receipt.clone()).await, Ok(0));
    assert_eq!(limiter.renew(&receipt).await, Ok(0), "a released slot is not renewed");
    assert_eq!(guarded.release().await, Ok(1));
    assert_eq!(remaining(&limiter, &alice).await.0, 3);
}

#[tokio::test]
async fn stored_slots_are_renewed_and_released_under_other_rules() {
    let time = ManualClock::default();
    let limiter = limiter(&time, RULES);
    let alice = request(&[("user", "alice")]);
    let check = CheckRequest { request: &alice, target: CheckTarget::AllMatching };
    let (decision, receipt) = limiter.check_with_receipt(check).await;
    assert!(decision.is_allowed());
    let stored_slots: Vec<Refund> = receipt.slots().cloned().collect();
    assert_eq!(stored_slots.len(), 1, "a rate limit has no slot");
    let other = limiter.with_rules(RuleSet::default());
    let receipt_from_stored = || stored_slots.iter().cloned().collect::<Receipt>();
    time.advance(Span::from_secs(20));
    assert_eq!(other.renew(&receipt_from_stored()).await, Ok(1));
    time.advance(Span::from_secs(20));
    assert_eq!(remaining(&limiter, &alice).await.0, 2);
    assert_eq!(other.release(receipt_from_stored()).await, Ok(1));
    assert_eq!(other.release(receipt_from_stored()).await, Ok(0));
    assert_eq!(remaining(&limiter, &alice).await.0, 3);
}

#[tokio::test]
async fn expired_slot_is_counted_again_after_renewal() {
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
    assert_eq!(remaining(&limiter, &alice).await.0, 3);
}

#[derive(Clone, Debug)]
enum SlotStep {
    /// The store loses all slots.
    LoseAll,
    AcquireGuard,
    AcquireReceipt,
    Drop(usize),
    Release(usize),
    Refund(usize),
    Renew(usize),
    Abandon(usize),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<SlotStep>> {
    let step = prop_oneof![
        1 => Just(SlotStep::LoseAll),
        4 => Just(SlotStep::AcquireGuard),
        4 => Just(SlotStep::AcquireReceipt),
        2 => any::<usize>().prop_map(SlotStep::Drop),
        2 => any::<usize>().prop_map(SlotStep::Release),
        1 => any::<usize>().prop_map(SlotStep::Refund),
        2 => any::<usize>().prop_map(SlotStep::Renew),
        1 => any::<usize>().prop_map(SlotStep::Abandon),
        3 => (0u64..20).prop_map(SlotStep::Advance),
    ];
    prop::collection::vec(step, 1..60)
}

/// Removes and returns an item, or `None` if there is none.
fn take_at<T>(items: &mut Vec<T>, number: usize) -> Option<T> {
    number.checked_rem(items.len()).map(|index| items.swap_remove(index))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guards_are_counted_until_they_end_even_after_data_loss(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let free_at_end = runtime.block_on(async {
            let time = ManualClock::default();
            let limiter = limiter(&time, "rules: [{name: exports, per: [user], limit: 3 in flight, hold: 30s}]");
            let alice = request(&[("user", "alice")]);
            // Each guard with a flag: whether the store counts it. It does not between a loss and the next renewal.
            let (mut guards, mut receipts) = (Vec::<(SlotGuard, bool)>::new(), Vec::<Receipt>::new());
            let count_tracked = |guards: &[(SlotGuard, bool)]| guards.iter().filter(|(_, is_tracked)| *is_tracked).count() as u64;
            for step in steps {
                run_ready_tasks().await;
                match step {
                    SlotStep::LoseAll => {
                        limiter.reset("exports", &alice).await.unwrap();
                        guards.iter_mut().for_each(|(_, is_tracked)| *is_tracked = false);
                        // Advance the clock, because slot ids would repeat within the same instant.
                        time.advance(Span::from_millis(1));
                    }
                    SlotStep::AcquireGuard => {
                        let (decision, held) = limiter.acquire_slots(&alice).await;
                        assert_eq!(decision.is_allowed(), !held.is_empty());
                        guards.extend(decision.is_allowed().then_some((held, true)));
                        assert!(!decision.is_allowed() || count_tracked(&guards) <= 3, "admitted more than the limit");
                    }
                    SlotStep::AcquireReceipt => {
                        let (decision, receipt) = limiter.check_with_receipt(&alice).await;
                        receipts.extend(decision.is_allowed().then_some(receipt));
                    }
                    SlotStep::Drop(which) => drop(take_at(&mut guards, which)),
                    SlotStep::Release(which) => {
                        if let Some(receipt) = take_at(&mut receipts, which) {
                            limiter.release(receipt.clone()).await.unwrap();
                            assert_eq!(limiter.release(receipt).await, Ok(0), "a second release frees nothing");
                        }
                    }
                    SlotStep::Refund(which) => {
                        if let Some(receipt) = take_at(&mut receipts, which) {
                            limiter.refund_detached(receipt);
                        }
                    }
                    SlotStep::Renew(which) => {
                        if let Some(index) = which.checked_rem(receipts.len()) {
                            limiter.renew(&receipts[index]).await.unwrap();
                        }
                    }
                    // A crashed holder: its slot is neither released nor renewed.
                    SlotStep::Abandon(which) => drop(take_at(&mut receipts, which)),
                    SlotStep::Advance(seconds) => {
                        // Advance in steps shorter than the renewal interval of guards.
                        for _ in 0..seconds.div_ceil(5) {
                            time.advance(Span::from_secs(5));
                            run_ready_tasks().await;
                        }
                        // After a third of the hold each guard was renewed.
                        if seconds > 5 {
                            guards.iter_mut().for_each(|(_, is_tracked)| *is_tracked = true);
                        }
                    }
                }
                let free = limiter.peek(&alice).await.rule_outcomes()[0].outcome.remaining;
                let tracked = count_tracked(&guards);
                assert!(free == 0 || tracked <= 3 - free, "{tracked} guards, {free} free");
            }
            drop(guards);
            time.advance(Span::from_secs(30));
            run_ready_tasks().await;
            limiter.peek(&alice).await.rule_outcomes()[0].outcome.remaining
        });
        prop_assert_eq!(free_at_end, 3);
    }
}
