//! Slots in flight against a naive list of who holds what.

use std::collections::HashSet;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Decision, HeaderStyle, Limit, Policy, Quota, RuleSet, Slip, Span, State, Timestamp,
};

/// Some time in 2026, on no round boundary.
const START: Timestamp = Timestamp::from_micros(1_780_000_000_123_457);

fn limit(amount: u64, hold: Span) -> Limit {
    Limit::new(Algorithm::Concurrency { hold }, Quota::in_flight(amount)).unwrap()
}

/// How many are in use.
fn used(state: &State) -> u64 {
    let State::Slots(slots) = state else { panic!("{state:?}") };
    slots.used()
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Acquire(u64),
    /// Release so many of the n-th that was acquired, held or not.
    Release(usize, u64),
    Renew(usize),
    GiveBack(u64),
    /// Another limit from here on.
    Change(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop_oneof![Just(0), Just(1), 0u64..600_000, 0u64..4_000_000].prop_map(Step::Advance),
        6 => (0u64..5).prop_map(Step::Acquire),
        5 => (any::<usize>(), 1u64..4).prop_map(|(which, count)| Step::Release(which, count)),
        3 => any::<usize>().prop_map(Step::Renew),
        1 => (1u64..4).prop_map(Step::GiveBack),
        1 => (0u64..9, 1u64..5).prop_map(|(amount, hold)| Step::Change(amount, hold)),
    ];
    prop::collection::vec(step, 1..120)
}

/// Somebody who acquired, as a person would note it.
struct Holder {
    charged: Limit,
    slip: Slip,
    count: u64,
    until: Timestamp,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_held_renewed_released_and_lost_like_on_a_list(amount in 0u64..9, hold in 1u64..5, steps in steps()) {
        let mut limit = limit(amount, Span::from_secs(hold));
        let (mut state, mut now) = (limit.fresh(), START);
        let (mut holders, mut names) = (Vec::<Holder>::new(), HashSet::new());
        for step in steps {
            match step {
                Step::Advance(micros) => now = now + Span::from_micros(micros),
                Step::Acquire(cost) => {
                    let capacity = limit.capacity();
                    let live = || holders.iter().filter(|holder| holder.until > now && holder.count > 0);
                    let in_flight: u64 = live().map(|holder| holder.count).sum();
                    let free = capacity.saturating_sub(in_flight);
                    let fits_at = |instant: Timestamp| {
                        let later = live().filter(|holder| holder.until > instant);
                        later.map(|holder| holder.count).sum::<u64>() + cost.max(1) <= capacity
                    };
                    let first = live().map(|holder| holder.until).filter(|end| fits_at(*end)).min();
                    let last = live().map(|holder| holder.until).max();
                    let outcome = limit.charge(&mut state, now, cost);
                    prop_assert_eq!(outcome.is_allowed(), cost.max(1) <= free);
                    if let Some(slip) = outcome.slip() {
                        prop_assert!(cost > 0 && names.insert(slip.at), "{slip:?} was given twice");
                        let until = now + match limit.algorithm() {
                            Algorithm::Concurrency { hold } => hold,
                            other => panic!("{other}"),
                        };
                        prop_assert_eq!((outcome.remaining, slip.until), (free - cost, until));
                        prop_assert_eq!(outcome.reset_after, last.unwrap_or(now).max(until).since(now));
                        holders.push(Holder { charged: limit.clone(), slip, count: cost, until });
                    } else {
                        prop_assert_eq!(outcome.remaining, free);
                        prop_assert_eq!(outcome.reset_after, last.unwrap_or(now).since(now));
                        if !outcome.is_allowed() {
                            prop_assert_eq!(outcome.retry_after(), first.map(|first| first.since(now)));
                        }
                    }
                }
                Step::Release(which, count) if !holders.is_empty() => {
                    let which = which % holders.len();
                    let holder = &mut holders[which];
                    let held = if holder.until > now { holder.count } else { 0 };
                    let freed = limit.refund(&mut state, now, &holder.charged, &holder.slip, count);
                    prop_assert_eq!(freed, held > 0);
                    holder.count = held.saturating_sub(count);
                }
                Step::Renew(which) if !holders.is_empty() => {
                    let which = which % holders.len();
                    let holder = &mut holders[which];
                    let held = holder.until > now && holder.count > 0;
                    prop_assert_eq!(limit.renew(&mut state, now, &holder.charged, &holder.slip), held);
                    let Algorithm::Concurrency { hold } = holder.charged.algorithm() else { panic!() };
                    if held {
                        holder.until = holder.until.max(now + hold);
                    }
                }
                Step::GiveBack(count) => {
                    let charged = limit.clone();
                    prop_assert!(!limit.give_back(&mut state, now, &charged, count), "nobody was named");
                }
                Step::Change(amount, hold) => {
                    let new = self::limit(amount, Span::from_secs(hold));
                    state = new.adopt(&limit, &state, now);
                    limit = new;
                }
                Step::Release(..) | Step::Renew(_) => {}
            }
            // A store may drop what says nothing at any time, and nobody can tell.
            if limit.whole_at(&mut state) <= now {
                state = limit.fresh();
            }
        }
        // However they end, nobody is in flight in the end.
        for (place, holder) in holders.iter().enumerate().filter(|(place, _)| place % 2 == 0) {
            limit.refund(&mut state, now, &holder.charged, &holder.slip, u64::MAX);
            prop_assert!(!limit.renew(&mut state, now, &holder.charged, &holder.slip), "{place}");
        }
        now = now + Span::from_secs(5);
        prop_assert_eq!(limit.peek(&mut state, now, 0).remaining, limit.capacity());
        prop_assert_eq!(used(&state), 0);
    }
}

