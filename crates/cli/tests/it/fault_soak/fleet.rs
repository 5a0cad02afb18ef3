//! The processes of one episode: nodes, and the servers that keep their state.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{Cluster, FaultProxy, Process, Redis, Sentinel, poll, wait_for};

use super::history::{Micros, now};
use super::scenario::{EpisodeScenario, PHASE_MILLIS, StoreTopology};
use super::wire::LoadConnection;
use crate::kit::{Folder, wait_for_copy};

/// The longest that one call of the harness to a node waits for its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that nodes have to start before the load does.
const START_TIME: Micros = 2_500_000;

/// The servers that keep the state.
pub(crate) enum StateServers {
    Memory,
    Single { redis: Redis, proxies: Vec<FaultProxy> },
    Shards(Vec<Redis>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

impl StateServers {
    fn start(topology: StoreTopology, nodes: usize) -> Self {
        match topology {
            StoreTopology::Memory => Self::Memory,
            StoreTopology::Single => {
                let redis = Redis::builder().movable_clock().start();
                let proxies = (0..nodes).map(|_| FaultProxy::to(redis.address())).collect();
                Self::Single { redis, proxies }
            }
            StoreTopology::Shards => Self::Shards((0..3).map(|_| Redis::start()).collect()),
            StoreTopology::Sentinel => Self::Sentinel(Sentinel::start()),
            StoreTopology::Cluster => Self::Cluster(Cluster::start()),
        }
    }

    fn yaml(&self, node: usize, options: &str) -> String {
        let servers = match self {
            Self::Memory => return "store: {memory: {max_keys: 1000}}\n".to_owned(),
            Self::Single { proxies, .. } => format!("url: '{}'", proxies[node].url()),
            Self::Shards(servers) => {
                let servers: Vec<String> =
                    servers.iter().map(|redis| format!("'{}'", redis.address())).collect();
                format!("shards: [{}]", servers.join(", "))
            }
            Self::Sentinel(sentinel) => format!("url: '{}'", sentinel.url()),
            Self::Cluster(cluster) => format!("url: '{}'", cluster.url()),
        };
        format!("store: {{redis: {{{servers}, {options}}}}}\n")
    }

    /// A number that grows with each failover, planned or not.
    pub(crate) fn failover_epoch(&self) -> u64 {
        match self {
            Self::Memory | Self::Single { .. } | Self::Shards(_) => 0,
            Self::Sentinel(sentinel) => {
                let up = sentinel.sentinels().iter().find(|one| one.is_up()).unwrap();
                let fields: Vec<String> = up.query(&["SENTINEL", "MASTER", Sentinel::NAME]);
                let place = fields.iter().position(|field| field == "config-epoch").unwrap();
                fields[place + 1].parse().unwrap()
            }
            Self::Cluster(cluster) => {
                let up = cluster.nodes().iter().find(|one| one.is_up()).unwrap();
                let info: String = up.query(&["CLUSTER", "INFO"]);
                let lines =
                    info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
                lines.unwrap().trim().parse().unwrap()
            }
        }
    }
}

/// A process of a node that runs.
struct NodeProcess {
    process: Process,
    http: SocketAddr,
    resp: SocketAddr,
    admin: SocketAddr,
}

/// Where a process of a node listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeListeners {
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    admin: SocketAddr,
    /// Processes of this node that ran before.
    pub(crate) restarts: usize,
}

struct NodeState {
    running: Option<NodeProcess>,
    /// The last version of the rules that this process was seen with.
    seen_version: u64,
    lives: Vec<(Micros, Micros)>,
}

/// One node, which can be killed and started again.
struct SoakNode {
    folder: Folder,
    config: String,
    skew: i64,
    state: Mutex<NodeState>,
}

impl SoakNode {
    fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap()
    }

    fn start(&self) {
        let mut command = Process::command(env!("CARGO_BIN_EXE_tidegate"));
        for name in std::env::vars_os().map(|(name, _)| name) {
            if name.to_str().is_some_and(|name| name.starts_with("TIDEGATE_")) {
                command.env_remove(name);
            }
        }
        command
            .args(["serve", "--config", &self.config])
            .env("STATE_DIRECTORY", self.folder.path());
        if self.skew != 0 {
            Process::skew(&mut command, self.skew);
        }
        let mut state = self.state();
        let process = Process::spawn(command);
        state.seen_version = 0;
        state.lives.push((now(), Micros::MAX));
        let mut listeners = Vec::new();
        while let Some(line) = process.stdout().next() {
            let (listener, address) = line.split_once(' ').unwrap();
            listeners.push((listener.to_owned(), address.parse::<SocketAddr>().unwrap()));
            if listener == "admin" {
                break;
            }
        }
        let listener = |name: &str| {
            let found = listeners.iter().find(|(listener, _)| listener == name);
            found.unwrap_or_else(|| panic!("node not serving: {}", process.log_tail())).1
        };
        let (http, resp, admin) = (listener("http"), listener("resp"), listener("admin"));
        state.running = Some(NodeProcess { process, http, resp, admin });
    }
}

