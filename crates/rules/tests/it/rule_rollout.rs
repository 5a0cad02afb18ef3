//! Whom a rollout reaches.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Quota, Request, Timestamp};
use tidegate_rules::{Because, Condition, Mismatch, Mode, Rollout, Rule, RuleSet, Test};

fn rule(name: &str) -> Rule {
    Rule::new(name, Algorithm::TokenBucket, Quota::per_second(1)).unwrap().with_per("user").unwrap()
}

fn client(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

fn share(per_million: u32) -> Rollout {
    Rollout::of_million(per_million).unwrap()
}

/// The first override of these shares that reaches a client, all of them matching it.
fn reached_by(shares: &[Option<Rollout>], request: &Request<'_>) -> Because<'static> {
    let all = shares.iter().map(|_| (Vec::new(), Quota::per_second(2), None));
    let mut rule = rule("api").with_overrides(all).unwrap();
    for (index, share) in shares.iter().enumerate() {
        if let Some(share) = *share {
            rule = rule.with_override_rollout(index, share).unwrap();
        }
    }
    match rule.limit_for(request, Timestamp::EPOCH).because {
        Because::Override(index) => Because::Override(index),
        _ => Because::Rule,
    }
}

#[test]
fn a_share_of_the_clients_is_reached() {
    let clients: Vec<String> = (0..100_000).map(|number| format!("user-{number}")).collect();
    for (per_million, spread) in [(1_000, 10), (100_000, 95), (500_000, 159), (990_000, 32)] {
        let rule = rule("api").with_rollout(share(per_million)).unwrap();
        let reached = clients.iter().filter(|user| rule.matches(&client(user)).is_ok()).count();
        let wanted = i64::from(per_million) / 10;
        let off = i64::try_from(reached).unwrap() - wanted;
        // The clients are fixed, so this passes always or never; eight standard deviations are a bug.
        assert!(off.abs() <= 8 * spread, "{reached} of 100000 at {per_million} per million");
    }
}

#[test]
fn rules_choose_their_clients_apart() {
    let half = share(500_000);
    let (one, other) =
        (rule("a").with_rollout(half).unwrap(), rule("b").with_rollout(half).unwrap());
    let users: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
    let both = users.iter().filter(|user| {
        let request = client(user);
        one.reaches(&request) && other.reaches(&request)
    });
    let both = both.count();
    assert!((2_100..2_900).contains(&both), "{both} of 10000 in two halves");
}

#[test]
fn who_is_left_out_is_told_so() {
    let rule = rule("api").with_rollout(Rollout::NOBODY).unwrap();
    let request = client("alice");
    let mismatch = rule.matches(&request).unwrap_err();
    assert_eq!(mismatch, Mismatch::Rollout(Rollout::NOBODY));
    assert_eq!(
        mismatch.to_string(),
        "the client is not among the 0% that the rule is rolled out to"
    );
    // A condition that does not hold comes first, as it does without a rollout.
    let rule = rule.with_condition(Condition::new("path", Test::Present));
    assert!(matches!(rule.matches(&request), Err(Mismatch::Condition { .. })));
}

#[test]
fn a_rule_that_is_off_reaches_nobody() {
    let rule = rule("api").with_rollout(Rollout::EVERYBODY).unwrap();
    assert!(rule.reaches(&client("alice")) && rule.reaches(&Request::new()));
    assert!(!rule.with_mode(Mode::Off).reaches(&client("alice")));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_larger_share_keeps_everybody_of_a_smaller_one(
        user in ".{0,20}", name in "[a-z]{1,8}", one in 0u32..=1_000_000, other in 0u32..=1_000_000,
    ) {
        let (small, large) = (share(one.min(other)), share(one.max(other)));
        let reaches = |share| rule(&name).with_rollout(share).unwrap().reaches(&client(&user));
        prop_assert!(!reaches(small) || reaches(large));
        prop_assert!(reaches(Rollout::EVERYBODY) && !reaches(Rollout::NOBODY));
    }

    /// Not the other rules, nor conditions, attributes that name nobody, or the rule's own limits.
    #[test]
    fn nothing_but_the_rules_name_and_the_client_decides(
        user in "[a-z]{0,6}", other in "[a-z]{1,6}", per_million in 0u32..=1_000_000,
    ) {
        let share = share(per_million);
        let plain = rule("api").with_rollout(share).unwrap();
        let busy = Rule::new("api", Algorithm::FixedWindow, Quota::per_day(7)).unwrap()
            .with_per("user").unwrap()
            .with_condition(Condition::new("path", Test::like("/v1/**")))
            .with_overrides([(Vec::new(), Quota::per_second(9), None)]).unwrap()
            .with_mode(Mode::Shadow)
            .with_rollout(share).unwrap();
        let first = rule("first").with_rollout(share).unwrap();
        let rules = RuleSet::new(vec![first, busy]).unwrap();
        let request = client(&user).with("path", "/v1/a").unwrap().with("other", &*other).unwrap();
        let found = rules.matching(&request).iter().any(|rule| rule.name() == "api");
        prop_assert_eq!(found, plain.matches(&client(&user)).is_ok());
        prop_assert_eq!(found, plain.reaches(&client(&user)));
        prop_assert_eq!(found, rules.rule("api").unwrap().reaches(&request));
    }

    #[test]
    fn an_override_outside_its_share_makes_way_for_the_next(
        user in "[a-z]{0,6}",
        shares in proptest::collection::vec(proptest::option::of(0u32..=1_000_000), 0..6),
    ) {
        let shares: Vec<Option<Rollout>> =
            shares.into_iter().map(|per_million| per_million.map(share)).collect();
        let request = client(&user);
        // The rule's own rollout would draw the same, wherever the override stands.
        let reaches = |share: &Option<Rollout>| {
            share.is_none_or(|share| rule("api").with_rollout(share).unwrap().reaches(&request))
        };
        let wanted = shares.iter().position(reaches).map_or(Because::Rule, Because::Override);
        prop_assert_eq!(reached_by(&shares, &request), wanted);
    }
}
