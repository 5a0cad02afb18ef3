//! The shared vectors through the scripts.

#[path = "../../../../core/tests/vectors/case.rs"]
pub(crate) mod case;

use std::sync::Arc;

use case::{Case, Step, integers};
use tidegate::{Charge, ChargeMode, ChargeResult, Key, Outcome, Refund, Store, Timestamp};

use super::Bench;

fn assert_told(outcome: &Outcome, step: &Step, place: &str) {
    assert_eq!(Some(outcome.is_allowed()), step.allowed, "{place}: allowed");
    assert_eq!(Some(outcome.delay().as_micros()), step.delay, "{place}: delay");
    let wait = match outcome.retry_after() {
        Some(wait) => Some(i64::try_from(wait.as_micros()).unwrap()),
        None if outcome.is_allowed() => None,
        None => Some(-1),
    };
    assert_eq!(wait, step.retry_after, "{place}: retry_after");
    assert_eq!(Some(outcome.remaining), step.remaining, "{place}: remaining");
    let reset_after = outcome.reset_after.as_micros();
    assert_eq!(Some(reset_after), step.reset_after, "{place}: reset_after");
}

fn check(file: &str) {
    let cases: Vec<Case> = serde_json::from_str(file).unwrap();
    assert!(!cases.is_empty());
    let mut bench = Bench::new();
    for (number, case) in (1..).zip(cases) {
        bench.follow(Key::from_u128(number), &case);
    }
}

impl Bench {
    /// One case through the scripts, and through the core beside them.
    fn follow(&mut self, key: Key, case: &Case) {
        let store = Arc::clone(&self.store);
        let mut limit = Arc::new(case.limit.limit());
        let mut core = limit.fresh();
        let mut charged: Vec<Option<Refund>> = Vec::new();
        for (number, step) in case.steps.iter().enumerate() {
            let place = format!("{}, {}, step {number}", limit.algorithm(), case.name);
            let now = Timestamp::from_micros(step.at);
            self.set_time(now);
            if let Some(numbers) = &step.limit {
                let new = Arc::new(numbers.limit());
                core = new.migrate(&limit, &core, now);
                // The vectors have one state, so they also leave limits in turns to the walk.
                self.keep_last_limit(key, &limit);
                limit = new;
                // The vectors leave refunds across a change of limit to the walk.
                charged.iter_mut().for_each(|refund| *refund = None);
            }
            charged.push(None);
            if let Some(earlier) = step.refund {
                if let Some(refund) = charged[earlier].clone() {
                    let given = refund.take_back(&limit, &mut core, now);
                    let refunded = self.runtime.block_on(store.refund(&[refund]));
                    assert_eq!(refunded, Ok(usize::from(given)), "{place}: refund");
                }
                charged[earlier].take_if(|refund| !refund.limit.is_concurrency());
            } else if let Some(earlier) = step.renew {
                if let Some(slots) = &charged[earlier] {
                    let held = slots.renew(&limit, &mut core, now);
                    let renewed = self.runtime.block_on(store.renew(std::slice::from_ref(slots)));
                    assert_eq!(renewed, Ok(usize::from(held)), "{place}: renewal");
                }
            } else if step.lose.is_some() {
                self.runtime.block_on(store.forget(key)).unwrap();
                core = limit.fresh();
            } else {
                let cost = step.cost.unwrap();
                let charge =
                    Charge { key, overflow_key: key, limit: &limit, cost, independent: false };
                let answers =
                    self.runtime.block_on(store.charge(&[charge], ChargeMode::of_cost(cost)));
                let expected = limit.charge(&mut core, now, cost);
                assert_eq!(answers[0], ChargeResult::Outcome(expected), "{place}");
                assert_told(answers[0].outcome().unwrap(), step, &place);
                let limit = Arc::clone(&limit);
                charged[number] = expected.refund_token().map(|refund_token| Refund {
                    key,
                    limit,
                    cost,
                    refund_token: Some(refund_token),
                });
            }
            match self.runtime.block_on(store.state(key)).unwrap() {
                Some((kept_under, mut kept)) if kept_under.shares_state_with(&limit) => {
                    assert_eq!(integers(&limit, &mut kept, now), step.state, "{place}: state");
                }
                // A state of the limit before may be left.
                _ => assert!(limit.expires_at(&mut core) <= now, "{place}: {core:?} is lost"),
            }
        }
    }
}

#[test]
fn token_bucket_in_lua_answers_its_vectors() {
    check(include_str!("../../../../core/tests/vectors/token_bucket.json"));
}

#[test]
fn leaky_bucket_in_lua_answers_its_vectors() {
    check(include_str!("../../../../core/tests/vectors/leaky_bucket.json"));
}

#[test]
fn fixed_window_in_lua_answers_its_vectors() {
    check(include_str!("../../../../core/tests/vectors/fixed_window.json"));
}

#[test]
fn sliding_window_in_lua_answers_its_vectors() {
    check(include_str!("../../../../core/tests/vectors/sliding_window.json"));
}

#[test]
fn sliding_log_in_lua_answers_its_vectors() {
    check(include_str!("../../../../core/tests/vectors/sliding_log.json"));
}

#[test]
fn concurrency_in_lua_answers_its_vectors() {
    check(include_str!("../../../../core/tests/vectors/concurrency.json"));
}
