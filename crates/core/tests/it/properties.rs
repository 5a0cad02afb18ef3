//! Every algorithm against the naive model, and against its stated bound.

use std::ops::Range;

use crate::model::Model;
use num_rational::BigRational;
use proptest::prelude::*;
use tidegate_core::{Algorithm, Limit, Outcome, Quota, RefundToken, Span, State, Timestamp};

/// Some time in 2026, on no round boundary.
const START: u64 = 1_780_000_000_123_457;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::TokenBucket),
        (0u64..12).prop_map(|queue| Algorithm::LeakyBucket { queue }),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
    ]
}

fn windows() -> impl Strategy<Value = Span> {
    prop_oneof![
        Just(Span::from_millis(1)),
        Just(Span::from_millis(7)),
        Just(Span::SECOND),
        Just(Span::MINUTE),
        Just(Span::DAY),
        (1_000u64..100_000_000).prop_map(Span::from_micros),
    ]
}

fn limits(amounts: Range<u64>) -> impl Strategy<Value = (Algorithm, Quota)> {
    (algorithms(), amounts, windows(), proptest::option::of(1u64..60)).prop_map(
        |(algorithm, amount, window, burst)| {
            let quota = Quota::per(amount, window);
            match (algorithm, burst) {
                (Algorithm::TokenBucket, Some(burst)) if amount > 0 => {
                    (algorithm, quota.burst(burst))
                }
                _ => (algorithm, quota),
            }
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    /// Time passes: a share of the window in thousandths, and some microseconds.
    Advance {
        thousandths: u64,
        micros: u64,
    },
    Charge {
        cost: u64,
    },
    /// Refund the n-th of the charges made so far.
    Refund {
        which: usize,
    },
    /// Refund the latest charges, without a refund token.
    GiveBack {
        cost: u64,
    },
    Change {
        to: (Algorithm, Quota),
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (prop_oneof![Just(0u64), 0u64..200, 0u64..3_000], 0u64..3)
            .prop_map(|(thousandths, micros)| Step::Advance { thousandths, micros }),
        8 => prop_oneof![Just(1u64), 0u64..12, 0u64..70, Just(u64::MAX)]
            .prop_map(|cost| Step::Charge { cost }),
        2 => any::<usize>().prop_map(|which| Step::Refund { which }),
        1 => prop_oneof![0u64..12, Just(u64::MAX)].prop_map(|cost| Step::GiveBack { cost }),
        1 => limits(1..40).prop_map(|to| Step::Change { to }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A charge that may be refunded later.
struct Spent {
    id: u64,
    refund_token: RefundToken,
    cost: u64,
    limit: Limit,
}

/// The code under test and the model, walked side by side.
struct NumberPair {
    limit: Limit,
    state: State,
    model: Model,
    now: u64,
    spent: Vec<Spent>,
}

impl NumberPair {
    fn new((algorithm, quota): (Algorithm, Quota)) -> Self {
        let limit = Limit::new(algorithm, quota).unwrap();
        let state = limit.fresh();
        Self { limit, state, model: Model::new(algorithm, quota), now: START, spent: Vec::new() }
    }

    fn walk(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Advance { thousandths, micros } => {
                let window = self.limit.quota().window().as_micros();
                self.now += window * thousandths / 1_000 + micros;
            }
            Step::Charge { cost } => self.charge(cost)?,
            Step::Refund { which } => {
                if !self.spent.is_empty() {
                    let spent = self.spent.remove(which % self.spent.len());
                    self.model.refund(self.now, spent.id, spent.cost);
                    let Spent { refund_token, cost, limit, .. } = spent;
                    self.limit.refund(&mut self.state, at(self.now), &limit, &refund_token, cost);
                }
            }
            Step::GiveBack { cost } => {
                self.model.refund_latest(self.now, cost);
                let limit = self.limit.clone();
                limit.refund_latest(&mut self.state, at(self.now), &limit, cost);
                // The model does not cover refund tokens that were issued before a refund of the latest usage.
                self.spent.clear();
            }
            Step::Change { to: (algorithm, quota) } => {
                let new = Limit::new(algorithm, quota).unwrap();
                if new != self.limit {
                    self.state = new.migrate(&self.limit, &self.state, at(self.now));
                }
                self.limit = new;
                if !self.model.change(self.now, algorithm, quota) {
                    // What the model forgot, the code must refuse: it gets these refunds all the same.
                    for spent in self.spent.drain(..) {
                        let mut state = self.state.clone();
                        let Spent { refund_token, cost, limit, .. } = spent;
                        if limit != self.limit {
                            let given = self.limit.refund(
                                &mut state,
                                at(self.now),
                                &limit,
                                &refund_token,
                                cost,
                            );
                            prop_assert!(!given, "a refund_token of another limit was honoured");
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn charge(&mut self, cost: u64) -> Result<(), TestCaseError> {
        let now = self.now;
        let before = self.state.clone();
        let slot = (self.limit.quota().amount() > 0).then(|| self.model.slot(now));
        let fits = self.model.admits(now, cost);
        prop_assert_eq!(self.limit.admits(&mut self.state, at(now), cost), fits);
        let outcome = self.limit.charge(&mut self.state, at(now), cost);
        prop_assert_eq!(outcome.is_allowed(), fits, "{:?} {:?}", self.limit, before);
        prop_assert_eq!(outcome.limit, self.model.capacity());
        if let Some(id) = self.model.charge(now, cost) {
            let refund_token = outcome.refund_token().expect("an admission yields a refund_token");
            self.spent.push(Spent { id, refund_token, cost, limit: self.limit.clone() });
            let slot = slot.unwrap();
            let delay = BigRational::from_integer(outcome.delay().as_micros().into());
            let waits = (slot - BigRational::from_integer(now.into())).ceil();
            prop_assert_eq!(delay, waits);
        } else {
            prop_assert_eq!(outcome.refund_token(), None);
        }
        prop_assert_eq!(outcome.remaining, self.model.remaining(now));
        self.reset_after_is_the_first_instant_with_the_full_limit(&outcome)?;
        if !fits {
            self.retry_after_is_the_first_instant_that_admits(&outcome, cost)?;
        }
        Ok(())
    }

    fn retry_after_is_the_first_instant_that_admits(
        &self,
        outcome: &Outcome,
        cost: u64,
    ) -> Result<(), TestCaseError> {
        match outcome.retry_after() {
            None => prop_assert!(cost.max(1) > self.model.capacity()),
            Some(wait) => {
                let then = self.now + wait.as_micros();
                prop_assert!(wait > Span::ZERO);
                prop_assert!(self.model.admits(then, cost), "{wait:?} is too early");
                prop_assert!(!self.model.admits(then - 1, cost), "{wait:?} is too late");
            }
        }
        Ok(())
    }

    fn reset_after_is_the_first_instant_with_the_full_limit(
        &self,
        outcome: &Outcome,
    ) -> Result<(), TestCaseError> {
        let whole = self.now + outcome.reset_after.as_micros();
        prop_assert_eq!(self.model.remaining(whole), self.model.capacity());
        if whole > self.now && self.model.capacity() > 0 {
            prop_assert!(self.model.remaining(whole - 1) < self.model.capacity());
        }
        Ok(())
    }
}

/// Number of cases of each property; `make soak` asks for many more.
#[allow(clippy::disallowed_methods, reason = "a soak says how long it is")]
fn cases() -> u32 {
    std::env::var("TIDEGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn outcomes_match_the_model(limit in limits(0..40), steps in steps()) {
        let mut pair = NumberPair::new(limit);
        for step in &steps {
            pair.walk(step)?;
        }
    }

    /// Small limits and long walks reach corners that wide ones seldom do.
    #[test]
    fn outcomes_of_small_limits_match_the_model(
        algorithm in algorithms(), amount in 1u64..6, window in windows(), steps in steps(),
    ) {
        let mut pair = NumberPair::new((algorithm, Quota::per(amount, window)));
        for step in steps.iter().filter(|step| !matches!(step, Step::Change { .. })) {
            pair.walk(step)?;
        }
    }

    /// A denial or a peek leaves the state unchanged: later requests have the same outcomes.
    #[test]
    fn a_denied_request_consumes_nothing(limit in limits(0..40), steps in steps()) {
        let mut asked = NumberPair::new(limit);
        let mut left_alone = NumberPair::new(limit);
        for step in steps.iter().filter(|step| matches!(step, Step::Advance { .. } | Step::Charge { .. })) {
            asked.walk(step)?;
            let now = at(asked.now);
            let refused = asked.limit.charge(&mut asked.state, now, u64::MAX);
            prop_assert!(!refused.is_allowed());
            asked.limit.charge(&mut asked.state, now, 0);
            asked.limit.peek(&mut asked.state, now, 3);
            left_alone.walk(step)?;
            let mut states = [asked.state.clone(), left_alone.state.clone()];
            for state in &mut states {
                asked.limit.admits(state, now, 1);
            }
            prop_assert_eq!(&states[0], &states[1]);
        }
    }

    /// Admitted in any window, wherever it starts, is at most the stated bound, refunds or not.
    #[test]
    fn no_window_holds_more_than_the_bound(limit in limits(0..40), steps in steps()) {
        let mut pair = NumberPair::new(limit);
        let mut admitted: Vec<(u64, u64, u64)> = Vec::new();
        let asked = |step: &&Step| !matches!(step, Step::Change { .. } | Step::GiveBack { .. });
        for step in steps.iter().filter(asked) {
            let before: Vec<u64> = pair.spent.iter().map(|spent| spent.id).collect();
            pair.walk(step)?;
            match step {
                Step::Charge { .. } if pair.spent.len() > before.len() => {
                    let spent = pair.spent.last().unwrap();
                    admitted.push((spent.id, pair.now, spent.cost));
                }
                // A charge that was refunded counts as never made.
                Step::Refund { .. } => {
                    let kept: Vec<u64> = pair.spent.iter().map(|spent| spent.id).collect();
                    let gone: Vec<u64> = before.into_iter().filter(|id| !kept.contains(id)).collect();
                    admitted.retain(|(id, _, _)| !gone.contains(id));
                }
                _ => {}
            }
        }
        // A leaky bucket bounds releases, which have a property of their own.
        if matches!(pair.limit, Limit::LeakyBucket(_)) {
            return Ok(());
        }
        let bound = pair.limit.bound();
        let window = bound.window.as_micros();
        for (_, start, _) in &admitted {
            let inside = admitted.iter().filter(|(_, at, _)| (*start..*start + window).contains(at));
            let sum: u64 = inside.map(|(_, _, cost)| cost).sum();
            prop_assert!(sum <= bound.most, "{sum} in {window} us, {bound}");
        }
    }

    /// Slots of a leaky bucket, seen exactly, are an interval apart or more.
    #[test]
    fn leaky_releases_are_never_closer_than_the_interval(
        queue in 0u64..12, amount in 1u64..40, window in windows(), steps in steps(),
    ) {
        let mut pair = NumberPair::new((Algorithm::LeakyBucket { queue }, Quota::per(amount, window)));
        let interval = BigRational::new(window.as_micros().into(), amount.into());
        let mut released: Vec<BigRational> = Vec::new();
        for step in &steps {
            match step {
                Step::Charge { cost: 1 } => {
                    let slot = pair.model.slot(pair.now);
                    let before = pair.spent.len();
                    pair.walk(step)?;
                    if pair.spent.len() > before {
                        released.push(slot);
                    }
                }
                Step::Advance { .. } => pair.walk(step)?,
                _ => {}
            }
        }
        for pair in released.windows(2) {
            prop_assert!(&pair[1] - &pair[0] >= interval);
        }
    }

    /// An expired state decides like a fresh one.
    #[test]
    fn expired_state_decides_like_a_fresh_one(limit in limits(0..40), steps in steps()) {
        let mut pair = NumberPair::new(limit);
        for step in &steps {
            pair.walk(step)?;
        }
        let whole = pair.limit.expires_at(&mut pair.state).max(at(pair.now));
        let mut fresh = pair.limit.fresh();
        for cost in [1, 2, 5, 100] {
            prop_assert_eq!(
                pair.limit.charge(&mut pair.state, whole, cost),
                pair.limit.charge(&mut fresh, whole, cost)
            );
        }
    }
}
