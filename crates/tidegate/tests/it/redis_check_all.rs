//! Checks that are charged all or none, and refunds of the latest usage, on Redis and on a cluster.

use std::sync::Arc;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::RuleIndex;
use tidegate::{
    Algorithm, CheckRequest, CheckTarget, Decision, DecisionStatus, Limit, Limiter, Quota, Request,
    Rule, RuleSet,
};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

/// Returns a limiter with windows that outlast every test. It caches denials, as by default.
async fn limiter(url: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let config =
        config.with_timeout(WAIT_TIMEOUT).unwrap().with_connect_timeout(WAIT_TIMEOUT).unwrap();
    let store = Arc::new(RedisStore::connect(config).await.unwrap());
    let rule = |name, algorithm, amount| {
        let rule = Rule::new(name, algorithm, Quota::per(amount, Quota::MAX_WINDOW));
        rule.unwrap().with_per("client").unwrap()
    };
    let rules = vec![
        rule("log", Algorithm::SlidingLog, 10),
        rule("window", Algorithm::FixedWindow, 10),
        rule("sliding", Algorithm::SlidingWindow, 10),
        rule("bucket", Algorithm::TokenBucket, 10),
    ];
    let rules = RuleSet::default().with_named(rules).unwrap();
    Limiter::builder().rules(rules).store(store).build()
}

fn request_from(client: &str, cost: u64) -> Request<'static> {
    Request::new().with("client", client.to_owned()).unwrap().cost(cost)
}

fn check_of_rule<'a>(
    request: &'a Request<'static>,
    rule_index: usize,
) -> CheckRequest<'a, 'static> {
    CheckRequest { request, target: CheckTarget::Rule(RuleIndex(rule_index)) }
}

fn outcomes(decisions: &[Decision]) -> Vec<(DecisionStatus, u64)> {
    let remaining = |decision: &Decision| decision.strictest_rule().unwrap().outcome.remaining;
    decisions.iter().map(|decision| (decision.status(), remaining(decision))).collect()
}

/// Each check gets its own outcome, also when another check is denied by the cache or in another slot.
async fn expect_all_or_none_with_an_outcome_for_each(limiter: &Limiter<RedisStore>) {
    let (allow, deny) = (DecisionStatus::Allow, DecisionStatus::Deny);
    for (rule_index, client) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let (cheap, costly, other_client) =
            (request_from(client, 1), request_from(client, 6), request_from("other client", 1));
        let checks = [
            check_of_rule(&other_client, rule_index),
            check_of_rule(&costly, rule_index),
            check_of_rule(&cheap, (rule_index + 1) % 4),
        ];
        let first = limiter.check_all(&checks).await;
        assert_eq!(outcomes(&first), [(allow, 9), (allow, 4), (allow, 9)]);
        for _ in 0..3 {
            let denied = limiter.check_all(&checks).await;
            assert_eq!(outcomes(&denied), [(allow, 9), (deny, 4), (allow, 9)], "{client}");
        }
        // A denied peek prevents charges that would fit.
        let peek = request_from(client, 0);
        assert!(
            limiter.check_all(&[check_of_rule(&request_from(client, 4), rule_index)]).await[0]
                .is_allowed()
        );
        let prevented = limiter
            .check_all(&[
                check_of_rule(&other_client, rule_index),
                check_of_rule(&peek, rule_index),
            ])
            .await;
        assert_eq!(outcomes(&prevented), [(allow, 9), (deny, 0)]);
        assert!(
            limiter
                .reset(limiter.rules().rules()[(rule_index + 1) % 4].name(), &cheap)
                .await
                .is_ok()
        );
        assert!(
            limiter.reset(limiter.rules().rules()[rule_index].name(), &other_client).await.is_ok()
        );
    }
}

/// A refund makes tokens available at once, despite a cached denial.
async fn expect_refunded_tokens_available_at_once(limiter: &Limiter<RedisStore>) {
    for rule_index in 0..4 {
        let (three, four, all) =
            (request_from("giver", 3), request_from("giver", 4), request_from("giver", u64::MAX));
        for _ in 0..3 {
            assert!(limiter.check_all(&[check_of_rule(&three, rule_index)]).await[0].is_allowed());
        }
        assert!(!limiter.check_all(&[check_of_rule(&three, rule_index)]).await[0].is_allowed());
        let after = limiter.refund_latest(check_of_rule(&four, rule_index)).await.unwrap();
        assert_eq!(outcomes(&[after]), [(DecisionStatus::Allow, 5)]);
        assert!(limiter.check_all(&[check_of_rule(&three, rule_index)]).await[0].is_allowed());
        let full = limiter.refund_latest(check_of_rule(&all, rule_index)).await.unwrap();
        assert_eq!(outcomes(&[full]), [(DecisionStatus::Allow, 10)]);
        assert_eq!(
            outcomes(&[limiter.refund_latest(check_of_rule(&all, rule_index)).await.unwrap()])[0].1,
            10
        );
    }
}

/// Two callers alternate different limits on one key.
async fn expect_alternating_limits_to_keep_usage(limiter: &Limiter<RedisStore>) {
    let limit = |amount| {
        let quota = Quota::per(amount, Quota::MAX_WINDOW);
        Arc::new(Limit::new(Algorithm::TokenBucket, quota).unwrap())
    };
    let (small, large, one) = (limit(10), limit(100), request_from("flipping", 1));
    let check_with_limit = |limit| CheckRequest {
        request: &one,
        target: CheckTarget::RuleWithLimit(RuleIndex(3), limit),
    };
    let mut remaining_amounts = Vec::new();
    for _ in 0..4 {
        for limit in [&small, &large] {
            remaining_amounts
                .push(outcomes(&limiter.check_all(&[check_with_limit(limit)]).await)[0].1);
        }
    }
    assert_eq!(remaining_amounts, [9, 89, 7, 78, 6, 67, 5, 56]);
    let both = limiter.check_all(&[check_with_limit(&large), check_with_limit(&small)]).await;
    assert_eq!(outcomes(&both).iter().map(|outcome| outcome.1).collect::<Vec<_>>(), [55, 54]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_on_redis_are_charged_all_or_none() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let limiter = limiter(&server.url()).await;
    expect_all_or_none_with_an_outcome_for_each(&limiter).await;
    expect_refunded_tokens_available_at_once(&limiter).await;
    expect_alternating_limits_to_keep_usage(&limiter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_on_a_cluster_are_charged_all_or_none() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let limiter = limiter(&cluster.url()).await;
    expect_all_or_none_with_an_outcome_for_each(&limiter).await;
    expect_refunded_tokens_available_at_once(&limiter).await;
    expect_alternating_limits_to_keep_usage(&limiter).await;
    assert_eq!(limiter.store().counts().lost, 0);
}