#[test]
fn who_releases_twice_in_the_same_microsecond_releases_nobody_else() {
    let limit = limit(1, Span::MINUTE);
    let mut state = limit.fresh();
    let first = limit.charge(&mut state, START, 1).slip().unwrap();
    assert!(limit.refund(&mut state, START, &limit, &first, 1));
    assert!(limit.whole_at(&mut state) > START, "its last name must not be forgotten yet");
    let second = limit.charge(&mut state, START, 1).slip().unwrap();
    assert_ne!(first.at, second.at);
    assert!(!limit.refund(&mut state, START, &limit, &first, 1));
    assert_eq!(used(&state), 1);
}

#[test]
fn spending_per_time_and_being_in_flight_do_not_become_each_other() {
    let rate = Limit::new(Algorithm::SlidingLog, Quota::per_hour(5)).unwrap();
    let slots = limit(5, Span::MINUTE);
    let (mut spent, mut held) = (rate.fresh(), slots.fresh());
    rate.charge(&mut spent, START, 5);
    slots.charge(&mut held, START, 5);
    assert_eq!(slots.adopt(&rate, &spent, START), slots.fresh());
    assert_eq!(rate.adopt(&slots, &held, START), rate.fresh());
}

#[test]
fn parts_of_a_limit_in_flight_add_up_to_it() {
    let whole = limit(20, Span::MINUTE);
    let parts = (0..3).map(|index| whole.share(index, 3));
    assert_eq!(parts.map(|part| part.capacity()).collect::<Vec<_>>(), [7, 7, 6]);
    assert_eq!(whole.share(1, 3).algorithm(), whole.algorithm());
}

#[test]
fn a_limit_in_flight_reads_and_prints_as_people_say_it() {
    let read = |rule: &str| {
        let yaml = format!("rules:\n- {{name: api, {rule}}}\n");
        RuleSet::parse("rules.yaml", &yaml).unwrap().rules()[0].limit().to_string()
    };
    assert_eq!(read("limit: 20 in flight"), "20 in flight, hold 60 s (concurrency)");
    assert_eq!(
        read("limit: 20 in flight, algorithm: concurrency, hold: 5m"),
        "20 in flight, hold 5 min (concurrency)"
    );
    assert_eq!(limit(20, Span::MINUTE).bound().to_string(), "at most 20 at any instant");
}

#[test]
fn what_does_not_suit_slots_is_refused_with_what_is_wanted() {
    for (rule, error) in [
        (
            "limit: 20 in flight, algorithm: token_bucket",
            "a limit in flight needs algorithm concurrency, found token_bucket",
        ),
        (
            "limit: 20 per second, algorithm: concurrency",
            r#"concurrency needs a limit like "20 in flight", found 20 per 1 s"#,
        ),
        (
            "limit: 20 in flight, tiers: {by: plan, limits: {pro: 9/s}}",
            r#"concurrency needs a limit like "20 in flight", found 9 per 1 s"#,
        ),
        (
            "limit: 10001 in flight",
            "concurrency remembers each slot, so at most 10000 can be in flight, found 10001",
        ),
        ("limit: 20 in flight, hold: 2h", "hold must be from 1 s to 60 min, found 2 h"),
        ("limit: 20 in flight, hold: 500ms", "hold must be from 1 s to 60 min, found 500 ms"),
        (
            "limit: 20 in flight, hold: soon",
            r#"hold: unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found "soon""#,
        ),
        ("limit: 20/s, hold: 5s", "hold needs algorithm concurrency, found token_bucket"),
        ("limit: 20 in flight, queue: 5", "queue needs algorithm leaky_bucket, found concurrency"),
        ("limit: 20 in flight, burst: 5", "burst needs algorithm token_bucket, found concurrency"),
        (
            "limit: 20 in flight, accuracy: leased",
            "accuracy leased needs token_bucket, fixed_window or sliding_window, found concurrency",
        ),
        (
            "limit: 20 in flight, accuracy: synced",
            "accuracy synced needs token_bucket, fixed_window or sliding_window, found concurrency",
        ),
        (
            "limit: 20 in flight, hot: leased",
            "hot needs token_bucket, fixed_window or sliding_window, found concurrency",
        ),
        (
            "limit: 20 in flight, accuracy: split",
            "accuracy split needs a limit per time, found concurrency",
        ),
        ("limit: 20 in flight, shards: 4", "shards needs a limit per time, found concurrency"),
        (
            "limit: 20 in flight, on_store_failure: local",
            "on_store_failure must be allow or deny with algorithm concurrency, found local",
        ),
    ] {
        let yaml = format!("rules:\n- {{name: api, {rule}}}\n");
        let told = RuleSet::parse("rules.yaml", &yaml).unwrap_err().to_string();
        assert_eq!(told, format!(r#"rules.yaml:2: rule "api": {error}"#));
    }
}

#[test]
fn headers_say_that_requests_are_counted_while_they_last() {
    let limit = limit(20, Span::MINUTE);
    let outcome = limit.charge(&mut limit.fresh(), START, 1);
    let policy = Policy { rule: "up".into(), limit: limit.into(), outcome, shadow: false };
    let decision = Decision::of([policy].into_iter().collect());
    let headers = HeaderStyle::default().headers(&decision, START);
    let policy = headers.iter().find(|(name, _)| *name == "ratelimit-policy");
    assert_eq!(policy.unwrap().1, r#""up";q=20;qu="concurrent-requests""#);
}
