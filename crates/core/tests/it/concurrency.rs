//! Slots in flight, compared with a naive list of holders.

use std::collections::HashSet;

use proptest::prelude::*;
use tidegate_core::algorithm::Concurrency;
use tidegate_core::{
    Algorithm, Decision, HeaderStyle, Limit, Quota, RefundToken, RuleIndex, RuleOutcome, Span,
    State, Timestamp,
};

/// Some time in 2026, on no round boundary.
const START: Timestamp = Timestamp::from_micros(1_780_000_000_123_457);

fn limit(amount: u64, hold: Span) -> Limit {
    Limit::new(Algorithm::Concurrency { hold }, Quota::in_flight(amount)).unwrap()
}

/// The number of slots in use at an instant.
fn used(state: &State, now: Timestamp) -> u64 {
    let State::Slots(slots) = state else { panic!("{state:?}") };
    slots.used(now)
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Acquire(u64),
    /// Release so many of the n-th that was acquired, held or not.
    Release(usize, u64),
    /// Renew the n-th that was acquired, whether it is held, expired, lost or released.
    Renew(usize),
    /// The store loses its state.
    Lose,
    GiveBack(u64),
    /// Another limit from here on.
    Change(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop_oneof![Just(0), Just(1), 0u64..600_000, 0u64..4_000_000, 0u64..70_000_000]
            .prop_map(Step::Advance),
        6 => (0u64..5).prop_map(Step::Acquire),
        5 => (any::<usize>(), 1u64..4).prop_map(|(which, count)| Step::Release(which, count)),
        3 => any::<usize>().prop_map(Step::Renew),
        1 => Just(Step::Lose),
        1 => (1u64..4).prop_map(Step::GiveBack),
        1 => (0u64..9, 1u64..5).prop_map(|(amount, hold)| Step::Change(amount, hold)),
    ];
    prop::collection::vec(step, 1..120)
}

/// One acquire as the naive list notes it.
struct Holder {
    charged: Limit,
    refund_token: RefundToken,
    cost: u64,
    /// Slots that were not released.
    count: u64,
    /// The end of the hold; the epoch once the store has lost the slot.
    until: Timestamp,
    /// The time at which the last slot was released.
    released: Option<Timestamp>,
}

impl Holder {
    fn is_held(&self, now: Timestamp) -> bool {
        self.until > now && self.count > 0
    }

