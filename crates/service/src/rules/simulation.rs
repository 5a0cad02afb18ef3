//! Random histories of a fleet that shares its rules through a real Redis: pushes, restarts, a Redis that loses its
//! data or gets a backup back, and copies that are lost or damaged.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tidegate_core::HeaderStyle;
use tidegate_limiter::{Clock, Limiter, MemoryStore};
use tidegate_random::SeededRng;
use tidegate_redis::{Expected, RedisDocument};
use tidegate_testkit::{Flavour, Redis, Tool, lacking};

use crate::identity::{Identity, IdentityConfig};
use crate::rules::local_copy::LocalCopy;
use crate::rules::manager::RuleInputs;
use crate::rules::source::reconcile;
use crate::rules::{
    NativeRules, RuleSource, Rules, RulesConfig, RulesManager, RulesManagerDeps, RulesRedis,
    start_from_source,
};
use crate::service::Service;
use crate::store::AnyStore;

/// Where Redis has the document.
const KEY: &str = "tg::{document:rules}";
const NODES: usize = 3;
const SEEDS: u64 = 60;
const STEPS: usize = 40;

/// The same history for the same seed.
struct Chance(SeededRng);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).unwrap()
    }
}

/// A version and its text.
type Numbered = (u64, String);

struct Node {
    folder: TempDir,
    manager: Option<Arc<RulesManager>>,
    /// The highest number that it enforced since its copy was last lost.
    floor: u64,
}

impl Node {
    fn copy(&self) -> LocalCopy {
        LocalCopy::of("redis", self.folder.path())
    }

    /// Starts as the server does.
    async fn start(&mut self, redis: &Redis) {
        let clock = Clock::system();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(clock.clone()))));
        let limiter = Limiter::builder().clock(clock.clone()).store(store).build();
        let blocks = Arc::clone(limiter.blocks());
        let identity = Identity::new(IdentityConfig::default(), blocks, clock).unwrap();
        let shared = RedisDocument::start(redis.url().parse().unwrap(), "rules").await.unwrap();
        let household = RulesManagerDeps {
            service: Arc::new(Service::new(limiter, HeaderStyle::default())),
            identity: Arc::new(identity),
            source: "redis".to_owned(),
            is_remote: true,
            node: "a:1".to_owned(),
            copy: Some(self.copy()),
            shared: Some(shared),
            reports: None,
        };
        let inputs = RuleInputs { own: NativeRules::Nothing, envoy: None };
        let rules = Rules::of(&inputs.own, None).unwrap().complete().unwrap();
        let manager = Arc::new(RulesManager::new(household, inputs, rules));
        let source = RuleSource::Redis(RulesRedis::OfStore);
        let config = RulesConfig { source, envoy: None, copies: None, poll: None };
        start_from_source(&manager, &config).await;
        self.manager = Some(manager);
    }

    /// Stops after the copy is written.
    async fn stop(&mut self) {
        let Some(manager) = self.manager.take() else { return };
        while Arc::strong_count(&manager) > 1 {
            tokio::task::yield_now().await;
        }
    }

    /// The version that it enforces, or would start from.
    fn has(&self) -> Option<Numbered> {
        match &self.manager {
            Some(manager) => {
                let version = manager.version();
                Some((version.number, version.text?.to_string()))
            }
            None => {
                let kept = self.copy().read().ok()??;
                Some((kept.number?, kept.text.to_string()))
            }
        }
    }
}

struct World {
    redis: Redis,
    nodes: Vec<Node>,
    backup: Vec<String>,
    pushes: u64,
    steps: Vec<String>,
}

impl World {
    fn redis_has(&self) -> Option<Numbered> {
        let latest: Option<u64> = self.redis.query(&["HGET", KEY, "latest"]);
        let latest = latest?;
        Some((latest, self.redis.query(&["HGET", KEY, &format!("t:{latest}")])))
    }

    fn running(&self, place: usize) -> Option<Arc<RulesManager>> {
        self.nodes[place].manager.clone()
    }

    async fn push(&mut self, place: usize) {
        let Some(manager) = self.running(place) else { return };
        let before = self.redis_has().map_or(0, |(number, _)| number).max(manager.version().number);
        self.pushes += 1;
        let text = format!("rules: [{{name: api, limit: {} per day}}]\n", self.pushes);
        let pushed = manager.push(&text, "ann", "", Expected::Any).await.unwrap().number;
        assert!(pushed > before, "pushed {pushed} after {before}: {:#?}", self.steps);
    }

    async fn step(&mut self, chance: &mut Chance) {
        let place = chance.below(NODES);
        let step = chance.below(16);
        self.steps.push(format!("{step} at node {place}, redis {:?}", self.redis_has()));
        match step {
            0..=3 => self.push(place).await,
            4..=6 => {
                if let Some(manager) = self.running(place) {
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
                // All at once: what a power cut does to a fleet whose Redis keeps nothing.
                for node in &mut self.nodes {
                    node.stop().await;
                }
                self.redis.query::<()>(&["DEL", KEY]);
                if chance.below(4) == 0 {
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

    /// Lets every node start and compare, until all have one document.
    async fn converge(&mut self) {
        let known = self.nodes.iter().filter_map(Node::has).chain(self.redis_has());
        let known: Vec<Numbered> = known.collect();
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
        let reached = self.redis_has();
        for node in &self.nodes {
            assert_eq!(node.has(), reached, "after {known:?}: {:#?}", self.steps);
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
async fn versions_never_go_back_and_nodes_converge_on_the_newest_document() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let node = || Node { folder: tempfile::tempdir().unwrap(), manager: None, floor: 0 };
    let mut redis = Redis::start();
    for seed in 1..=SEEDS {
        redis.query::<()>(&["FLUSHALL"]);
        let nodes = std::iter::repeat_with(node).take(NODES).collect();
        let steps = vec![format!("seed {seed}")];
        let mut world = World { redis, nodes, backup: Vec::new(), pushes: 0, steps };
        let mut chance = Chance(SeededRng::new(seed));
        for _ in 0..STEPS {
            world.step(&mut chance).await;
        }
        world.converge().await;
        redis = world.redis;
    }
}
