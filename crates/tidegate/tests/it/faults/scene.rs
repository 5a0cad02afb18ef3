//! A fleet under load, on its way through one fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{
    DecisionStatus, FailureCounts, Limiter, RedisConfig, RedisStore, Request, RuleSet, Store,
};
use tidegate_testkit::WAIT_TIMEOUT;
use tokio::time::Instant;

use super::load::Load;
use super::log;
use super::table::Row;

/// A rule for each answer to a store that fails; each fault has rules of its own, so that a log line tells whose it is.
pub(crate) const RULES: [&str; 3] = ["allow", "deny", "local"];

/// What each rule admits in a day: in the course of a test nothing comes back.
pub(crate) const LIMIT: u64 = 30;

/// How many nodes the fleet has.
const NODES: u64 = 3;

/// No check took longer. The deadline is a hundredth of this, but who is asleep on a busy machine notices late; what is
/// to be caught here is a check that waits for the store, and that would wait for ever.
const SLOWEST: Duration = Duration::from_secs(1);

/// Whether the servers still know what was spent before the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Kept,
    /// They know, and their clock went back: what was to come back by now has to be waited for once more.
    KeptBehind,
    Lost,
}

/// What became of checks of one client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) admitted: u64,
    /// Unanswered by the store; each may have been charged.
    pub(crate) unknown: u64,
}

impl Spent {
    pub(crate) fn and(self, other: Self) -> Self {
        Self { admitted: self.admitted + other.admitted, unknown: self.unknown + other.unknown }
    }

    /// All that a client asked for who asked for more than the limit: never one more was admitted, and none less but
    /// for those nobody knows of.
    pub(crate) fn expect_exact(self, limit: u64) {
        assert!(self.admitted <= limit, "{self:?}, at most {limit}");
        assert!(self.admitted + self.unknown >= limit, "{self:?}, {limit} in all");
    }
}

/// A fleet of three under load.
pub(crate) struct Scene {
    fault: &'static str,
    /// The node under load, with the deadline of 10 ms.
    pub(crate) limiter: Limiter<RedisStore>,
    /// A node that can wait, for counting.
    pub(crate) judge: Limiter<RedisStore>,
    _third: RedisStore,
    load: Load,
    before: Spent,
    clients: AtomicU64,
    /// Which names of counters are concerned by the fault.
    concerned: Box<dyn Fn(&str) -> bool + Send + Sync>,
    recovered: Option<Duration>,
}

pub(crate) fn rules(fault: &str) -> RuleSet {
    let rule = |answer| {
        format!(
            "  - {{name: {answer}-{fault}, per: [client], limit: {LIMIT} per day, on_store_failure: {answer}}}\n"
        )
    };
    let rules: String = RULES.map(rule).concat();
    RuleSet::parse("faults.yaml", &format!("rules:\n{rules}")).unwrap()
}

