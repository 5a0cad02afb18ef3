//! The shared vectors, checked against the Rust code. The Lua scripts are checked against the same files.

#[path = "../vectors/case.rs"]
mod case;
#[path = "../vectors/lease_case.rs"]
mod lease_case;

use case::{Case, integers};
use lease_case::LeaseCase;
use tidegate_core::{LeaseSet, Limit, RefundToken, Timestamp};

fn check(file: &str) {
    let cases: Vec<Case> = serde_json::from_str(file).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let mut limit = case.limit.limit();
        let mut state = limit.fresh();
        let mut charged: Vec<Option<(Limit, RefundToken, u64)>> = Vec::new();
        for (number, step) in case.steps.iter().enumerate() {
            let place = format!("{}, {}, step {number}", limit.algorithm(), case.name);
            let now = Timestamp::from_micros(step.at);
            if let Some(numbers) = &step.limit {
                let new = numbers.limit();
                state = new.migrate(&limit, &state, now);
                limit = new;
                // The vectors leave refunds across a change of limit to the property tests.
                charged.iter_mut().for_each(|refund_token| *refund_token = None);
            }
            charged.push(None);
            if let Some(earlier) = step.refund {
                if let Some((charged_by, refund_token, cost)) = charged[earlier].clone() {
                    limit.refund(&mut state, now, &charged_by, &refund_token, cost);
                }
                charged[earlier].take_if(|(charged_by, ..)| !charged_by.is_concurrency());
            } else if let Some(earlier) = step.renew {
                if let Some((charged_by, refund_token, cost)) = &charged[earlier] {
                    limit.renew(&mut state, now, charged_by, refund_token, *cost);
                }
            } else if step.lose.is_some() {
                state = limit.fresh();
            } else {
                let cost = step.cost.unwrap();
                let outcome = limit.charge(&mut state, now, cost);
                assert_eq!(Some(outcome.is_allowed()), step.allowed, "{place}: allowed");
                assert_eq!(Some(outcome.delay().as_micros()), step.delay, "{place}: delay");
                let wait = match outcome.retry_after() {
                    Some(wait) => Some(i64::try_from(wait.as_micros()).unwrap()),
                    None if outcome.is_allowed() => None,
                    None => Some(-1),
                };
                assert_eq!(wait, step.retry_after, "{place}: retry_after");
                assert_eq!(Some(outcome.remaining), step.remaining, "{place}: remaining");
                assert_eq!(
                    Some(outcome.reset_after.as_micros()),
                    step.reset_after,
                    "{place}: reset_after"
                );
                charged[number] =
                    outcome.refund_token().map(|refund_token| (limit.clone(), refund_token, cost));
            }
            assert_eq!(integers(&limit, &mut state, now), step.state, "{place}: state");
        }
    }
}

#[test]
fn token_bucket_answers_its_vectors() {
    check(include_str!("../vectors/token_bucket.json"));
}

#[test]
fn leaky_bucket_answers_its_vectors() {
    check(include_str!("../vectors/leaky_bucket.json"));
}

#[test]
fn fixed_window_answers_its_vectors() {
    check(include_str!("../vectors/fixed_window.json"));
}

#[test]
fn sliding_window_answers_its_vectors() {
    check(include_str!("../vectors/sliding_window.json"));
}

#[test]
fn sliding_log_answers_its_vectors() {
    check(include_str!("../vectors/sliding_log.json"));
}

#[test]
fn concurrency_answers_its_vectors() {
    check(include_str!("../vectors/concurrency.json"));
}

#[test]
fn lease_requests_match_their_vectors() {
    let cases: Vec<LeaseCase> =
        serde_json::from_str(include_str!("../vectors/holds.json")).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let mut limit = case.limit.limit();
        let (mut state, mut leases) = (limit.fresh(), LeaseSet::default());
        for (number, step) in case.steps.iter().enumerate() {
            let place = format!("{}, {}, step {number}", limit.algorithm(), case.name);
            let now = Timestamp::from_micros(step.at);
            if let Some(numbers) = &step.limit {
                let new = numbers.limit();
                state = new.migrate(&limit, &state, now);
                limit = new;
            }
            let granted = limit.apply_lease_request(&mut state, &mut leases, now, &step.request());
            step.assert_grant(&granted, &place);
            step.assert_leases(&leases, &place);
            assert_eq!(integers(&limit, &mut state, now), step.state, "{place}: state");
        }
    }
}

/// The textbook's words, counted off its own vectors.
#[test]
fn a_boundary_attack_passes_40_through_a_fixed_window_and_20_through_a_log() {
    let passed = |file: &str| {
        let cases: Vec<Case> = serde_json::from_str(file).unwrap();
        let case = cases.iter().find(|case| case.name.starts_with("20 at 85 %")).unwrap();
        case.steps.iter().filter(|step| step.allowed == Some(true)).count()
    };
    assert_eq!(passed(include_str!("../vectors/fixed_window.json")), 40);
    assert_eq!(passed(include_str!("../vectors/sliding_log.json")), 20);
}

#[test]
fn a_burst_of_30_into_50_leaves_20_and_then_a_steady_5_per_second_is_never_denied() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../vectors/token_bucket.json")).unwrap();
    let steps = &cases.iter().find(|case| case.name.starts_with("burst of 30")).unwrap().steps;
    assert_eq!(steps[0].remaining, Some(20));
    assert!(steps.len() > 50 && steps.iter().all(|step| step.allowed == Some(true)));
}
