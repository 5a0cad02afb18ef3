//! `/v1/fleet`: the nodes, the store that they share, and what this one has of doors, upstreams and machine.

use std::collections::BTreeMap;

use hyper::Response;
use serde::Serialize;
use tidegate_limiter::{MemoryStore, Store as _};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_redis::{RedisStore, ServerReport};
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::live::{Live, Usual};
use tidegate_service::metrics::{Process, short};
use tidegate_service::source_status::NodeReport;
use tidegate_service::stats::UpstreamSample;
use tidegate_service::store::AnyStore;

use crate::Admin;

/// Answers a request for how the fleet does. This node is known to itself, also when the others are not.
pub(super) async fn answer(admin: &Admin, now: &ActiveRules) -> Response<Body> {
    let manager = &admin.manager;
    let (nodes, unknown) = match manager.reports().await {
        Ok(nodes) => (nodes, None),
        Err(error) => (vec![manager.report()], Some(error.to_string())),
    };
    let metrics = &admin.service.stats().counters;
    let doors = metrics.listeners().into_iter().map(|(door, connections)| Door {
        door,
        open: connections.open(),
        accepted: connections.accepted(),
        most: connections.most(),
    });
    let upstreams = metrics.upstream_samples();
    let shown = Shown {
        node: manager.node(),
        latest: manager.standing().latest,
        unknown,
        nodes,
        store: match &**now.limiter().store() {
            AnyStore::Memory(store) => Store::memory(store),
            AnyStore::Redis(store) => Store::redis(store, now.limiter().leased(), &admin.live),
        },
        doors: doors.collect(),
        upstreams: upstreams.iter().map(Upstream::of).collect(),
        process: OfProcess::of(Process::read()),
    };
    response::json(200, JSON, &shown)
}

#[derive(Serialize)]
struct Shown<'a> {
    node: &'a str,
    /// The latest version of the rules, as far as this node has heard.
    latest: u64,
    /// Why other nodes are not listed.
    unknown: Option<String>,
    nodes: Vec<NodeReport>,
    store: Store,
    doors: Vec<Door>,
    upstreams: Vec<Upstream<'a>>,
    process: OfProcess,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Store {
    Memory {
        keys: usize,
        max_keys: usize,
        bytes: usize,
        expired: u64,
        overflowed: u64,
    },
    Redis {
        /// How many nodes share it, as far as this one knows.
        fleet: u64,
        late: u64,
        lost: u64,
        remembered: u64,
        failovers: u64,
        leased_clients: usize,
        leased_tokens: u64,
        servers: Vec<Server>,
    },
}

impl Store {
    fn memory(store: &MemoryStore) -> Self {
        let usage = store.usage();
        Self::Memory {
            keys: usage.keys,
            max_keys: usage.max_keys,
            bytes: usage.bytes,
            expired: usage.expired,
            overflowed: usage.overflowed,
        }
    }

    fn redis(store: &RedisStore, leased: (usize, u64), live: &Live) -> Self {
        let (counts, (leased_clients, leased_tokens)) = (store.counts(), leased);
        let reports = store.reports();
        Self::Redis {
            fleet: store.share().of,
            late: counts.late,
            lost: counts.lost,
            remembered: counts.remembered,
            failovers: counts.failovers,
            leased_clients,
            leased_tokens,
            servers: reports.iter().map(|report| Server::of(report, live)).collect(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    server: String,
    /// Whether it can be asked; if not, it was given up until a probe is answered.
    up: bool,
    opened: u64,
    timeouts: u64,
    failures: u64,
    connections: u64,
    /// Of calls in the last ten seconds.
    #[serde(flatten)]
    calls: Usual,
    /// What it says of itself, null if it does not.
    memory: Option<u64>,
    max_memory: Option<u64>,
    keys: Option<u64>,
    evicted: Option<u64>,
}

impl Server {
    fn of(report: &ServerReport, live: &Live) -> Self {
        Self {
            server: short(report).to_owned(),
            up: report.is_up,
            opened: report.opened,
            timeouts: report.timeouts,
            failures: report.failures,
            connections: report.connections,
            calls: live.calls(&report.name),
            memory: report.usage.map(|usage| usage.memory),
            max_memory: report.usage.map(|usage| usage.max_memory),
            keys: report.usage.map(|usage| usage.keys),
            evicted: report.usage.map(|usage| usage.evicted),
        }
    }
}

#[derive(Serialize)]
struct Door {
    door: &'static str,
    open: u64,
    accepted: u64,
    most: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Upstream<'a> {
    upstream: &'a str,
    in_flight: usize,
    /// Null when nothing bounds it.
    most: Option<usize>,
    outcomes: BTreeMap<&'static str, u64>,
    servers: Vec<UpstreamServer<'a>>,
}

#[derive(Serialize)]
struct UpstreamServer<'a> {
    server: &'a str,
    up: bool,
}

impl<'a> Upstream<'a> {
    fn of(sample: &'a UpstreamSample) -> Self {
        let servers = sample.servers.iter();
        Self {
            upstream: &sample.name,
            in_flight: sample.in_flight,
            most: sample.max_in_flight,
            outcomes: sample.outcomes.iter().copied().collect(),
            servers: servers.map(|(server, up)| UpstreamServer { server, up: *up }).collect(),
        }
    }
}

/// Null is what the system does not tell.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OfProcess {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<u64>,
    threads: Option<u64>,
    open_files: Option<u64>,
}

impl OfProcess {
    fn of(process: Process) -> Self {
        Self {
            cpu_seconds: process.cpu_seconds,
            resident_bytes: process.resident_bytes,
            threads: process.threads,
            open_files: process.open_files,
        }
    }
}