/// Looks again and again, without holding anybody up.
#[allow(clippy::disallowed_methods, reason = "another process gives no event to wait for")]
pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !look().await {
        assert!(started.elapsed() < WAIT_TIMEOUT, "waited {WAIT_TIMEOUT:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl Scene {
    /// A fleet whose load and whose judge take the same way.
    pub(crate) async fn begin(fault: &'static str, url: &str) -> Self {
        Self::begin_apart(fault, url, url).await
    }

    /// A fleet whose load comes by `url`, and whose other nodes come by `safe`.
    pub(crate) async fn begin_apart(fault: &'static str, url: &str, safe: &str) -> Self {
        log::keep();
        let config: RedisConfig = url.parse().unwrap();
        let safe: RedisConfig = safe.parse().unwrap();
        let patient = safe.clone().with_timeout(Duration::from_secs(1)).unwrap();
        Self::begin_with(fault, [config, patient, safe]).await
    }

    /// A fleet of the node under load, the judge and another.
    pub(crate) async fn begin_with(fault: &'static str, configs: [RedisConfig; 3]) -> Self {
        let [node, judge, third] = configs.map(RedisStore::start);
        let [node, judge, third] = [node.await, judge.await, third.await].map(Result::unwrap);
        for store in [&node, &judge, &third] {
            until("the store is ready", async || store.is_ready()).await;
        }
        until("every node knows the others", async || {
            node.announce().await;
            judge.announce().await;
            third.announce().await;
            node.share().of == NODES
        })
        .await;
        let on = |store| Limiter::builder().store(Arc::new(store)).rules(rules(fault)).build();
        let (limiter, judge) = (on(node), on(judge));
        let load = Load::start(&limiter, fault);
        until("the store decides", async || load.decided() > 20).await;
        let mut scene = Self {
            fault,
            limiter,
            judge,
            _third: third,
            load,
            before: Spent::default(),
            clients: AtomicU64::new(0),
            concerned: Box::new(|_| true),
            recovered: None,
        };
        scene.before = scene.spend(&scene.judge, "before", LIMIT / 3).await;
        scene
    }

    /// From now on only clients are looked at whose counters have such names.
    pub(crate) fn concerns(&mut self, concerned: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.concerned = Box::new(concerned);
    }

    /// The name of a client's counter.
    pub(crate) fn counter(&self, rule: &str, client: &str) -> String {
        let name = format!("{rule}-{}", self.fault);
        let request = Request::new().with("client", client).unwrap();
        let rules = self.limiter.rules();
        let rule = rules.rule(&name).unwrap();
        let store = self.limiter.store();
        let scope = store.keyer().scope(&name, ["client"]);
        store.name_of(scope.key(rule.parts(&request)))
    }

    /// A client that nobody has heard of, and whom the fault concerns.
    pub(crate) fn newcomer(&self, rule: &str) -> String {
        let newcomer = || format!("new-{}", self.clients.fetch_add(1, Ordering::Relaxed));
        let mut newcomers = std::iter::repeat_with(newcomer).take(10_000);
        let found = newcomers.find(|client| (self.concerned)(&self.counter(rule, client)));
        found.expect("the fault concerns some of the clients")
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

    /// Checks of one client that are made at once, by the rule that never admits without the store.
    pub(crate) async fn spend(
        &self,
        limiter: &Limiter<RedisStore>,
        client: &str,
        times: u64,
    ) -> Spent {
        let rulings = join_all((0..times).map(|_| self.check(limiter, "deny", client))).await;
        let count = |wanted| {
            let count = rulings.iter().filter(|ruling| **ruling == wanted).count();
            u64::try_from(count).unwrap()
        };
        Spent {
            admitted: count(DecisionStatus::Allow),
            unknown: count(DecisionStatus::Unavailable),
        }
    }

    /// What the rules of this fault answered without the store.
    pub(crate) fn failures(&self, rule: &str) -> FailureCounts {
        let name = format!("{rule}-{}", self.fault);
        let mut failures = self.limiter.failures();
        failures.find(|(rule, _)| rule.name() == name).unwrap().1
    }

    /// Waits until the node under load has given a server up.
    pub(crate) async fn breaker_opens(&self) {
        until("a breaker opens", async || !self.limiter.store().is_ready()).await;
    }

    /// The rules answer without the store, as each says.
    pub(crate) async fn rules_follow_their_policies(&self) {
        let checks = self.load.checks();
        until("the load goes on", async || self.load.checks() > checks + 100).await;
        let client = self.newcomer("allow");
        let before = self.failures("allow").open;
        for _ in 0..LIMIT + 10 {
            assert_eq!(self.check(&self.limiter, "allow", &client).await, DecisionStatus::Allow);
        }
        assert!(self.failures("allow").open >= before + LIMIT + 10, "each is counted");

        let client = self.newcomer("deny");
        let before = self.failures("deny").closed;
        for _ in 0..10 {
            assert_eq!(
                self.check(&self.limiter, "deny", &client).await,
                DecisionStatus::Unavailable
            );
        }
        assert!(self.failures("deny").closed >= before + 10, "each is counted");

        let client = self.newcomer("local");
        let before = self.failures("local").local;
        for turn in 0..LIMIT {
            let share = LIMIT / NODES;
            let expected = if turn < share { DecisionStatus::Allow } else { DecisionStatus::Deny };
            assert_eq!(self.check(&self.limiter, "local", &client).await, expected, "{turn}");
        }
        assert!(self.failures("local").local >= before + LIMIT, "each is counted");
    }

    /// A server that was given up hears of no check; all that it hears is probes.
    pub(crate) async fn checks_stay_away(&self, heard: impl Fn() -> usize) {
        let (calls, heard_before) = (self.limiter.store().counts().calls, heard());
        let client = self.newcomer("allow");
        for _ in 0..1000 {
            self.check(&self.limiter, "allow", &client).await;
        }
        assert_eq!(self.limiter.store().counts().calls, calls, "no call was made");
        let probes = heard() - heard_before;
        assert!(probes < 200, "a thousand checks, and {probes} were heard of");
    }

    /// Waits until the store decides again, for all who asked before. Time counts from now.
    pub(crate) async fn service_resumes(&mut self) {
        let started = Instant::now();
        let client = self.newcomer("deny");
        until("the store decides again", async || {
            self.check(&self.limiter, "deny", &client).await != DecisionStatus::Unavailable
        })
        .await;
        self.recovered = Some(started.elapsed());
        self.judge_is_ready().await;
        let decided = self.load.decided();
        until("the load is decided", async || self.load.decided() > decided + 20).await;
    }

    async fn judge_is_ready(&self) {
        let client = self.newcomer("deny");
        until("the judge can ask", async || {
            self.judge.store().is_ready()
                && self.check(&self.judge, "deny", &client).await != DecisionStatus::Unavailable
        })
        .await;
    }

    /// Ends the load; the limit is exact, for newcomers and for who spent something before.
    pub(crate) async fn end(self, memory: Memory) {
        self.judge_is_ready().await;
        let client = self.newcomer("deny");
        let (here, there) = tokio::join!(
            self.spend(&self.limiter, &client, LIMIT),
            self.spend(&self.judge, &client, LIMIT),
        );
        let rest = self.spend(&self.judge, &client, LIMIT).await;
        here.and(there).and(rest).expect_exact(LIMIT);

        let rest = self.spend(&self.judge, "before", LIMIT + 1).await;
        match memory {
            Memory::Kept => self.before.and(rest).expect_exact(LIMIT),
            // A part of one is as good as the whole of it.
            Memory::KeptBehind => {
                self.before.and(rest).and(Spent { admitted: 0, unknown: 1 }).expect_exact(LIMIT);
            }
            Memory::Lost => rest.expect_exact(LIMIT),
        }

        let rule = format!("rule=\"allow-{}\"", self.fault);
        let failed_open = self.failures("allow").open;
        let began = log::count(&["store failed, rule answers without it", &rule]);
        let ended = log::count(&["store answers again", &rule]);
        assert!(began <= ended + 1, "{began} episodes were logged, {ended} of them over");
        assert_eq!(began > 0, failed_open > 0, "an episode is logged");

        let (checks, slowest) = self.load.end().await;
        assert!(slowest < SLOWEST, "{slowest:?}");
        Row { fault: self.fault, checks, slowest, failed_open, recovered: self.recovered }.print();
    }
}
