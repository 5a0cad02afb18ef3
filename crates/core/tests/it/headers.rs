//! The IETF fields of every algorithm: parseable, and never more permissive than the limit.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Decision, HeaderStyle, Limit, Outcome, Quota, RuleIndex, RuleOutcome, RuleOutcomes,
    Span, State, Timestamp,
};

/// Some time in 2026, on no round boundary.
const START: u64 = 1_780_000_000_123_457;

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::TokenBucket),
        (0u64..5_000).prop_map(|queue| Algorithm::LeakyBucket { queue }),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
        Just(Algorithm::Concurrency { hold: Span::MINUTE }),
    ]
}

fn limits() -> impl Strategy<Value = Limit> {
    let amount = prop_oneof![1u64..20, 1u64..50_000, Quota::MAX_AMOUNT - 9..=Quota::MAX_AMOUNT];
    let window = prop_oneof![
        Just(Span::SECOND),
        Just(Span::MINUTE),
        Just(Span::DAY),
        (1_000u64..5_000_000_000).prop_map(Span::from_micros),
    ];
    let burst = proptest::option::of(1u64..100_000);
    (algorithms(), amount, window, burst).prop_filter_map(
        "valid limits",
        |(algorithm, amount, window, burst)| {
            let quota = match (algorithm, burst) {
                (Algorithm::Concurrency { .. }, _) => Quota::in_flight(amount),
                (Algorithm::TokenBucket, Some(burst)) => Quota::per(amount, window).burst(burst),
                _ => Quota::per(amount, window),
            };
            Limit::new(algorithm, quota).ok()
        },
    )
}

/// The fields of one decision by one rule.
struct SentFields {
    remaining: u64,
    effective_window: Option<u64>,
    retry_after: Option<u64>,
}

fn integer(parameters: &sfv::Parameters, name: &str) -> Option<u64> {
    let value = parameters.get(name)?.as_integer().unwrap();
    Some(i64::from(value).try_into().unwrap())
}

fn sent_fields(limit: &Limit, outcome: Outcome, now: Timestamp) -> SentFields {
    let rule = RuleOutcome {
        rule_index: RuleIndex(0),
        rule: "api".into(),
        limit: Arc::new(limit.clone()),
        outcome,
        shadow: false,
    };
    let decision = Decision::of(RuleOutcomes::from_vec(vec![rule]));
    let headers = HeaderStyle::default().headers(&decision, now);
    let field = |wanted: &str| headers.iter().find(|(name, _)| *name == wanted);
    let parameters = |name: &str| {
        let (_, value) = field(name).unwrap();
        let list = sfv::Parser::new(value).parse::<sfv::List>().unwrap();
        let [sfv::ListEntry::Item(item)] = &list[..] else { panic!("{value}") };
        item.params.clone()
    };
    let quota = integer(&parameters("ratelimit-policy"), "q").unwrap();
    assert_eq!(quota, limit.quota().amount().min(999_999_999_999_999));
    let state = parameters("ratelimit");
    SentFields {
        remaining: integer(&state, "r").unwrap(),
        effective_window: integer(&state, "t"),
        retry_after: field("retry-after").map(|(_, value)| value.parse().unwrap()),
    }
}

/// Checks the fields of one outcome against the limit and the state after it.
fn check_fields(limit: &Limit, state: &State, outcome: Outcome, now: Timestamp) {
    let fields = sent_fields(limit, outcome, now);
    assert!(fields.remaining <= outcome.remaining);
    if fields.remaining > 0 {
        let at_once = limit.charge(&mut state.clone(), now, fields.remaining);
        assert!(at_once.is_allowed(), "the limit admits all of r within t");
    }
    if limit.is_concurrency() {
        assert!(!outcome.is_allowed() || fields.effective_window.is_none());
        return;
    }
    let Some(window) = fields.effective_window else {
        assert!(!outcome.is_allowed(), "an allowed request has an effective window");
        return;
    };
    assert!(window > 0);
    let (sent, sustained) = (
        u128::from(fields.remaining) * u128::from(limit.quota().window().as_micros()),
        u128::from(limit.quota().amount()) * u128::from(window) * 1_000_000,
    );
    assert!(sent <= sustained, "r={} t={window} is faster than {limit}", fields.remaining);
    if let Some(retry_after) = fields.retry_after {
        assert!(window <= retry_after, "t={window} ends after Retry-After: {retry_after}");
    }
}

proptest! {
    #[test]
    fn remaining_within_the_effective_window_never_exceeds_the_limit(
        limit in limits(),
        steps in proptest::collection::vec((0u64..3_000, 0u64..4, 0u64..20), 1..30),
    ) {
        let mut state = limit.fresh();
        let mut now = Timestamp::from_micros(START);
        for (thousandths, divisor, cost) in steps {
            let window = limit.quota().window().as_micros();
            now = now + Span::from_micros(window / 1_000 * thousandths + thousandths);
            // Small costs, and shares of the whole limit.
            let cost = limit.capacity().checked_div(divisor).unwrap_or(cost);
            let outcome = limit.charge(&mut state, now, cost);
            check_fields(&limit, &state, outcome, now);
        }
    }
}

fn allowed_fields(algorithm: Algorithm, quota: Quota, after: Span, cost: u64) -> (u64, u64) {
    let limit = Limit::new(algorithm, quota).unwrap();
    let now = Timestamp::from_secs(1_780_000_000 / 86_400 * 86_400) + after;
    let outcome = limit.charge(&mut limit.fresh(), now, cost);
    assert!(outcome.is_allowed());
    let fields = sent_fields(&limit, outcome, now);
    (fields.remaining, fields.effective_window.unwrap())
}

#[test]
fn nearly_full_bucket_has_the_time_in_which_its_tokens_refill() {
    let quota = Quota::per(10_000, Span::from_secs(1_000));
    assert_eq!(allowed_fields(Algorithm::TokenBucket, quota, Span::ZERO, 1), (9_999, 1_000));
    let burst = Quota::per_minute(100).burst(500);
    assert_eq!(allowed_fields(Algorithm::TokenBucket, burst, Span::ZERO, 1), (499, 300));
    let leaky = Algorithm::LeakyBucket { queue: 9 };
    assert_eq!(allowed_fields(leaky, Quota::per_minute(6), Span::ZERO, 1), (9, 90));
}

#[test]
fn empty_bucket_has_the_time_of_one_token() {
    let per_hour = Quota::per(2, Span::HOUR);
    assert_eq!(allowed_fields(Algorithm::TokenBucket, per_hour, Span::ZERO, 2), (0, 1_800));
}

#[test]
fn unused_window_near_its_end_is_paced_by_its_rate() {
    let fixed = Algorithm::FixedWindow;
    let late = Span::from_secs(59);
    assert_eq!(allowed_fields(fixed, Quota::per_minute(100), late, 1), (99, 60));
    assert_eq!(allowed_fields(fixed, Quota::per_minute(100), late, 99), (1, 1));
    assert_eq!(allowed_fields(fixed, Quota::per_minute(100), Span::SECOND, 99), (1, 59));
}

#[test]
fn sliding_window_has_no_effective_window_beyond_its_own() {
    let late = Span::from_secs(10);
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        assert_eq!(allowed_fields(algorithm, Quota::per_minute(100), late, 100), (0, 60));
    }
}
