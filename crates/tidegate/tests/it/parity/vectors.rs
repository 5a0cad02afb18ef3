//! The test vectors of the core, run through the scripts.

#[path = "../../../../core/tests/vectors/case.rs"]
pub(crate) mod case;

use std::sync::Arc;

use case::{Case, Step, integers};
use tidegate::store::{Charge, ChargeMode, ChargeResult, Key, Refund, Store};
use tidegate::{Outcome, Timestamp};

use super::ParityFixture;

fn assert_outcome(outcome: &Outcome, step: &Step, context: &str) {
    assert_eq!(Some(outcome.is_allowed()), step.allowed, "{context}: allowed");
    assert_eq!(Some(outcome.delay().as_micros()), step.delay, "{context}: delay");
    let wait = match outcome.retry_after() {
        Some(wait) => Some(i64::try_from(wait.as_micros()).unwrap()),
        None if outcome.is_allowed() => None,
        None => Some(-1),
    };
    assert_eq!(wait, step.retry_after, "{context}: retry_after");
    assert_eq!(Some(outcome.remaining), step.remaining, "{context}: remaining");
    let reset_after = outcome.reset_after.as_micros();
    assert_eq!(Some(reset_after), step.reset_after, "{context}: reset_after");
}

fn check_vectors(file: &str) {
    let cases: Vec<Case> = serde_json::from_str(file).unwrap();
    assert!(!cases.is_empty());
    let mut fixture = ParityFixture::new();
    for (number, case) in (1..).zip(cases) {
        fixture.run_case(Key::from_u128(number), &case);
    }
}

impl ParityFixture {
    /// Runs one case through the scripts and through the core.
    fn run_case(&mut self, key: Key, case: &Case) {
        let store = Arc::clone(&self.store);
        let mut limit = Arc::new(case.limit.limit());
        let mut core_state = limit.fresh();
        let mut refundable: Vec<Option<Refund>> = Vec::new();
        for (number, step) in case.steps.iter().enumerate() {
            let context = format!("{}, {}, step {number}", limit.algorithm(), case.name);
            let now = Timestamp::from_micros(step.at);
            self.set_time(now);
            if let Some(numbers) = &step.limit {
                let new = Arc::new(numbers.limit());
                core_state = new.migrate(&limit, &core_state, now);
                // The vectors contain one state. Alternating limits are covered by the random test.
                self.remove_older_limits(key, &limit);
                limit = new;
                // Refunds across a change of limit are covered by the random test.
                refundable.iter_mut().for_each(|refund| *refund = None);
            }
            refundable.push(None);
            if let Some(earlier) = step.refund {
                if let Some(refund) = refundable[earlier].clone() {
                    let refunded = refund.take_back(&limit, &mut core_state, now);
                    let count = self.runtime.block_on(store.refund(&[refund]));
                    assert_eq!(count, Ok(usize::from(refunded)), "{context}: refund");
                }
                refundable[earlier].take_if(|refund| !refund.limit.is_concurrency());
            } else if let Some(earlier) = step.renew {
                if let Some(slots) = &refundable[earlier] {
                    let is_held = slots.renew(&limit, &mut core_state, now);
                    let renewed = self.runtime.block_on(store.renew(std::slice::from_ref(slots)));
                    assert_eq!(renewed, Ok(usize::from(is_held)), "{context}: renewal");
                }
            } else if step.lose.is_some() {
                self.runtime.block_on(store.reset(key)).unwrap();
                core_state = limit.fresh();
            } else {
                let cost = step.cost.unwrap();
                let charge =
                    Charge { key, overflow_key: key, limit: &limit, cost, independent: false };
                let results =
                    self.runtime.block_on(store.charge(&[charge], ChargeMode::of_cost(cost)));
                let expected = limit.charge(&mut core_state, now, cost);
                assert_eq!(results[0], ChargeResult::Outcome(expected), "{context}");
                assert_outcome(results[0].outcome().unwrap(), step, &context);
                let limit = Arc::clone(&limit);
                refundable[number] = expected.refund_token().map(|refund_token| Refund {
                    key,
                    limit,
                    cost,
                    refund_token: Some(refund_token),
                });
            }
            match self.runtime.block_on(store.state(key)).unwrap() {
                Some((state_limit, mut state)) if state_limit.shares_state_with(&limit) => {
                    assert_eq!(integers(&limit, &mut state, now), step.state, "{context}: state");
                }
                // A state of the previous limit may remain.
                _ => assert!(
                    limit.expires_at(&mut core_state) <= now,
                    "{context}: {core_state:?} is lost"
                ),
            }
        }
    }
}

#[test]
fn lua_token_bucket_matches_its_vectors() {
    check_vectors(include_str!("../../../../core/tests/vectors/token_bucket.json"));
}

#[test]
fn lua_leaky_bucket_matches_its_vectors() {
    check_vectors(include_str!("../../../../core/tests/vectors/leaky_bucket.json"));
}

#[test]
fn lua_fixed_window_matches_its_vectors() {
    check_vectors(include_str!("../../../../core/tests/vectors/fixed_window.json"));
}

#[test]
fn lua_sliding_window_matches_its_vectors() {
    check_vectors(include_str!("../../../../core/tests/vectors/sliding_window.json"));
}

#[test]
fn lua_sliding_log_matches_its_vectors() {
    check_vectors(include_str!("../../../../core/tests/vectors/sliding_log.json"));
}

#[test]
fn lua_concurrency_matches_its_vectors() {
    check_vectors(include_str!("../../../../core/tests/vectors/concurrency.json"));
}