    /// Returns whether the store has no record of it.
    fn is_forgotten(&self, now: Timestamp) -> bool {
        self.until + Concurrency::RELEASE_MEMORY <= now
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_held_renewed_released_and_lost_as_on_a_naive_list(amount in 0u64..9, hold in 1u64..5, steps in steps()) {
        let mut limit = limit(amount, Span::from_secs(hold));
        let (mut state, mut now) = (limit.fresh(), START);
        let (mut holders, mut names) = (Vec::<Holder>::new(), HashSet::new());
        for step in steps {
            match step {
                Step::Advance(micros) => now = now + Span::from_micros(micros),
                Step::Lose => {
                    state = limit.fresh();
                    for holder in &mut holders {
                        holder.until = Timestamp::EPOCH;
                        // Releases are lost as well.
                        holder.released = holder.released.map(|_| Timestamp::EPOCH);
                    }
                    // At the same instant a fresh state would give out the same ids again.
                    now = now + Span::from_millis(1);
                }
                Step::Acquire(cost) => {
                    let capacity = limit.capacity();
                    let live = || holders.iter().filter(|holder| holder.is_held(now));
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
                    if let Some(refund_token) = outcome.refund_token() {
                        prop_assert!(cost > 0 && names.insert(refund_token.at), "{refund_token:?} was given twice");
                        let until = now + match limit.algorithm() {
                            Algorithm::Concurrency { hold } => hold,
                            other => panic!("{other}"),
                        };
                        prop_assert_eq!((outcome.remaining, refund_token.until), (free - cost, until));
                        prop_assert_eq!(outcome.reset_after, last.unwrap_or(now).max(until).since(now));
                        let charged = limit.clone();
                        holders.push(Holder { charged, refund_token, cost, count: cost, until, released: None });
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
                    let was_held = holder.is_held(now);
                    let freed = limit.refund(&mut state, now, &holder.charged, &holder.refund_token, count);
                    prop_assert_eq!(freed, was_held);
                    if holder.is_forgotten(now) {
                        // The store knows nothing of it, so the release is of all.
                        holder.count = 0;
                    }
                    holder.count = holder.count.saturating_sub(count);
                    if holder.count == 0 {
                        holder.released.get_or_insert(now);
                    }
                }
                Step::Renew(which) if !holders.is_empty() => {
                    let which = which % holders.len();
                    let holder = &mut holders[which];
                    let Algorithm::Concurrency { hold } = holder.charged.algorithm() else { panic!() };
                    let renewed = limit.renew(&mut state, now, &holder.charged, &holder.refund_token, holder.cost);
                    match holder.released {
                        // Afterwards a store that has lost track of the slot may count it again.
                        Some(released) if released + Concurrency::RELEASE_MEMORY <= now => {}
                        Some(_) => prop_assert!(!renewed, "a released slot was revived"),
                        None => prop_assert!(renewed, "a slot of a living holder does not count"),
                    }
                    if renewed {
                        if holder.count == 0 || holder.is_forgotten(now) {
                            // Inserted again, as it was acquired.
                            holder.count = holder.cost;
                        }
                        holder.released = None;
                        holder.until = holder.until.max(now + hold);
                    }
                }
                Step::GiveBack(count) => {
                    let charged = limit.clone();
                    prop_assert!(!limit.refund_latest(&mut state, now, &charged, count), "no slot was named");
                }
                Step::Change(amount, hold) => {
                    let new = self::limit(amount, Span::from_secs(hold));
                    state = new.migrate(&limit, &state, now);
                    limit = new;
                }
                Step::Release(..) | Step::Renew(_) => {}
            }
            // A store may drop an expired state at any time without an effect.
            if limit.expires_at(&mut state) <= now {
                state = limit.fresh();
            }
        }
        // At the end no slot is in use.
        for (place, holder) in holders.iter().enumerate().filter(|(place, _)| place % 2 == 0) {
            limit.refund(&mut state, now, &holder.charged, &holder.refund_token, u64::MAX);
            let renewed = limit.renew(&mut state, now, &holder.charged, &holder.refund_token, holder.cost);
            prop_assert!(!renewed, "{place}");
        }
        now = now + Span::from_secs(5);
        prop_assert_eq!(limit.peek(&mut state, now, 0).remaining, limit.capacity());
        prop_assert_eq!(used(&state, now), 0);
    }
}

/// All holders continue for longer than the hold while the store is unreachable or restarts empty.
#[test]
fn outages_longer_than_the_hold_do_not_add_up() {
    for loses in [false, true] {
        let limit = limit(3, Span::SECOND);
        let (mut state, mut now, mut in_flight) = (limit.fresh(), START, Vec::new());
        for outage in 0..4 {
            while let Some(refund_token) = limit.charge(&mut state, now, 1).refund_token() {
                in_flight.push(refund_token);
                now = now + Span::from_millis(1);
            }
            now = now + Span::from_secs(if outage % 2 == 0 { 2 } else { 90 });
            if loses {
                state = limit.fresh();
            }
            for refund_token in &in_flight {
                assert!(limit.renew(&mut state, now, &limit, refund_token, 1));
            }
            assert_eq!(used(&state, now), 3, "outage {outage}");
        }
        assert_eq!(in_flight.len(), 3);
    }
}

#[test]
fn new_requests_are_denied_until_renewed_slots_fit_the_limit() {
    let limit = limit(2, Span::SECOND);
    let (mut state, mut now) = (limit.fresh(), START);
    let take = |state: &mut State, now| limit.charge(state, now, 1).refund_token();
    let old = [take(&mut state, now).unwrap(), take(&mut state, now).unwrap()];
    now = now + Span::from_secs(2);
    let new = [take(&mut state, now).unwrap(), take(&mut state, now).unwrap()];
    for refund_token in &old {
        assert!(limit.renew(&mut state, now, &limit, refund_token, 1));
    }
    assert_eq!(used(&state, now), 4);
    for refund_token in [old[0], new[0], new[1]] {
        assert_eq!(take(&mut state, now), None);
        assert!(limit.refund(&mut state, now, &limit, &refund_token, 1));
    }
    assert!(take(&mut state, now).is_some());
}

#[test]
fn expired_slots_and_tombstones_are_bounded() {
    let limit = limit(100, Span::SECOND);
    let (mut state, mut now) = (limit.fresh(), START);
    let (mut most, mut refund_tokens) = (0, Vec::new());
    for _ in 0..40 {
        refund_tokens
            .extend((0..100).map(|_| limit.charge(&mut state, now, 1).refund_token().unwrap()));
        now = now + Span::SECOND;
        let State::Slots(slots) = &state else { panic!("{state:?}") };
        most = most.max(slots.taken().len());
    }
    assert!(most <= Concurrency::MAX_EXPIRED + 200, "{most} entries");
    for refund_token in &refund_tokens {
        assert!(!limit.refund(&mut state, now, &limit, refund_token, 1), "it has expired");
    }
    limit.peek(&mut state, now, 1);
    let State::Slots(slots) = &state else { panic!("{state:?}") };
    assert!(slots.taken().len() <= Concurrency::MAX_EXPIRED + 1, "{}", slots.taken().len());
}

#[test]
fn a_second_release_in_the_same_microsecond_releases_no_other_slot() {
    let limit = limit(1, Span::MINUTE);
    let mut state = limit.fresh();
    let first = limit.charge(&mut state, START, 1).refund_token().unwrap();
    assert!(limit.refund(&mut state, START, &limit, &first, 1));
    assert!(limit.expires_at(&mut state) > START, "its last name must not be forgotten yet");
    let second = limit.charge(&mut state, START, 1).refund_token().unwrap();
    assert_ne!(first.at, second.at);
    assert!(!limit.refund(&mut state, START, &limit, &first, 1));
    assert_eq!(used(&state, START), 1);
}

#[test]
fn usage_per_window_and_slots_in_flight_are_not_converted() {
    let rate = Limit::new(Algorithm::SlidingLog, Quota::per_hour(5)).unwrap();
    let slots = limit(5, Span::MINUTE);
    let (mut spent, mut held) = (rate.fresh(), slots.fresh());
    rate.charge(&mut spent, START, 5);
    slots.charge(&mut held, START, 5);
    assert_eq!(slots.migrate(&rate, &spent, START), slots.fresh());
    assert_eq!(rate.migrate(&slots, &held, START), rate.fresh());
}

#[test]
fn shares_of_a_limit_in_flight_add_up_to_it() {
    let whole = limit(20, Span::MINUTE);
    let parts = (0..3).map(|index| whole.share(index, 3));
    assert_eq!(parts.map(|part| part.capacity()).collect::<Vec<_>>(), [7, 7, 6]);
    assert_eq!(whole.share(1, 3).algorithm(), whole.algorithm());
}

#[test]
fn headers_of_a_limit_in_flight_have_the_concurrency_unit() {
    let limit = limit(20, Span::MINUTE);
    let outcome = limit.charge(&mut limit.fresh(), START, 1);
    let policy = RuleOutcome {
        rule_index: RuleIndex(0),
        rule: "up".into(),
        limit: limit.into(),
        outcome,
        shadow: false,
    };
    let decision = Decision::of([policy].into_iter().collect());
    let headers = HeaderStyle::default().headers(&decision, START);
    let policy = headers.iter().find(|(name, _)| *name == "ratelimit-policy");
    assert_eq!(policy.unwrap().1, r#""up";q=20;qu="concurrent-requests""#);
}