/// All processes of one episode.
pub(crate) struct SoakFleet {
    pub(crate) servers: StateServers,
    nodes: Vec<SoakNode>,
    has_pushes: bool,
    /// The last version of the rules that every node was seen with.
    adopted: Mutex<u64>,
    /// When the load should start, for windows to begin where the scenario has them.
    pub(crate) load_starts: Micros,
    /// How far the store's clock is ahead of the machine's at first.
    pub(crate) first_offset: Micros,
}

impl SoakFleet {
    /// Starts everything, and returns once each node is ready and has the rules.
    pub(crate) fn start(scenario: &EpisodeScenario) -> Self {
        let servers = StateServers::start(scenario.topology, scenario.nodes());
        let (mut load_starts, mut first_offset) = (now(), 0);
        if let StateServers::Single { redis, .. } = &servers {
            let [phase, period] = [scenario.phase_millis, PHASE_MILLIS];
            let [phase, period] = [phase, period].map(|millis| Micros::try_from(millis).unwrap());
            load_starts = now() / 1_000 * 1_000 + START_TIME;
            first_offset = (phase - load_starts / 1_000).rem_euclid(period) * 1_000;
            redis.set_clock(first_offset / 1_000);
        }
        let memory = if scenario.remembers_denials { "1s" } else { "off" };
        let options = format!("timeout: {}ms, denial_memory: {memory}", scenario.timeout_millis);
        let rules = scenario.rules(&scenario.first_limits());
        let has_pushes = scenario.has_rule_pushes();
        let nodes = scenario.node_skews.iter().enumerate().map(|(place, skew)| {
            let folder = Folder::new();
            let source = if has_pushes {
                "rules: {redis: true, poll: 1s}\n".to_owned()
            } else {
                format!("rules: {{file: '{}'}}\n", folder.file("rules.yaml", &rules))
            };
            let listeners = "listen: {http: '127.0.0.1:0', grpc: off, resp: '127.0.0.1:0', admin: '127.0.0.1:0'}\n";
            let store = servers.yaml(place, &options);
            let config = folder.file("tidegate.yaml", &format!("{store}{source}{listeners}"));
            let state = NodeState { running: None, seen_version: 0, lives: Vec::new() };
            SoakNode { folder, config, skew: *skew, state: Mutex::new(state) }
        });
        let nodes = nodes.collect();
        let adopted = Mutex::new(0);
        let fleet = Self { nodes, servers, has_pushes, adopted, load_starts, first_offset };
        fleet.nodes.iter().for_each(SoakNode::start);
        for node in 0..fleet.nodes.len() {
            wait_for("the node is ready", || fleet.is_ready(node).then_some(()));
        }
        if has_pushes {
            wait_for("the first rules are pushed", || fleet.push(0, &rules));
            wait_for("every node has the rules", || (fleet.observe() >= 1).then_some(()));
            fleet.nodes.iter().for_each(|node| wait_for_copy(node.folder.path(), 1));
        }
        fleet
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Where a node listens, if it runs.
    pub(crate) fn listeners(&self, node: usize) -> Option<NodeListeners> {
        let state = self.nodes[node].state();
        let NodeProcess { http, resp, admin, .. } = *state.running.as_ref()?;
        Some(NodeListeners { http, resp, admin, restarts: state.lives.len() })
    }

    fn is_ready(&self, node: usize) -> bool {
        let answer = self.listeners(node).and_then(|listeners| {
            LoadConnection::open(listeners.http, CALL_TIMEOUT).ok()?.ask("GET", "/readyz", "").ok()
        });
        answer.is_some_and(|(status, _)| status == 200)
    }

    /// Whether a balancer would send requests to this process: it is ready, and its rules are not older than those that
    /// every node was seen with.
    pub(crate) fn may_serve(&self, node: usize) -> bool {
        if !self.is_ready(node) {
            return false;
        }
        if !self.has_pushes {
            return true;
        }
        let Some((restarts, version)) = self.ask_version(node) else { return false };
        // Seen before adoption is decided by others, under the same lock.
        let adopted = self.adopted.lock().unwrap();
        self.see(node, restarts, version);
        version >= *adopted
    }

    fn ask_version(&self, node: usize) -> Option<(usize, u64)> {
        let listeners = self.listeners(node)?;
        let mut connection = LoadConnection::open(listeners.admin, CALL_TIMEOUT).ok()?;
        let (_, body) = connection.ask("GET", "/v1/rules/status", "").ok()?;
        let status: Value = serde_json::from_str(&body).ok()?;
        Some((listeners.restarts, status["version"].as_u64()?))
    }

    /// Notes the version of a process, and returns the one before it if that was later.
    fn see(&self, node: usize, restarts: usize, version: u64) -> Option<u64> {
        let mut state = self.nodes[node].state();
        if state.lives.len() != restarts {
            return None;
        }
        let before = std::mem::replace(&mut state.seen_version, version);
        (before > version).then_some(before)
    }

    /// Asks every node for its version of the rules, and returns the last one that all of them have.
    pub(crate) fn observe(&self) -> u64 {
        self.observe_changes(|_, _, _| ())
    }

    /// As [`observe`](Self::observe). A process whose version went back is given to `went_back`.
    pub(crate) fn observe_changes(&self, mut went_back: impl FnMut(usize, u64, u64)) -> u64 {
        for node in 0..self.nodes.len() {
            if let Some((restarts, version)) = self.ask_version(node)
                && let Some(before) = self.see(node, restarts, version)
            {
                went_back(node, before, version);
            }
        }
        let mut adopted = self.adopted.lock().unwrap();
        let common = self.nodes.iter().map(|node| node.state().seen_version).min().unwrap();
        *adopted = common.max(*adopted);
        *adopted
    }

    /// Versions that nodes were seen with last.
    pub(crate) fn versions(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.state().seen_version).collect()
    }

