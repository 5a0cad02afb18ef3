//! One fault scenario: a fleet under load before, during and after the fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::{FailureCounts, Store};
use tidegate::{DecisionStatus, Limiter, Request, RuleSet};
use tidegate_testkit::WAIT_TIMEOUT;
use tokio::time::Instant;

use super::background_load::BackgroundLoad;
use super::captured_log;
use super::report_table::FaultRow;

/// One rule per `on_store_failure` policy. Rule names contain the fault, so that log lines can be attributed to it.
pub(crate) const FAILURE_POLICIES: [&str; 3] = ["allow", "deny", "local"];

/// The limit of each rule per day. No token refills during a test.
pub(crate) const DAILY_LIMIT: u64 = 30;

/// Nodes of the fleet.
const FLEET_SIZE: u64 = 3;

/// Upper bound for the duration of one check. The store timeout is 10 ms; the bound is a hundred times that, because
/// a busy machine wakes tasks late. A check that waits for the failed store would exceed it by far.
const MAX_CHECK_TIME: Duration = Duration::from_secs(1);

/// State of the counters on the servers after the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateAfterFault {
    Kept,
    /// The counters are kept, and the server clock went back: tokens that were about to refill take as long again.
    KeptWithClockBehind,
    Lost,
}

/// Results of the checks of one client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckCounts {
    pub(crate) admitted: u64,
    /// Checks without a reply from the store. Each may have been charged.
    pub(crate) unknown: u64,
}

impl CheckCounts {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { admitted: self.admitted + other.admitted, unknown: self.unknown + other.unknown }
    }

    /// Asserts that a client that sent more checks than `limit` got exactly `limit` admissions. Checks without a reply
    /// may count as admitted.
    pub(crate) fn expect_exactly(self, limit: u64) {
        assert!(self.admitted <= limit, "{self:?}, at most {limit}");
        assert!(self.admitted + self.unknown >= limit, "{self:?}, {limit} in all");
    }
}

/// A fleet of three under load.
pub(crate) struct FaultScenario {
    fault: &'static str,
    /// The node under load, with the deadline of 10 ms.
    pub(crate) limiter: Limiter<RedisStore>,
    /// A node with a timeout of one second, which counts admissions.
    pub(crate) observer: Limiter<RedisStore>,
    _third: RedisStore,
    load: BackgroundLoad,
    counts_before_fault: CheckCounts,
    clients_created: AtomicU64,
    /// Returns whether the fault affects the counter with this name.
    is_affected: Box<dyn Fn(&str) -> bool + Send + Sync>,
    recovery_time: Option<Duration>,
}

pub(crate) fn rules(fault: &str) -> RuleSet {
    let rule = |policy| {
        format!(
            "  - {{name: {policy}-{fault}, per: [client], limit: {DAILY_LIMIT} per day, on_store_failure: {policy}}}\n"
        )
    };
    let rules: String = FAILURE_POLICIES.map(rule).concat();
    RuleSet::parse("faults.yaml", &format!("rules:\n{rules}")).unwrap()
}

