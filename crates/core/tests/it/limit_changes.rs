//! Limits that change under a client: no sequence of changes gives it more than the limits in force,
//! and none takes away what it had left.
//!
//! The guarantees and their reasons are in docs/decisions/0009-changing-limits.md.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive, Zero};
use proptest::prelude::*;
use tidegate_core::{Algorithm, ClientStates, Limit, Outcome, Quota, Span, State, Timestamp};

/// Some time in 2026, on no round boundary.
const START: u64 = 1_780_000_000_123_457;

fn exact(number: u64) -> BigRational {
    BigRational::from(BigInt::from(number))
}

fn windows() -> impl Strategy<Value = Span> {
    prop_oneof![
        Just(Span::from_millis(1)),
        Just(Span::SECOND),
        Just(Span::MINUTE),
        Just(Span::DAY),
        (1_000u64..100_000_000).prop_map(Span::from_micros),
    ]
}

fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0u64), 8 => 1u64..40, 2 => 1u64..10_000, 1 => Just(999_999_999_989)]
}

fn bursts() -> impl Strategy<Value = Option<u64>> {
    proptest::option::of(prop_oneof![1u64..60, 1u64..100_000])
}

/// Any limit that can be counted, by one of these algorithms.
fn limits(algorithms: impl Strategy<Value = Algorithm>) -> impl Strategy<Value = Limit> {
    (algorithms, amounts(), windows(), bursts()).prop_map(|(algorithm, amount, window, burst)| {
        let amount = if algorithm == Algorithm::SlidingLog { amount % 10_001 } else { amount };
        let quota = Quota::per(amount, window);
        let with_burst = burst.filter(|_| algorithm == Algorithm::TokenBucket && amount > 0);
        let limit = Limit::new(algorithm, with_burst.map_or(quota, |burst| quota.burst(burst)));
        // A burst that fills too slowly to be counted.
        limit.unwrap_or_else(|_| Limit::new(algorithm, quota).unwrap())
    })
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::TokenBucket),
        (0u64..12).prop_map(|queue| Algorithm::LeakyBucket { queue }),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    /// Thousandths of the window in force, and some microseconds.
    Advance(u64, u64),
    /// Thousandths of the capacity, and a few more.
    Charge(u64, u64),
    Change(Limit),
}

fn steps(limits: impl Strategy<Value = Limit> + 'static) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (prop_oneof![Just(0u64), 0u64..200, 0u64..2_500], 0u64..3)
            .prop_map(|(thousandths, micros)| Step::Advance(thousandths, micros)),
        6 => (prop_oneof![Just(0u64), 0u64..300, Just(1_000)], 0u64..3)
            .prop_map(|(thousandths, more)| Step::Charge(thousandths, more)),
        2 => limits.prop_map(Step::Change),
    ];
    proptest::collection::vec(step, 1..80)
}

/// One client, walked through limits that change.
struct Client {
    limit: Limit,
    state: State,
    now: u64,
}

impl Client {
    fn new(limit: Limit) -> Self {
        Self { state: limit.fresh(), limit, now: START }
    }

