//! `/v1/fleet`: the nodes, the store, and the listeners, upstreams and process of this node.

use hyper::Response;
use tidegate_api::{
    FleetReport, ListenerReport, MemoryReport, ProcessReport, RedisReport, RedisServerReport,
    StoreReport, UpstreamReport, UpstreamServerReport,
};
use tidegate_limiter::{MemoryStore, Store as _};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_redis::{RedisStore, ServerReport};
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::live::LiveHistory;
use tidegate_service::metrics::{ProcessStats, redis_server_label};
use tidegate_service::stats::UpstreamSample;
use tidegate_service::store::AnyStore;

use crate::AdminApi;

/// Returns the state of the fleet. If the reports of other nodes can't be read, only this node is listed.
pub(crate) async fn handle(admin: &AdminApi, active: &ActiveRules) -> Response<Body> {
    let manager = &admin.manager;
    let (nodes, unknown) = match manager.reports().await {
        Ok(nodes) => (nodes, None),
        Err(error) => (vec![manager.report()], Some(error.to_string())),
    };
    let metrics = &admin.service.stats().counters;
    let listeners = metrics.listeners().into_iter().map(|(listener, connections)| ListenerReport {
        listener: listener.to_owned(),
        open: connections.open(),
        accepted: connections.accepted(),
        most: connections.max() as u64,
    });
    let upstreams = metrics.upstream_samples();
    let report = FleetReport {
        node: manager.node().to_owned(),
        latest: manager.source_status().latest,
        unknown,
        nodes,
        store: match &**active.limiter().store() {
            AnyStore::Memory(store) => StoreReport::Memory(memory_report(store)),
            AnyStore::Redis(store) => {
                StoreReport::Redis(redis_report(store, active.limiter().leased(), &admin.live))
            }
        },
        listeners: listeners.collect(),
        upstreams: upstreams.iter().map(upstream_report).collect(),
        process: process_report(ProcessStats::read()),
    };
    response::json(200, JSON, &report)
}

fn memory_report(store: &MemoryStore) -> MemoryReport {
    let usage = store.usage();
    MemoryReport {
        keys: usage.keys as u64,
        max_keys: usage.max_keys as u64,
        bytes: usage.bytes as u64,
        max_bytes: usage.max_bytes as u64,
        expired: usage.expired,
        overflowed: usage.overflowed,
        growth_denied: usage.growth_denied,
    }
}

fn redis_report(
    store: &RedisStore,
    leased: (usize, u64),
    live: &LiveHistory,
) -> RedisReport<String> {
    let (counts, (leased_clients, leased_tokens)) = (store.counts(), leased);
    let reports = store.reports();
    RedisReport {
        fleet: store.share().of,
        late: counts.late,
        lost: counts.lost,
        remembered: counts.remembered,
        failovers: counts.failovers,
        leased_clients: leased_clients as u64,
        leased_tokens,
        servers: reports.iter().map(|report| redis_server_report(report, live)).collect(),
    }
}

fn redis_server_report(report: &ServerReport, live: &LiveHistory) -> RedisServerReport<String> {
    RedisServerReport {
        server: redis_server_label(report).to_owned(),
        up: report.is_up,
        opened: report.opened,
        timeouts: report.timeouts,
        failures: report.failures,
        connections: report.connections,
        calls: live.redis_call_times(&report.name),
        memory: report.usage.map(|usage| usage.memory),
        max_memory: report.usage.map(|usage| usage.max_memory),
        keys: report.usage.map(|usage| usage.keys),
        evicted: report.usage.map(|usage| usage.evicted),
    }
}

fn upstream_report(sample: &UpstreamSample) -> UpstreamReport<String> {
    let servers = sample.servers.iter();
    UpstreamReport {
        upstream: sample.name.to_string(),
        in_flight: sample.in_flight as u64,
        most: sample.max_in_flight.map(|max| max as u64),
        outcomes: sample
            .outcomes
            .iter()
            .map(|(outcome, count)| ((*outcome).to_owned(), *count))
            .collect(),
        servers: servers
            .map(|(server, up)| UpstreamServerReport { server: server.to_string(), up: *up })
            .collect(),
    }
}

fn process_report(process: ProcessStats) -> ProcessReport {
    ProcessReport {
        cpu_seconds: process.cpu_seconds,
        resident_bytes: process.resident_bytes,
        threads: process.threads,
        open_files: process.open_files,
    }
}
