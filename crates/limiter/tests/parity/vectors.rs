//! The shared vectors through the scripts.

use std::sync::Arc;

use serde::Deserialize;
use tidegate::{
    Algorithm, Answer, Charge, Key, Limit, Outcome, Quota, Refund, Span, State, Store, Timestamp,
};

use super::Bench;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    limit: Numbers,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    algorithm: String,
    amount: u64,
    window: u64,
    burst: Option<u64>,
    queue: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: u64,
    cost: Option<u64>,
    refund: Option<usize>,
    limit: Option<Numbers>,
    allowed: Option<bool>,
    delay: Option<u64>,
    retry_after: Option<i64>,
    remaining: Option<u64>,
    reset_after: Option<u64>,
    state: Vec<u64>,
}

impl Numbers {
    fn limit(&self) -> Arc<Limit> {
        let algorithm = match self.algorithm.as_str() {
            "token_bucket" => Algorithm::TokenBucket,
            "leaky_bucket" => Algorithm::LeakyBucket { queue: self.queue.unwrap() },
            "fixed_window" => Algorithm::FixedWindow,
            "sliding_window" => Algorithm::SlidingWindow,
            "sliding_log" => Algorithm::SlidingLog,
            other => panic!("unknown algorithm {other}"),
        };
        let quota = Quota::per(self.amount, Span::from_micros(self.window));
        let quota = self.burst.map_or(quota, |burst| quota.burst(burst));
        Arc::new(Limit::new(algorithm, quota).unwrap())
    }
}

/// The integers of a state at an instant, as the vectors list them.
fn integers(limit: &Limit, state: &mut State, now: Timestamp) -> Vec<u64> {
    limit.admits(state, now, 1);
    match state {
        State::Tokens(level) => {
            let (due, returned) = (level.due, level.returned);
            vec![due.micros, due.parts, returned.micros, returned.parts]
        }
        State::Queue(due) => vec![due.micros, due.parts],
        State::Fixed(count) => vec![count.end.as_micros(), count.spent],
        State::Sliding(counts) => vec![counts.end.as_micros(), counts.current, counts.previous],
        State::Log(log) => log.entries().flat_map(|(at, cost)| [at.as_micros(), cost]).collect(),
    }
}

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
        let mut limit = case.limit.limit();
        let mut core = limit.fresh();
        let mut charged: Vec<Option<Refund>> = Vec::new();
        for (number, step) in case.steps.iter().enumerate() {
            let place = format!("{}, {}, step {number}", limit.algorithm(), case.name);
            let now = Timestamp::from_micros(step.at);
            self.set_time(now);
            if let Some(numbers) = &step.limit {
                let new = numbers.limit();
                core = new.adopt(&limit, &core, now);
                limit = new;
                // The vectors leave refunds across a change of limit to the walk.
                charged.iter_mut().for_each(|refund| *refund = None);
            }
            charged.push(None);
            if let Some(earlier) = step.refund {
                if let Some(refund) = charged[earlier].take() {
                    let Refund { limit: charged_by, slip, cost, .. } = &refund;
                    let given = limit.refund(&mut core, now, charged_by, slip, *cost);
                    let refunded = self.runtime.block_on(store.refund(&[refund]));
                    assert_eq!(refunded, Ok(usize::from(given)), "{place}: refund");
                }
            } else {
                let cost = step.cost.unwrap();
                let charge = Charge { key, shared: key, limit: &limit, cost, alone: false };
                let answers = self.runtime.block_on(store.charge(&[charge]));
                let expected = limit.charge(&mut core, now, cost);
                assert_eq!(answers[0], Answer::Decided(expected), "{place}");
                assert_told(answers[0].outcome().unwrap(), step, &place);
                let limit = Arc::clone(&limit);
                charged[number] = expected.slip().map(|slip| Refund { key, limit, cost, slip });
            }
            match self.runtime.block_on(store.state(key)).unwrap() {
                Some((kept_under, mut kept)) => {
                    assert_eq!(kept_under, *limit, "{place}");
                    assert_eq!(integers(&limit, &mut kept, now), step.state, "{place}: state");
                }
                None => assert!(limit.whole_at(&mut core) <= now, "{place}: {core:?} is lost"),
            }
        }
    }
}

#[test]
fn token_bucket_in_lua_answers_its_vectors() {
    check(include_str!("../../../core/tests/vectors/token_bucket.json"));
}

#[test]
fn leaky_bucket_in_lua_answers_its_vectors() {
    check(include_str!("../../../core/tests/vectors/leaky_bucket.json"));
}

#[test]
fn fixed_window_in_lua_answers_its_vectors() {
    check(include_str!("../../../core/tests/vectors/fixed_window.json"));
}

#[test]
fn sliding_window_in_lua_answers_its_vectors() {
    check(include_str!("../../../core/tests/vectors/sliding_window.json"));
}

#[test]
fn sliding_log_in_lua_answers_its_vectors() {
    check(include_str!("../../../core/tests/vectors/sliding_log.json"));
}