    fn at(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn amount(&self) -> u64 {
        self.limit.quota().amount()
    }

    fn window(&self) -> u64 {
        self.limit.quota().window().as_micros()
    }

    fn peek(&mut self) -> Outcome {
        let now = self.at();
        self.limit.peek(&mut self.state, now, 1)
    }

    fn advance(&mut self, thousandths: u64, micros: u64) {
        self.now += self.window() * thousandths / 1_000 + micros;
    }

    /// Charges, and returns the admitted cost and its outcome.
    fn charge(&mut self, thousandths: u64, more: u64) -> Option<(u64, Outcome)> {
        let share = u128::from(self.limit.capacity()) * u128::from(thousandths) / 1_000;
        let cost = (u64::try_from(share).unwrap() + more).max(1);
        let now = self.at();
        let outcome = self.limit.charge(&mut self.state, now, cost);
        outcome.is_allowed().then_some((cost, outcome))
    }

    fn change(&mut self, to: &Limit) {
        self.state = to.migrate(&self.limit, &self.state, self.at());
        self.limit = to.clone();
    }

    /// The used fraction of a token bucket, exactly: one of no tokens takes its window to fill.
    fn used_fraction(&self) -> BigRational {
        let State::Tokens(level) = &self.state else { unreachable!() };
        let (window, amount) = (self.window(), self.amount());
        let parts = if amount == 0 { 1 } else { amount / gcd(window, amount) };
        let due = exact(level.due.micros) + exact(level.due.parts) / exact(parts);
        (due - exact(self.now)).max(BigRational::zero()) / self.depth()
    }

    /// Microseconds in which a token bucket fills up.
    fn depth(&self) -> BigRational {
        match self.amount() {
            0 => exact(self.window()),
            amount => exact(self.limit.capacity()) * exact(self.window()) / exact(amount),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Number of cases of each property; `make soak` asks for many more.
#[allow(clippy::disallowed_methods, reason = "a soak says how long it is")]
fn cases() -> u32 {
    std::env::var("TIDEGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Each admission takes cost / burst of a bucket, each microsecond gives rate / burst back, by the
    /// limit in force. Whatever span of its life is looked at, a client took no more than one bucket
    /// and what came back. Exactly: every rounding is against the client.
    #[test]
    fn bucket_admits_at_most_one_burst_and_the_refill_of_the_active_limits(
        first in limits(Just(Algorithm::TokenBucket)),
        steps in steps(limits(Just(Algorithm::TokenBucket))),
    ) {
        let mut client = Client::new(first);
        let (mut taken, mut refilled) = (BigRational::zero(), BigRational::zero());
        // The least of taken - refilled before any admission so far: where the worst span begins.
        let mut least: Option<BigRational> = None;
        for step in &steps {
            match step {
                Step::Advance(thousandths, micros) => {
                    let before = client.now;
                    client.advance(*thousandths, *micros);
                    refilled += exact(client.now - before) / client.depth();
                }
                Step::Charge(thousandths, more) => {
                    let begin = &taken - &refilled;
                    least = Some(least.map_or(begin.clone(), |least| least.min(begin)));
                    if let Some((cost, _)) = client.charge(*thousandths, *more) {
                        taken += exact(cost) / exact(client.limit.capacity());
                        let span = &taken - &refilled - least.clone().unwrap();
                        prop_assert!(span <= BigRational::one(), "{span} of a bucket too much");
                    }
                }
                Step::Change(limit) => client.change(limit),
            }
        }
    }

    /// A change keeps the used fraction, and rounds it up by less than the grain in which the new
    /// limit counts, which is at most a token: what can be spent at once is the fraction that was
    /// left, or one less.
    #[test]
    fn a_bucket_keeps_its_fraction_through_a_change(
        first in limits(Just(Algorithm::TokenBucket)),
        steps in steps(limits(Just(Algorithm::TokenBucket))),
    ) {
        let mut client = Client::new(first);
        let mut touched = false;
        for step in &steps {
            match step {
                Step::Advance(thousandths, micros) => client.advance(*thousandths, *micros),
                Step::Charge(thousandths, more) => {
                    touched |= client.charge(*thousandths, *more).is_some();
                }
                Step::Change(limit) => {
                    let before = client.used_fraction();
                    client.change(limit);
                    let after = client.used_fraction();
                    prop_assert!(after >= before, "{before} became {after}");
                    let grain = BigRational::one() / client.depth();
                    let grain = grain / exact((client.amount() / gcd(client.window(), client.amount())).max(1));
                    prop_assert!(&after - &before < grain, "{before} became {after}");
                    let capacity = client.limit.capacity();
                    let left = ((BigRational::one() - before) * exact(capacity)).floor();
                    let left = left.to_integer().to_u64().unwrap();
                    let remaining = client.peek().remaining;
                    prop_assert!(remaining <= left && left <= remaining + 1, "{left} became {remaining}");
                    prop_assert!(touched || remaining == capacity, "a client that never came is full");
                }
            }
        }
    }

    /// A window's count begins anew where a window of the limit in force begins, and nowhere else. Up
    /// to there a client is admitted what the limit in force at that moment leaves of it.
    #[test]
    fn a_window_never_holds_more_than_the_limit_in_force(
        sliding in any::<bool>(), first in limits(Just(Algorithm::FixedWindow)),
        steps in steps(limits(Just(Algorithm::FixedWindow))),
    ) {
        let algorithm = if sliding { Algorithm::SlidingWindow } else { Algorithm::FixedWindow };
        let of = |limit: &Limit| Limit::new(algorithm, *limit.quota()).unwrap();
        let mut client = Client::new(of(&first));
        let mut spent = 0;
        for step in &steps {
            match step {
                Step::Advance(thousandths, micros) => {
                    let before = client.now / client.window();
                    client.advance(*thousandths, *micros);
                    if client.now / client.window() != before {
                        spent = 0;
                    }
                }
                Step::Charge(thousandths, more) => {
                    if let Some((cost, _)) = client.charge(*thousandths, *more) {
                        spent += cost;
                        prop_assert!(spent <= client.amount(), "{spent} in a window of {}", client.limit);
                    }
                }
                Step::Change(limit) => {
                    let before = client.peek();
                    client.change(&of(limit));
                    let (amount, left) = (client.amount(), client.peek().remaining);
                    let wanted = amount.saturating_sub(before.limit - before.remaining);
                    prop_assert!(left <= wanted, "a free burst: {left} of {amount}, {wanted} wanted");
                    // The outcome of a full window does not contain its excess.
                    prop_assert!(left == wanted || before.remaining == 0, "a penalty: {left}, not {wanted}");
                }
            }
            if !sliding {
                prop_assert_eq!(client.peek().remaining, client.amount().saturating_sub(spent));
            }
        }
    }

    /// An admitted request counts until it is older than the active window, and never again. Therefore the shortest
    /// window of a span holds at most the largest limit of that span.
    #[test]
    fn a_log_never_holds_more_than_the_limit_in_force(
        first in limits(Just(Algorithm::SlidingLog)),
        steps in steps(limits(Just(Algorithm::SlidingLog))),
    ) {
        let mut client = Client::new(first);
        let mut log: Vec<(u64, u64)> = Vec::new();
        for step in &steps {
            log.retain(|(at, _)| at + client.window() > client.now);
            match step {
                Step::Advance(thousandths, micros) => client.advance(*thousandths, *micros),
                Step::Charge(thousandths, more) => {
                    if let Some((cost, _)) = client.charge(*thousandths, *more) {
                        log.push((client.now, cost));
                        let spent: u64 = log.iter().map(|(_, cost)| cost).sum();
                        prop_assert!(spent <= client.amount(), "{spent} under {}", client.limit);
                    }
                }
                Step::Change(limit) => client.change(limit),
            }
            log.retain(|(at, _)| at + client.window() > client.now);
            let spent: u64 = log.iter().map(|(_, cost)| cost).sum();
            prop_assert_eq!(client.peek().remaining, client.amount().saturating_sub(spent));
        }
    }

    /// The interval after a release is that of the limit which released the request, also if the limit changes before
    /// the next release. Release times are whole microseconds, rounded up, so an interval can appear 1 µs shorter.
    #[test]
    fn releases_keep_the_interval_that_they_were_given(
        first in limits((0u64..12).prop_map(|queue| Algorithm::LeakyBucket { queue })),
        steps in steps(limits((0u64..12).prop_map(|queue| Algorithm::LeakyBucket { queue }))),
    ) {
        let mut client = Client::new(first);
        let mut free_from = BigRational::zero();
        for step in &steps {
            match step {
                Step::Advance(thousandths, micros) => client.advance(*thousandths, *micros),
                Step::Charge(thousandths, more) => {
                    if let Some((cost, outcome)) = client.charge(*thousandths, *more) {
                        let released = exact(client.now + outcome.delay().as_micros());
                        prop_assert!(&released + BigRational::one() > free_from);
                        prop_assert!(cost <= client.limit.capacity());
                        let taken = exact(cost) * exact(client.window()) / exact(client.amount());
                        free_from = released + taken;
                    }
                }
                Step::Change(limit) => client.change(limit),
            }
        }
    }

    /// If the algorithm changes, the used amount stays used under the next one, at most all of it: no free burst, and no
    /// penalty.
    #[test]
    fn change_of_algorithm_keeps_the_used_amount(
        first in limits(any_algorithm()), steps in steps(limits(any_algorithm())),
    ) {
        let mut client = Client::new(first);
        for step in &steps {
            match step {
                Step::Advance(thousandths, micros) => client.advance(*thousandths, *micros),
                Step::Charge(thousandths, more) => drop(client.charge(*thousandths, *more)),
                Step::Change(limit) => {
                    let same = limit.algorithm().name() == client.limit.algorithm().name();
                    let before = client.peek();
                    client.change(limit);
                    let after = client.peek();
                    let used = before.limit - before.remaining;
                    if !same {
                        prop_assert_eq!(after.remaining, after.limit.saturating_sub(used));
                    }
                }
            }
        }
    }
}

/// A limit of any algorithm, in flight included.
fn any_limit() -> impl Strategy<Value = Limit> {
    let in_flight = (0u64..12, 1u64..60).prop_map(|(amount, hold)| {
        let algorithm = Algorithm::Concurrency { hold: Span::from_secs(hold) };
        Limit::new(algorithm, Quota::in_flight(amount)).unwrap()
    });
    prop_oneof![5 => limits(any_algorithm()), 1 => in_flight]
}

#[derive(Clone, Debug)]
enum MixedStep {
    /// Thousandths of the window of one of the limits, and some microseconds.
    Advance(usize, u64, u64),
    /// By a node of one of the limits: thousandths of the capacity, and a few more, so many times.
    Charge(usize, u64, u64, u64),
}

fn mixed_steps() -> impl Strategy<Value = Vec<MixedStep>> {
    let step = prop_oneof![
        2 => (0usize..3, prop_oneof![Just(0u64), 0u64..200, 0u64..2_500], 0u64..3)
            .prop_map(|(which, thousandths, micros)| MixedStep::Advance(which, thousandths, micros)),
        7 => (0usize..3, prop_oneof![Just(0u64), 0u64..300, Just(1_000)], 0u64..3, 1u64..20)
            .prop_map(|(which, thousandths, more, times)| MixedStep::Charge(which, thousandths, more, times)),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Nodes with different limits charge one client in any order. Each limit admits no more than it
    /// would admit alone, so all of them together admit at most the sum of their bounds.
    #[test]
    fn limits_used_in_turns_each_keep_their_own_bound(
        limits in proptest::collection::vec(any_limit(), 2..4), steps in mixed_steps(),
    ) {
        // Windows of one length have one count, and limits in flight one set of slots.
        let shares = |a: &Limit, b: &Limit| a.shares_state_with(b);
        prop_assume!((1..limits.len()).all(|at| limits[..at].iter().all(|one| !shares(one, &limits[at]))));
        let (mut states, mut now) = (ClientStates::default(), START);
        let mut alone: Vec<State> = limits.iter().map(Limit::fresh).collect();
        for step in &steps {
            match *step {
                MixedStep::Advance(which, thousandths, micros) => {
                    let window = limits[which % limits.len()].quota().window().as_micros();
                    now += window * thousandths / 1_000 + micros;
                    states.drop_expired(Timestamp::from_micros(now));
                }
                MixedStep::Charge(which, thousandths, more, times) => {
                    let (limit, own) = (&limits[which % limits.len()], &mut alone[which % limits.len()]);
                    let at = Timestamp::from_micros(now);
                    let share = u128::from(limit.capacity()) * u128::from(thousandths) / 1_000;
                    let cost = (u64::try_from(share).unwrap() + more).max(1);
                    for _ in 0..times {
                        if limit.charge(states.enter(limit, at), at, cost).is_allowed() {
                            let fits = limit.charge(own, at, cost).is_allowed();
                            prop_assert!(fits, "{cost} more than {limit} admits");
                        }
                    }
                }
            }
        }
    }

    /// Windows of one length and limits in flight have one state, whichever limit is used: together
    /// they admit at most the largest of them.
    #[test]
    fn limits_of_one_state_admit_together_at_most_the_largest(
        kind in 0usize..4, amounts in proptest::collection::vec(0u64..40, 2..4), steps in mixed_steps(),
    ) {
        let limit = |amount| match kind {
            0 => Limit::new(Algorithm::FixedWindow, Quota::per_minute(amount)),
            1 => Limit::new(Algorithm::SlidingWindow, Quota::per_minute(amount)),
            2 => Limit::new(Algorithm::SlidingLog, Quota::per_minute(amount)),
            _ => {
                let hold = Span::from_secs(1 + amount);
                Limit::new(Algorithm::Concurrency { hold }, Quota::in_flight(amount))
            }
        };
        let limits: Vec<Limit> = amounts.iter().map(|amount| limit(*amount).unwrap()).collect();
        let largest = amounts.iter().max().copied().unwrap_or_default();
        // Slots are lost at different times; here none is.
        let largest_alone = match kind {
            3 => Limit::new(Algorithm::Concurrency { hold: Span::HOUR }, Quota::in_flight(largest)).unwrap(),
            _ => limit(largest).unwrap(),
        };
        let (mut states, mut now) = (ClientStates::default(), START);
        let mut alone = largest_alone.fresh();
        for step in &steps {
            match *step {
                MixedStep::Advance(_, thousandths, micros) if kind < 3 => {
                    now += 60_000 * thousandths + micros;
                }
                MixedStep::Advance(..) => {}
                MixedStep::Charge(which, _, more, times) => {
                    let (limit, at) = (&limits[which % limits.len()], Timestamp::from_micros(now));
                    for _ in 0..times {
                        if limit.charge(states.enter(limit, at), at, more.max(1)).is_allowed() {
                            let fits = largest_alone.charge(&mut alone, at, more.max(1)).is_allowed();
                            prop_assert!(fits, "more than {largest_alone} admits, by {limit}");
                        }
                    }
                }
            }
        }
    }

    /// The first use of a limit migrates the usage under the one before, like a change of the rules.
    #[test]
    fn a_new_limit_migrates_the_state_of_the_limit_used_last(
        first in any_limit(), next in any_limit(), steps in mixed_steps(),
    ) {
        let (mut states, mut now) = (ClientStates::default(), START);
        for step in &steps {
            match *step {
                MixedStep::Advance(_, thousandths, micros) => {
                    now += first.quota().window().as_micros() * thousandths / 1_000 + micros;
                }
                MixedStep::Charge(_, thousandths, more, _) => {
                    let at = Timestamp::from_micros(now);
                    let share = u128::from(first.capacity()) * u128::from(thousandths) / 1_000;
                    let cost = u64::try_from(share).unwrap() + more;
                    first.charge(states.enter(&first, at), at, cost);
                }
            }
        }
        let at = Timestamp::from_micros(now);
        let last = states.iter().next().cloned();
        if let Some((old, state)) = last {
            let mut migrated = next.migrate(&old, &state, at);
            let told = next.peek(states.enter(&next, at), at, 1);
            prop_assert_eq!(told, next.peek(&mut migrated, at, 1));
        }
    }
}

/// Regression: a client that alternated between nodes with an old and a new limit lost the usage of the smaller one at
/// each change, and therefore had no limit at all.
#[test]
fn alternating_between_two_limits_admits_no_more_than_both() {
    let large = Limit::new(Algorithm::TokenBucket, Quota::per_hour(1_000)).unwrap();
    let small = Limit::new(Algorithm::LeakyBucket { queue: 0 }, Quota::per_hour(1)).unwrap();
    let (mut states, now) = (ClientStates::default(), Timestamp::from_micros(START));
    let mut admitted = 0;
    for turn in 0..3_000 {
        let limit = if turn % 2 == 0 { &large } else { &small };
        admitted += u64::from(limit.charge(states.enter(limit, now), now, 1).is_allowed());
    }
    assert!(admitted <= 1_001, "{admitted}");
}

/// Found by the property: around a limit of zero a bucket kept its instant and not its fraction, so that
/// one which fills in a second came out of it full of a day's tokens.
#[test]
fn a_detour_through_a_limit_of_zero_keeps_the_fraction() {
    let limit = |quota| Limit::new(Algorithm::TokenBucket, quota).unwrap();
    let mut client = Client::new(limit(Quota::per_second(10)));
    assert!(client.charge(1_000, 0).is_some());
    client.change(&limit(Quota::per_minute(0)));
    client.change(&limit(Quota::per_day(1_000)));
    assert_eq!(client.peek().remaining, 0);
}

/// Found by the property: in a window of another length the previous count weighed all or nothing at
/// once, wherever in its own window the new one was.
#[test]
fn sliding_window_of_another_length_keeps_the_weighted_usage() {
    let limit = |window| {
        Limit::new(Algorithm::SlidingWindow, Quota::per(10, Span::from_secs(window))).unwrap()
    };
    let mut client = Client { now: 59 * 60_000_000 - 1, ..Client::new(limit(60)) };
    assert!(client.charge(1_000, 0).is_some());
    // A second window of a minute begins, and one of 59 seconds ends in another minute.
    client.now += 6_000_001;
    assert_eq!(client.peek().remaining, 1);
    client.change(&limit(59));
    assert_eq!(client.peek().remaining, 1);
    client.change(&limit(3_600));
    assert_eq!(client.peek().remaining, 1);
}