/// Polls the condition every 2 ms until it is met. Panics after [`WAIT_TIMEOUT`].
#[allow(clippy::disallowed_methods, reason = "another process gives no event to wait for")]
pub(crate) async fn wait_until(expectation: &str, mut is_met: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_met().await {
        assert!(started.elapsed() < WAIT_TIMEOUT, "not within {WAIT_TIMEOUT:?}: {expectation}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl FaultScenario {
    /// Starts a fleet in which all nodes connect to `url`.
    pub(crate) async fn start(fault: &'static str, url: &str) -> Self {
        Self::start_behind_proxy(fault, url, url).await
    }

    /// Starts a fleet. The node under load connects to `url`, the other nodes to `direct_url`.
    pub(crate) async fn start_behind_proxy(
        fault: &'static str,
        url: &str,
        direct_url: &str,
    ) -> Self {
        captured_log::capture();
        let config: RedisConfig = url.parse().unwrap();
        let direct_config: RedisConfig = direct_url.parse().unwrap();
        let observer_config = direct_config.clone().with_timeout(Duration::from_secs(1)).unwrap();
        Self::start_with_configs(fault, [config, observer_config, direct_config]).await
    }

    /// Starts a fleet of the node under load, the observer and a third node.
    pub(crate) async fn start_with_configs(fault: &'static str, configs: [RedisConfig; 3]) -> Self {
        let [node, observer, third] = configs.map(RedisStore::start);
        let [node, observer, third] = [node.await, observer.await, third.await].map(Result::unwrap);
        for store in [&node, &observer, &third] {
            wait_until("the store is ready", async || store.is_ready()).await;
        }
        wait_until("every node knows the others", async || {
            node.announce().await;
            observer.announce().await;
            third.announce().await;
            node.share().of == FLEET_SIZE
        })
        .await;
        let build_limiter =
            |store| Limiter::builder().store(Arc::new(store)).rules(rules(fault)).build();
        let (limiter, observer) = (build_limiter(node), build_limiter(observer));
        let load = BackgroundLoad::start(&limiter, fault);
        wait_until("the store decides", async || load.decided_by_store() > 20).await;
        let mut scenario = Self {
            fault,
            limiter,
            observer,
            _third: third,
            load,
            counts_before_fault: CheckCounts::default(),
            clients_created: AtomicU64::new(0),
            is_affected: Box::new(|_| true),
            recovery_time: None,
        };
        scenario.counts_before_fault =
            scenario.check_many(&scenario.observer, "before", DAILY_LIMIT / 3).await;
        scenario
    }

    /// Restricts new clients to those with a counter that the fault affects.
    pub(crate) fn restrict_clients_to(
        &mut self,
        is_affected: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) {
        self.is_affected = Box::new(is_affected);
    }

    /// Returns the Redis key of a client's counter.
    pub(crate) fn counter_name(&self, rule: &str, client: &str) -> String {
        let name = format!("{rule}-{}", self.fault);
        let request = Request::new().with("client", client).unwrap();
        let rules = self.limiter.rules();
        let rule = rules.rule(&name).unwrap();
        let store = self.limiter.store();
        let scope = store.keyer().scope(&name, ["client"]);
        store.name_of(scope.key(rule.parts(&request)))
    }

    /// Returns a client without a counter that the fault affects.
    pub(crate) fn new_client(&self, rule: &str) -> String {
        let next_name = || format!("new-{}", self.clients_created.fetch_add(1, Ordering::Relaxed));
        let mut candidates = std::iter::repeat_with(next_name).take(10_000);
        let found = candidates.find(|client| (self.is_affected)(&self.counter_name(rule, client)));
        found.expect("the fault affects some of the clients")
    }

    pub(crate) async fn check(
        &self,
        limiter: &Limiter<RedisStore>,
        rule: &str,
        client: &str,
    ) -> DecisionStatus {
        let request = Request::new().with("client", client).unwrap();
        let name = format!("{rule}-{}", self.fault);
        limiter.check_rule(&name, &request).await.unwrap().status()
    }

    /// Sends concurrent checks of one client to the rule that denies when the store fails.
    pub(crate) async fn check_many(
        &self,
        limiter: &Limiter<RedisStore>,
        client: &str,
        times: u64,
    ) -> CheckCounts {
        let statuses = join_all((0..times).map(|_| self.check(limiter, "deny", client))).await;
        let count = |wanted| {
            let count = statuses.iter().filter(|status| **status == wanted).count();
            u64::try_from(count).unwrap()
        };
        CheckCounts {
            admitted: count(DecisionStatus::Allow),
            unknown: count(DecisionStatus::Unavailable),
        }
    }

    /// Returns the decisions of a rule that were made without the store.
    pub(crate) fn failure_counts(&self, rule: &str) -> FailureCounts {
        let name = format!("{rule}-{}", self.fault);
        let mut failure_counts = self.limiter.failures();
        failure_counts.find(|(rule, _)| rule.name() == name).unwrap().1
    }

    /// Waits until a breaker of the node under load is open.
    pub(crate) async fn wait_for_open_breaker(&self) {
        wait_until("a breaker opens", async || !self.limiter.store().is_ready()).await;
    }

    /// Asserts that each rule follows its `on_store_failure` policy.
    pub(crate) async fn expect_failure_policies(&self) {
        let checks = self.load.checks();
        wait_until("the background load continues", async || self.load.checks() > checks + 100)
            .await;
        let client = self.new_client("allow");
        let before = self.failure_counts("allow").open;
        for _ in 0..DAILY_LIMIT + 10 {
            assert_eq!(self.check(&self.limiter, "allow", &client).await, DecisionStatus::Allow);
        }
        assert!(self.failure_counts("allow").open >= before + DAILY_LIMIT + 10, "each is counted");

        let client = self.new_client("deny");
        let before = self.failure_counts("deny").closed;
        for _ in 0..10 {
            assert_eq!(
                self.check(&self.limiter, "deny", &client).await,
                DecisionStatus::Unavailable
            );
        }
        assert!(self.failure_counts("deny").closed >= before + 10, "each is counted");

        let client = self.new_client("local");
        let before = self.failure_counts("local").local;
        for check_number in 0..DAILY_LIMIT {
            let share = DAILY_LIMIT / FLEET_SIZE;
            let expected =
                if check_number < share { DecisionStatus::Allow } else { DecisionStatus::Deny };
            assert_eq!(
                self.check(&self.limiter, "local", &client).await,
                expected,
                "{check_number}"
            );
        }
        assert!(self.failure_counts("local").local >= before + DAILY_LIMIT, "each is counted");
    }

    /// Asserts that no check reaches a server with an open breaker. `received` counts the requests there: only probes.
    pub(crate) async fn expect_only_probes_at_the_server(&self, received: impl Fn() -> usize) {
        let (calls, received_before) = (self.limiter.store().counts().calls, received());
        let client = self.new_client("allow");
        for _ in 0..1000 {
            self.check(&self.limiter, "allow", &client).await;
        }
        assert_eq!(self.limiter.store().counts().calls, calls, "no call was made");
        let probes = received() - received_before;
        assert!(probes < 200, "1000 checks caused {probes} requests");
    }

    /// Waits until the store decides again on every node, and records the time from this call on.
    pub(crate) async fn wait_for_recovery(&mut self) {
        let started = Instant::now();
        let client = self.new_client("deny");
        wait_until("the store decides again", async || {
            self.check(&self.limiter, "deny", &client).await != DecisionStatus::Unavailable
        })
        .await;
        self.recovery_time = Some(started.elapsed());
        self.wait_for_observer().await;
        let decided_by_store = self.load.decided_by_store();
        wait_until("the store decides the background load", async || {
            self.load.decided_by_store() > decided_by_store + 20
        })
        .await;
    }

    async fn wait_for_observer(&self) {
        let client = self.new_client("deny");
        wait_until("the store decides for the observer", async || {
            self.observer.store().is_ready()
                && self.check(&self.observer, "deny", &client).await != DecisionStatus::Unavailable
        })
        .await;
    }

    /// Stops the load, and asserts that the limit is exact for a new client and for the client charged before the fault.
    pub(crate) async fn finish(self, state: StateAfterFault) {
        self.wait_for_observer().await;
        let client = self.new_client("deny");
        let (by_loaded_node, by_observer) = tokio::join!(
            self.check_many(&self.limiter, &client, DAILY_LIMIT),
            self.check_many(&self.observer, &client, DAILY_LIMIT),
        );
        let rest = self.check_many(&self.observer, &client, DAILY_LIMIT).await;
        by_loaded_node.plus(by_observer).plus(rest).expect_exactly(DAILY_LIMIT);

        let rest = self.check_many(&self.observer, "before", DAILY_LIMIT + 1).await;
        match state {
            StateAfterFault::Kept => {
                self.counts_before_fault.plus(rest).expect_exactly(DAILY_LIMIT);
            }
            // The clock step may delay the refill of one token.
            StateAfterFault::KeptWithClockBehind => {
                self.counts_before_fault
                    .plus(rest)
                    .plus(CheckCounts { admitted: 0, unknown: 1 })
                    .expect_exactly(DAILY_LIMIT);
            }
            StateAfterFault::Lost => rest.expect_exactly(DAILY_LIMIT),
        }

        let rule = format!("rule=\"allow-{}\"", self.fault);
        let failed_open = self.failure_counts("allow").open;
        let began = captured_log::count_lines(&["store failed, rule answers without it", &rule]);
        let ended = captured_log::count_lines(&["store answers again", &rule]);
        assert!(began <= ended + 1, "{began} episodes were logged, {ended} of them ended");
        assert_eq!(began > 0, failed_open > 0, "an episode is logged");

        let (checks, slowest) = self.load.stop().await;
        assert!(slowest < MAX_CHECK_TIME, "{slowest:?}");
        FaultRow {
            fault: self.fault,
            checks,
            slowest,
            failed_open,
            recovery_time: self.recovery_time,
        }
        .print();
    }
}
