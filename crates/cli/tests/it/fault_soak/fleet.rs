//! The processes of one episode: nodes, and the servers that store their state.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{Cluster, FaultProxy, Process, Redis, Sentinel, poll, wait_for};

use super::connection::LoadConnection;
use super::history::{Micros, now};
use super::scenario::{EpisodeScenario, PHASE_MILLIS, StoreTopology};
use crate::kit::{Folder, wait_for_rules_copy};

/// Timeout of one call from the test to a node.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Time from the start of the nodes to the start of the load, in microseconds.
const STARTUP_TIME: Micros = 2_500_000;

/// The servers that store the state.
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

    /// Returns the `store` section of a node's configuration.
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

    /// Returns the epoch of the topology, which increases with each failover, planned or not.
    pub(crate) fn failover_epoch(&self) -> u64 {
        match self {
            Self::Memory | Self::Single { .. } | Self::Shards(_) => 0,
            Self::Sentinel(sentinel) => {
                let up = sentinel.sentinels().iter().find(|server| server.is_up()).unwrap();
                let fields: Vec<String> = up.query(&["SENTINEL", "MASTER", Sentinel::NAME]);
                let name = fields.iter().position(|field| field == "config-epoch").unwrap();
                fields[name + 1].parse().unwrap()
            }
            Self::Cluster(cluster) => {
                let up = cluster.nodes().iter().find(|server| server.is_up()).unwrap();
                let info: String = up.query(&["CLUSTER", "INFO"]);
                let epoch =
                    info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
                epoch.unwrap().trim().parse().unwrap()
            }
        }
    }
}

/// A running process of a node.
struct NodeProcess {
    process: Process,
    http: SocketAddr,
    resp: SocketAddr,
    admin: SocketAddr,
}

/// Addresses of the listeners of one node process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeListeners {
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    admin: SocketAddr,
    /// Number of processes that this node has started. It distinguishes a restarted process from its predecessor.
    pub(crate) starts: usize,
}

struct NodeState {
    running: Option<NodeProcess>,
    /// The last version of the rules that this process reported.
    reported_version: u64,
    /// Start and end of every process of this node.
    lifetimes: Vec<(Micros, Micros)>,
}

/// One node, which can be killed and started again.
struct SoakNode {
    folder: Folder,
    config: String,
    /// Offset of the node's wall clock, in seconds.
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
        state.reported_version = 0;
        state.lifetimes.push((now(), Micros::MAX));
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
    /// The last version of the rules that every node has reported.
    adopted: Mutex<u64>,
    /// Start of the load. It fixes the phase of the store's windows, as the scenario demands.
    pub(crate) load_starts: Micros,
    /// Offset of the store's clock from the machine's clock at the start.
    pub(crate) first_offset: Micros,
}