    /// Pushes rules through a node; returns their version if that was confirmed.
    pub(crate) fn push(&self, node: usize, rules: &str) -> Option<u64> {
        let listeners = self.listeners(node)?;
        let mut connection = LoadConnection::open(listeners.admin, Duration::from_secs(5)).ok()?;
        let (status, body) = connection.ask("PUT", "/v1/rules", rules).ok()?;
        assert!(status != 422 && status != 400, "the rules are refused: {body}\n{rules}");
        let answer: Value = serde_json::from_str(&body).ok()?;
        (status == 200).then(|| answer["version"].as_u64()).flatten()
    }

    /// Kills a node (`SIGKILL`).
    pub(crate) fn kill_node(&self, node: usize) {
        let mut state = self.nodes[node].state();
        // Dropping the process kills it and waits for its end.
        state.running = None;
        state.seen_version = 0;
        state.lives.last_mut().unwrap().1 = now();
    }

    pub(crate) fn restart_node(&self, node: usize) {
        self.nodes[node].start();
    }

    /// Stops a node where it is (`SIGSTOP`).
    pub(crate) fn pause_node(&self, node: usize) {
        self.nodes[node].state().running.as_ref().unwrap().process.pause();
    }

    pub(crate) fn resume_node(&self, node: usize) {
        self.nodes[node].state().running.as_ref().unwrap().process.resume();
    }

    /// When each process of each node ran.
    pub(crate) fn lives(&self) -> Vec<(Micros, Micros)> {
        self.nodes.iter().flat_map(|node| node.state().lives.clone()).collect()
    }

    /// The last lines of each node's log.
    pub(crate) fn log_tail(&self) -> String {
        let logs = self.nodes.iter().enumerate().map(|(place, node)| {
            let state = node.state();
            let tail = state.running.as_ref().map(|node| node.process.log_tail());
            format!("node {place}:\n{}", tail.unwrap_or_default())
        });
        logs.collect()
    }

    /// Waits until every server and node answers, as they do without a fault. Returns what does not.
    pub(crate) fn wait_until_whole(&self) -> Option<String> {
        match &self.servers {
            StateServers::Sentinel(sentinel) => sentinel.wait_until_whole(),
            StateServers::Cluster(cluster) => cluster.wait_until_whole(),
            StateServers::Memory | StateServers::Single { .. } | StateServers::Shards(_) => {}
        }
        let late = |node: &usize| poll(|| self.may_serve(*node).then_some(())).is_none();
        (0..self.nodes.len()).find(late).map(|node| format!("node {node} is not ready again"))
    }
}
