//! The clients that a rollout includes.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Quota, Request, Timestamp};
use tidegate_rules::{
    Condition, LimitOrigin, Mode, Rollout, Rule, RuleMismatch, RuleSet, ValueTest,
};

fn rule(name: &str) -> Rule {
    Rule::new(name, Algorithm::TokenBucket, Quota::per_second(1)).unwrap().with_per("user").unwrap()
}

fn client(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

fn share(per_million: u32) -> Rollout {
    Rollout::from_millionths(per_million).unwrap()
}

/// Returns the first override with a share that includes the client. All overrides match the client.
fn first_including_override(
    shares: &[Option<Rollout>],
    request: &Request<'_>,
) -> LimitOrigin<'static> {
    let all = shares.iter().map(|_| (Vec::new(), Quota::per_second(2), None));
    let mut rule = rule("api").with_overrides(all).unwrap();
    for (index, share) in shares.iter().enumerate() {
        if let Some(share) = *share {
            rule = rule.with_override_rollout(index, share).unwrap();
        }
    }
    match rule.limit_for(request, Timestamp::EPOCH).origin {
        LimitOrigin::Override(index) => LimitOrigin::Override(index),
        _ => LimitOrigin::Rule,
    }
}

#[test]
fn rollout_includes_the_given_share_of_clients() {
    let clients: Vec<String> = (0..100_000).map(|number| format!("user-{number}")).collect();
    for (per_million, spread) in [(1_000, 10), (100_000, 95), (500_000, 159), (990_000, 32)] {
        let rule = rule("api").with_rollout(share(per_million)).unwrap();
        let included = clients.iter().filter(|user| rule.matches(&client(user)).is_ok()).count();
        let wanted = i64::from(per_million) / 10;
        let off = i64::try_from(included).unwrap() - wanted;
        // The clients are fixed, so the result is deterministic; eight standard deviations are a bug.
        assert!(off.abs() <= 8 * spread, "{included} of 100000 at {per_million} per million");
    }
}

#[test]
fn rollouts_of_different_rules_are_independent() {
    let half = share(500_000);
    let (one, other) =
        (rule("a").with_rollout(half).unwrap(), rule("b").with_rollout(half).unwrap());
    let users: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
    let both = users.iter().filter(|user| {
        let request = client(user);
        one.applies_to_client(&request) && other.applies_to_client(&request)
    });
    let both = both.count();
    assert!((2_100..2_900).contains(&both), "{both} of 10000 in two halves");
}

#[test]
fn excluded_client_gets_a_rollout_mismatch() {
    let rule = rule("api").with_rollout(Rollout::NO_CLIENTS).unwrap();
    let request = client("alice");
    let mismatch = rule.matches(&request).unwrap_err();
    assert_eq!(mismatch, RuleMismatch::Rollout(Rollout::NO_CLIENTS));
    assert_eq!(
        mismatch.to_string(),
        "the client is not among the 0% that the rule is rolled out to"
    );
    // A condition that is not satisfied is reported first, as without a rollout.
    let rule = rule.with_condition(Condition::new("path", ValueTest::Present));
    assert!(matches!(rule.matches(&request), Err(RuleMismatch::Condition { .. })));
}

#[test]
fn rule_that_is_off_applies_to_no_client() {
    let rule = rule("api").with_rollout(Rollout::ALL_CLIENTS).unwrap();
    assert!(rule.applies_to_client(&client("alice")) && rule.applies_to_client(&Request::new()));
    assert!(!rule.with_mode(Mode::Off).applies_to_client(&client("alice")));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn larger_rollout_includes_all_clients_of_a_smaller_one(
        user in ".{0,20}", name in "[a-z]{1,8}", one in 0u32..=1_000_000, other in 0u32..=1_000_000,
    ) {
        let (small, large) = (share(one.min(other)), share(one.max(other)));
        let applies_to_client = |share| rule(&name).with_rollout(share).unwrap().applies_to_client(&client(&user));
        prop_assert!(!applies_to_client(small) || applies_to_client(large));
        prop_assert!(applies_to_client(Rollout::ALL_CLIENTS) && !applies_to_client(Rollout::NO_CLIENTS));
    }

    /// Other rules, conditions, attributes outside `per` and the rule's limits have no influence.
    #[test]
    fn rollout_depends_only_on_rule_name_and_client(
        user in "[a-z]{0,6}", other in "[a-z]{1,6}", per_million in 0u32..=1_000_000,
    ) {
        let share = share(per_million);
        let plain = rule("api").with_rollout(share).unwrap();
        let busy = Rule::new("api", Algorithm::FixedWindow, Quota::per_day(7)).unwrap()
            .with_per("user").unwrap()
            .with_condition(Condition::new("path", ValueTest::like("/v1/**")))
            .with_overrides([(Vec::new(), Quota::per_second(9), None)]).unwrap()
            .with_mode(Mode::Shadow)
            .with_rollout(share).unwrap();
        let first = rule("first").with_rollout(share).unwrap();
        let rules = RuleSet::new(vec![first, busy]).unwrap();
        let request = client(&user).with("path", "/v1/a").unwrap().with("other", &*other).unwrap();
        let found = rules.matching(&request).iter().any(|rule| rule.name() == "api");
        prop_assert_eq!(found, plain.matches(&client(&user)).is_ok());
        prop_assert_eq!(found, plain.applies_to_client(&client(&user)));
        prop_assert_eq!(found, rules.rule("api").unwrap().applies_to_client(&request));
    }

    #[test]
    fn override_that_excludes_the_client_yields_to_the_next(
        user in "[a-z]{0,6}",
        shares in proptest::collection::vec(proptest::option::of(0u32..=1_000_000), 0..6),
    ) {
        let shares: Vec<Option<Rollout>> =
            shares.into_iter().map(|per_million| per_million.map(share)).collect();
        let request = client(&user);
        // The rule's own rollout uses the same position, at any index of the override.
        let applies_to_client = |share: &Option<Rollout>| {
            share.is_none_or(|share| rule("api").with_rollout(share).unwrap().applies_to_client(&request))
        };
        let wanted = shares.iter().position(applies_to_client).map_or(LimitOrigin::Rule, LimitOrigin::Override);
        prop_assert_eq!(first_including_override(&shares, &request), wanted);
    }
}
