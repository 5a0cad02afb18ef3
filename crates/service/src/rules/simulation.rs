//! Random histories of a fleet that shares its rules through a real Redis: pushes, restarts, a Redis that loses its
//! data or is restored from a backup, and copies that are lost or damaged.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tidegate_core::{HeaderStyle, Timestamp};
use tidegate_limiter::{Clock, Limiter, MemoryStore};
use tidegate_random::SeededRng;
use tidegate_redis::{Expected, RedisDocument};
use tidegate_rules::WarningContext;
use tidegate_testkit::{Flavour, Redis, Tool, lacking};

use crate::identity::{Identity, IdentityConfig};
use crate::rules::local_copy::LocalCopy;
use crate::rules::manager::RuleInputs;
use crate::rules::source::reconcile;
use crate::rules::{
    NativeRules, ParsedRules, RuleSource, RulesConfig, RulesManager, RulesManagerDeps, RulesRedis,
    start_from_source,
};
use crate::service::Service;
use crate::store::AnyStore;

/// The Redis key of the document.
const KEY: &str = "tg::{document:rules}";
const NODES: usize = 3;
const SEEDS: u64 = 60;
const STEPS: usize = 40;

/// A random number generator; a seed always gives the same history.
struct StepRng(SeededRng);

impl StepRng {
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).unwrap()
    }
}

/// A version number and its text.
type NumberedText = (u64, String);

struct FleetNode {
    folder: TempDir,
    manager: Option<Arc<RulesManager>>,
    /// The highest number that was active here since the copy was last lost.
    floor: u64,
}

impl FleetNode {
    fn copy(&self) -> LocalCopy {
        LocalCopy::new("redis", self.folder.path())
    }

    /// Starts in the same order as the server.
    async fn start(&mut self, redis: &Redis) {
        let clock = Clock::system();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(clock.clone()))));
        let limiter = Limiter::builder().clock(clock.clone()).store(store).build();
        let blocks = Arc::clone(limiter.blocks());
        let identity = Identity::new(IdentityConfig::default(), blocks, clock).unwrap();
        let shared = RedisDocument::start(redis.url().parse().unwrap(), "rules").await.unwrap();
        let deps = RulesManagerDeps {
            service: Arc::new(Service::new(limiter, HeaderStyle::default())),
            identity: Arc::new(identity),
            source: "redis".to_owned(),
            is_remote: true,
            warnings: WarningContext::default(),
            node: "a:1".to_owned(),
            copy: Some(self.copy()),
            shared: Some(shared),
            reports: None,
        };
        let inputs = RuleInputs { native: NativeRules::Nothing, envoy: None };
        let rules =
            ParsedRules::parse(&inputs.native, None, &WarningContext::default(), Timestamp::EPOCH);
        let rules = rules.unwrap();
        let rules = rules.with_internal_rules().unwrap();
        let manager = Arc::new(RulesManager::new(deps, inputs, rules));
        let source = RuleSource::Redis(RulesRedis::OfStore);
        let config = RulesConfig {
            source,
            envoy: None,
            copies: None,
            poll: None,
            warnings: WarningContext::default(),
        };
        start_from_source(&manager, &config).await;
        self.manager = Some(manager);
    }

    /// Stops once the copy is written.
    async fn stop(&mut self) {
        let Some(manager) = self.manager.take() else { return };
        while Arc::strong_count(&manager) > 1 {
            tokio::task::yield_now().await;
        }
    }

    /// Returns the active version of a manager node, or the version of the copy of a stopped one.
    fn version(&self) -> Option<NumberedText> {
        match &self.manager {
            Some(manager) => {
                let version = manager.version();
                Some((version.number, version.text?.to_string()))
            }
            None => {
                let document = self.copy().read().ok()??;
                Some((document.number?, document.text.to_string()))
            }
        }
    }
}

struct TestFleet {
    redis: Redis,
    nodes: Vec<FleetNode>,
    backup: Vec<String>,
    pushes: u64,
    steps: Vec<String>,
}

impl TestFleet {
    fn redis_version(&self) -> Option<NumberedText> {
        let latest: Option<u64> = self.redis.query(&["HGET", KEY, "latest"]);
        let latest = latest?;
        Some((latest, self.redis.query(&["HGET", KEY, &format!("t:{latest}")])))
    }

    fn manager(&self, node: usize) -> Option<Arc<RulesManager>> {
        self.nodes[node].manager.clone()
    }

