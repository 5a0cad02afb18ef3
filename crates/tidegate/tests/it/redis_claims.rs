//! Claims that are decided together, and giving back, through Redis and through a cluster.

use std::sync::Arc;

use tidegate::{
    Algorithm, CheckRequest, CheckTarget, Decision, DecisionStatus, Limit, Limiter, Quota,
    RedisConfig, RedisStore, Request, Rule, RuleIndex, RuleSet,
};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];

/// So long a window that no test meets its end; denials are remembered as by default.
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

fn of(client: &str, cost: u64) -> Request<'static> {
    Request::new().with("client", client.to_owned()).unwrap().cost(cost)
}

fn under<'a>(request: &'a Request<'static>, place: usize) -> CheckRequest<'a, 'static> {
    CheckRequest { request, target: CheckTarget::Rule(RuleIndex(place)) }
}

fn told(decisions: &[Decision]) -> Vec<(DecisionStatus, u64)> {
    let remaining = |decision: &Decision| decision.strictest_rule().unwrap().outcome.remaining;
    decisions.iter().map(|decision| (decision.status(), remaining(decision))).collect()
}

/// Every claim is told how it stands, also when another's denial comes from memory or another slot.
async fn all_or_nothing_and_all_are_told(limiter: &Limiter<RedisStore>) {
    let (allow, deny) = (DecisionStatus::Allow, DecisionStatus::Deny);
    for (place, client) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let (cheap, dear, others) = (of(client, 1), of(client, 6), of("somebody else", 1));
        let claims = [under(&others, place), under(&dear, place), under(&cheap, (place + 1) % 4)];
        let first = limiter.check_all(&claims).await;
        assert_eq!(told(&first), [(allow, 9), (allow, 4), (allow, 9)]);
        for _ in 0..3 {
            let denied = limiter.check_all(&claims).await;
            assert_eq!(told(&denied), [(allow, 9), (deny, 4), (allow, 9)], "{client}");
        }
        // A look that is denied holds back what would fit.
        let look = of(client, 0);
        assert!(limiter.check_all(&[under(&of(client, 4), place)]).await[0].is_allowed());
        let held = limiter.check_all(&[under(&others, place), under(&look, place)]).await;
        assert_eq!(told(&held), [(allow, 9), (deny, 0)]);
        assert!(
            limiter.forget(limiter.rules().rules()[(place + 1) % 4].name(), &cheap).await.is_ok()
        );
        assert!(limiter.forget(limiter.rules().rules()[place].name(), &others).await.is_ok());
    }
}

/// What was denied a moment ago is asked for again at once.
async fn what_is_given_back_can_be_spent_at_once(limiter: &Limiter<RedisStore>) {
    for place in 0..4 {
        let (three, four, all) = (of("giver", 3), of("giver", 4), of("giver", u64::MAX));
        for _ in 0..3 {
            assert!(limiter.check_all(&[under(&three, place)]).await[0].is_allowed());
        }
        assert!(!limiter.check_all(&[under(&three, place)]).await[0].is_allowed());
        let after = limiter.refund_latest(under(&four, place)).await.unwrap();
        assert_eq!(told(&[after]), [(DecisionStatus::Allow, 5)]);
        assert!(limiter.check_all(&[under(&three, place)]).await[0].is_allowed());
        let full = limiter.refund_latest(under(&all, place)).await.unwrap();
        assert_eq!(told(&[full]), [(DecisionStatus::Allow, 10)]);
        assert_eq!(told(&[limiter.refund_latest(under(&all, place)).await.unwrap()])[0].1, 10);
    }
}

/// Two callers with limits of their own on one key.
async fn limits_to_and_fro_keep_what_was_spent(limiter: &Limiter<RedisStore>) {
    let limit = |amount| {
        let quota = Quota::per(amount, Quota::MAX_WINDOW);
        Arc::new(Limit::new(Algorithm::TokenBucket, quota).unwrap())
    };
    let (small, large, one) = (limit(10), limit(100), of("flipping", 1));
    let under = |limit| CheckRequest {
        request: &one,
        target: CheckTarget::RuleWithLimit(RuleIndex(3), limit),
    };
    let mut left = Vec::new();
    for _ in 0..4 {
        for limit in [&small, &large] {
            left.push(told(&limiter.check_all(&[under(limit)]).await)[0].1);
        }
    }
    assert_eq!(left, [9, 89, 7, 78, 6, 67, 5, 56]);
    let both = limiter.check_all(&[under(&large), under(&small)]).await;
    assert_eq!(told(&both).iter().map(|told| told.1).collect::<Vec<_>>(), [55, 54]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_through_redis_are_charged_all_or_none() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let limiter = limiter(&server.url()).await;
    all_or_nothing_and_all_are_told(&limiter).await;
    what_is_given_back_can_be_spent_at_once(&limiter).await;
    limits_to_and_fro_keep_what_was_spent(&limiter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_through_a_cluster_are_charged_all_or_none() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let limiter = limiter(&cluster.url()).await;
    all_or_nothing_and_all_are_told(&limiter).await;
    what_is_given_back_can_be_spent_at_once(&limiter).await;
    limits_to_and_fro_keep_what_was_spent(&limiter).await;
    assert_eq!(limiter.store().counts().lost, 0);
}