impl SoakFleet {
    /// Starts all processes, and returns when each node is ready and has the rules.
    pub(crate) fn start(scenario: &EpisodeScenario) -> Self {
        let servers = StateServers::start(scenario.topology, scenario.nodes());
        let (mut load_starts, mut first_offset) = (now(), 0);
        if let StateServers::Single { redis, .. } = &servers {
            let [phase, period] = [scenario.phase_millis, PHASE_MILLIS];
            let [phase, period] = [phase, period].map(|millis| Micros::try_from(millis).unwrap());
            load_starts = now() / 1_000 * 1_000 + STARTUP_TIME;
            first_offset = (phase - load_starts / 1_000).rem_euclid(period) * 1_000;
            redis.set_clock(first_offset / 1_000);
        }
        let denial_memory = if scenario.caches_denials { "1s" } else { "off" };
        let options =
            format!("timeout: {}ms, denial_memory: {denial_memory}", scenario.timeout_millis);
        let rules = scenario.rules(&scenario.first_limits());
        let has_pushes = scenario.has_rule_pushes();
        let nodes = scenario.node_skews.iter().enumerate().map(|(index, skew)| {
            let folder = Folder::new();
            let source = if has_pushes {
                "rules: {redis: true, poll: 1s}\n".to_owned()
            } else {
                format!("rules: {{file: '{}'}}\n", folder.file("rules.yaml", &rules))
            };
            let listeners = "listen: {http: '127.0.0.1:0', grpc: off, resp: '127.0.0.1:0', admin: '127.0.0.1:0'}\n";
            let store = servers.yaml(index, &options);
            let config = folder.file("tidegate.yaml", &format!("{store}{source}{listeners}"));
            let state = NodeState { running: None, reported_version: 0, lifetimes: Vec::new() };
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
            wait_for("every node has the rules", || (fleet.poll_versions() >= 1).then_some(()));
            fleet.nodes.iter().for_each(|node| wait_for_rules_copy(node.folder.path(), 1));
        }
        fleet
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the listeners of a node, or `None` while it is not running.
    pub(crate) fn listeners(&self, node: usize) -> Option<NodeListeners> {
        let state = self.nodes[node].state();
        let NodeProcess { http, resp, admin, .. } = *state.running.as_ref()?;
        Some(NodeListeners { http, resp, admin, starts: state.lifetimes.len() })
    }

    fn is_ready(&self, node: usize) -> bool {
        let answer = self.listeners(node).and_then(|listeners| {
            LoadConnection::open(listeners.http, CALL_TIMEOUT)
                .ok()?
                .send_http("GET", "/readyz", "")
                .ok()
        });
        answer.is_some_and(|(status, _)| status == 200)
    }

    /// Returns whether a load balancer would send requests to this process: it is ready, and its rules are not older than
    /// the version that every node has reported.
    pub(crate) fn may_serve(&self, node: usize) -> bool {
        if !self.is_ready(node) {
            return false;
        }
        if !self.has_pushes {
            return true;
        }
        let Some((starts, version)) = self.fetch_version(node) else { return false };
        // The lock orders this report before the next decision about the adopted version.
        let adopted = self.adopted.lock().unwrap();
        self.record_version(node, starts, version);
        version >= *adopted
    }

    /// Returns the number of starts and the version of the rules of a node.
    fn fetch_version(&self, node: usize) -> Option<(usize, u64)> {
        let listeners = self.listeners(node)?;
        let mut connection = LoadConnection::open(listeners.admin, CALL_TIMEOUT).ok()?;
        let (_, body) = connection.send_http("GET", "/v1/rules/status", "").ok()?;
        let status: Value = serde_json::from_str(&body).ok()?;
        Some((listeners.starts, status["version"].as_u64()?))
    }

    /// Records the version of a process. Returns the previous version if it was later.
    fn record_version(&self, node: usize, starts: usize, version: u64) -> Option<u64> {
        let mut state = self.nodes[node].state();
        if state.lifetimes.len() != starts {
            return None;
        }
        let before = std::mem::replace(&mut state.reported_version, version);
        (before > version).then_some(before)
    }

    /// Fetches the version of every node, and returns the last one that all of them have.
    pub(crate) fn poll_versions(&self) -> u64 {
        self.poll_versions_with(|_, _, _| ())
    }

    /// As [`poll_versions`](Self::poll_versions). Calls `on_decrease` with the node, its previous version and its new
    /// version if the version of a process decreased.
    pub(crate) fn poll_versions_with(&self, mut on_decrease: impl FnMut(usize, u64, u64)) -> u64 {
        for node in 0..self.nodes.len() {
            if let Some((starts, version)) = self.fetch_version(node)
                && let Some(before) = self.record_version(node, starts, version)
            {
                on_decrease(node, before, version);
            }
        }
        let mut adopted = self.adopted.lock().unwrap();
        let common = self.nodes.iter().map(|node| node.state().reported_version).min().unwrap();
        *adopted = common.max(*adopted);
        *adopted
    }

    /// Returns the last version that each node reported.
    pub(crate) fn versions(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.state().reported_version).collect()
    }

    /// Pushes rules through a node. Returns their version if the push was confirmed.
    pub(crate) fn push(&self, node: usize, rules: &str) -> Option<u64> {
        let listeners = self.listeners(node)?;
        let mut connection = LoadConnection::open(listeners.admin, Duration::from_secs(5)).ok()?;
        let (status, body) = connection.send_http("PUT", "/v1/rules", rules).ok()?;
        assert!(status != 422 && status != 400, "the rules are refused: {body}\n{rules}");
        let answer: Value = serde_json::from_str(&body).ok()?;
        (status == 200).then(|| answer["version"].as_u64()).flatten()
    }

    /// Kills a node (`SIGKILL`).
    pub(crate) fn kill_node(&self, node: usize) {
        let mut state = self.nodes[node].state();
        // Dropping the process kills it and waits for its end.
        state.running = None;
        state.reported_version = 0;
        state.lifetimes.last_mut().unwrap().1 = now();
    }

    pub(crate) fn restart_node(&self, node: usize) {
        self.nodes[node].start();
    }

    /// Pauses a node (`SIGSTOP`).
    pub(crate) fn pause_node(&self, node: usize) {
        self.nodes[node].state().running.as_ref().unwrap().process.pause();
    }

    pub(crate) fn resume_node(&self, node: usize) {
        self.nodes[node].state().running.as_ref().unwrap().process.resume();
    }

    /// Returns the start and end of every node process.
    pub(crate) fn process_lifetimes(&self) -> Vec<(Micros, Micros)> {
        self.nodes.iter().flat_map(|node| node.state().lifetimes.clone()).collect()
    }

    /// The last lines of each node's log.
    pub(crate) fn log_tail(&self) -> String {
        let logs = self.nodes.iter().enumerate().map(|(index, node)| {
            let state = node.state();
            let tail = state.running.as_ref().map(|node| node.process.log_tail());
            format!("node {index}:\n{}", tail.unwrap_or_default())
        });
        logs.collect()
    }

    /// Waits until every server and node has recovered. Returns a description of the first node that has not.
    pub(crate) fn wait_until_whole(&self) -> Option<String> {
        match &self.servers {
            StateServers::Sentinel(sentinel) => sentinel.wait_until_whole(),
            StateServers::Cluster(cluster) => cluster.wait_until_whole(),
            StateServers::Memory | StateServers::Single { .. } | StateServers::Shards(_) => {}
        }
        let not_ready = |node: &usize| poll(|| self.may_serve(*node).then_some(())).is_none();
        (0..self.nodes.len()).find(not_ready).map(|node| format!("node {node} is not ready again"))
    }
}