    async fn push(&mut self, place: usize) {
        let Some(manager) = self.manager(place) else { return };
        let before =
            self.redis_version().map_or(0, |(number, _)| number).max(manager.version().number);
        self.pushes += 1;
        let text = format!("rules: [{{name: api, limit: {} per day}}]\n", self.pushes);
        let pushed = manager.push(&text, "ann", "", Expected::Any).await.unwrap().number;
        assert!(pushed > before, "pushed {pushed} after {before}: {:#?}", self.steps);
    }

    async fn step(&mut self, random: &mut StepRng) {
        let place = random.below(NODES);
        let step = random.below(16);
        self.steps.push(format!("{step} at node {place}, redis {:?}", self.redis_version()));
        match step {
            0..=3 => self.push(place).await,
            4..=6 => {
                if let Some(manager) = self.manager(place) {
                    reconcile(&manager, manager.shared().unwrap()).await.unwrap();
                }
            }
            7 | 8 => self.nodes[place].stop().await,
            9..=11 => {
                if self.nodes[place].manager.is_none() {
                    self.nodes[place].start(&self.redis).await;
                }
            }
            12 => self.redis.query::<()>(&["DEL", KEY]),
            13 => self.backup = self.redis.query(&["HGETALL", KEY]),
            14 => {
                self.redis.query::<()>(&["DEL", KEY]);
                if !self.backup.is_empty() {
                    let fields = self.backup.iter().map(String::as_str);
                    let command: Vec<&str> = ["HSET", KEY].into_iter().chain(fields).collect();
                    self.redis.query::<()>(&command);
                }
            }
            _ => {
                // A power cut: all nodes stop, and Redis without persistence loses its data.
                for node in &mut self.nodes {
                    node.stop().await;
                }
                self.redis.query::<()>(&["DEL", KEY]);
                if random.below(4) == 0 {
                    self.nodes[place].floor = 0;
                    damage(self.nodes[place].copy().path());
                }
            }
        }
        for node in &mut self.nodes {
            let number =
                node.manager.as_ref().map_or(node.floor, |manager| manager.version().number);
            assert!(number >= node.floor, "{number} after {}: {:#?}", node.floor, self.steps);
            node.floor = number;
        }
    }

    /// Starts every node and reconciles it twice. Then all nodes have the newest document.
    async fn converge(&mut self) {
        let known = self.nodes.iter().filter_map(FleetNode::version).chain(self.redis_version());
        let known: Vec<NumberedText> = known.collect();
        for node in &mut self.nodes {
            if node.manager.is_none() {
                node.start(&self.redis).await;
            }
        }
        for _ in 0..2 {
            for manager in self.nodes.iter().filter_map(|node| node.manager.clone()) {
                reconcile(&manager, manager.shared().unwrap()).await.unwrap();
            }
        }
        let reached = self.redis_version();
        for node in &self.nodes {
            assert_eq!(node.version(), reached, "after {known:?}: {:#?}", self.steps);
        }
        let Some(highest) = known.iter().map(|(number, _)| *number).max() else { return };
        let (number, text) = reached.unwrap();
        let mut newest = known.iter().filter(|(number, _)| *number == highest);
        assert!(newest.any(|(_, newest)| *newest == text), "{text} after {known:?}");
        assert!(number >= highest, "{number} after {known:?}");
        let mut same_number = known.iter().filter(|(known, _)| *known == number);
        assert!(same_number.all(|(_, known)| *known == text), "{number} repeats: {known:?}");
    }
}

fn damage(path: &Path) {
    if let Ok(mut bytes) = std::fs::read(path) {
        bytes.pop();
        std::fs::write(path, bytes).unwrap();
    }
}

#[tokio::test]
async fn versions_never_decrease_and_nodes_converge_on_the_newest_document() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let node = || FleetNode { folder: tempfile::tempdir().unwrap(), manager: None, floor: 0 };
    let mut redis = Redis::start();
    for seed in 1..=SEEDS {
        redis.query::<()>(&["FLUSHALL"]);
        let nodes = std::iter::repeat_with(node).take(NODES).collect();
        let steps = vec![format!("seed {seed}")];
        let mut fleet = TestFleet { redis, nodes, backup: Vec::new(), pushes: 0, steps };
        let mut random = StepRng(SeededRng::new(seed));
        for _ in 0..STEPS {
            fleet.step(&mut random).await;
        }
        fleet.converge().await;
        redis = fleet.redis;
    }
}
