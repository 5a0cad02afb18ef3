//! Collects the metrics of one moment from wherever they are counted.

use std::time::Duration;

use tidegate_core::CallStatus;
use tidegate_limiter::{Limiter, MemoryStore, Store};
use tidegate_redis::{Latency, RedisStore, ServerReport, ServerUse};
use tidegate_rules::{Mode, OnStoreFailure};

use crate::active_rules::ActiveRules;
use crate::call::Protocol;
use crate::metrics::exposition::{Exposition, Labels};
use crate::metrics::names::{self, Metric};
use crate::metrics::process::Process;
use crate::source_status::SourceStatus;
use crate::stats::latency::{Histogram, seconds};
use crate::stats::rule_counts::{NAMED, OTHER};
use crate::stats::{BLOCKED, ServerCounters};
use crate::store::AnyStore;

/// Who else knows something.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub(crate) active_rules: &'a ActiveRules,
    pub(crate) source_status: &'a SourceStatus,
    pub(crate) ready: bool,
    /// Checks that the ranking of clients passed over.
    pub(crate) missed: u64,
}

pub(crate) fn gather(metrics: &ServerCounters, sources: Sources<'_>) -> Exposition {
    let mut told = Exposition::default();
    told.family(names::BUILD, [(label("version", env!("CARGO_PKG_VERSION")), true)]);
    told.one(names::READY, sources.ready);
    checks(metrics, &mut told);
    rules(metrics, sources.active_rules, &mut told);
    source(sources.active_rules.version().number, sources.source_status, &mut told);
    listeners(metrics, &mut told);
    upstreams(metrics, &mut told);
    blocks(sources.active_rules.limiter(), &mut told);
    told.one(names::TOP_MISSED, sources.missed);
    match &**sources.active_rules.limiter().store() {
        AnyStore::Memory(store) => memory(store, &mut told),
        AnyStore::Redis(store) => {
            let (clients, tokens) = sources.active_rules.limiter().leased();
            told.one(names::LEASED_CLIENTS, clients);
            told.one(names::LEASED_TOKENS, tokens);
            redis(store, &mut told);
        }
    }
    process(&mut told);
    told
}

fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

fn checks(metrics: &ServerCounters, told: &mut Exposition) {
    let answers = || {
        let endings = CallStatus::ALL.into_iter().map(|ending| (ending.label(), ending as usize));
        endings.chain([("blocked", BLOCKED)])
    };
    let rows = Protocol::ALL.into_iter().flat_map(|via| {
        answers().map(move |(answer, counter)| {
            let labels = labels([("listener", via.name()), ("answer", answer)]);
            (labels, metrics.checks.total(via as usize, counter))
        })
    });
    told.family(names::CHECKS, rows);
    let durations = Protocol::ALL
        .into_iter()
        .map(|via| (label("listener", via.name()), metrics.durations.read(via as usize)));
    told.family(names::CHECK_DURATION, durations);
}

fn rules(metrics: &ServerCounters, active_rules: &ActiveRules, told: &mut Exposition) {
    let (limiter, lines, version) =
        (active_rules.limiter(), active_rules.counter_ids(), active_rules.version());
    let rules = limiter.rules();
    let decisions = metrics.rules.read(lines, rules).map(|(rule, answer, count)| {
        (labels([("rule", rule), ("outcome", answer.label())]), count)
    });
    told.family(names::DECISIONS, decisions);
    let (mut failures, mut others) = (Vec::new(), [0; 3]);
    for ((rule_index, rule), (_, counts)) in rules.all().zip(limiter.failures()) {
        let answers = [
            (OnStoreFailure::Allow, "allow", counts.open),
            (OnStoreFailure::Deny, "deny", counts.closed),
            (OnStoreFailure::Local, "local", counts.local),
        ];
        for (index, (answer, name, count)) in answers.into_iter().enumerate() {
            let possible = rule.on_store_failure() == answer && rule.mode() == Mode::Enforce;
            if lines.number(rule_index).is_none_or(|number| number >= NAMED) {
                others[index] += count;
            } else if possible || count > 0 {
                failures.push((labels([("rule", rule.name()), ("answer", name)]), count));
            }
        }
    }
    if rules.all().count() > NAMED {
        let names = ["allow", "deny", "local"].into_iter().zip(others);
        let others =
            names.map(|(name, count)| (labels([("rule", OTHER), ("answer", name)]), count));
        failures.extend(others);
    }
    told.family(names::STORE_FAILURES, failures);
    told.one(names::RULES, rules.rules().len());
    told.family(names::RULES_VERSION, [(label("version", &version.hash), true)]);
    told.one(names::RULES_NUMBER, version.number);
    told.one(names::RULES_LOADED, seconds(version.loaded.as_micros()));
}

fn source(number: u64, status: &SourceStatus, told: &mut Exposition) {
    told.one(names::RULES_BEHIND, status.is_behind(number));
    told.one(names::RULES_SOURCE_UP, !status.is_unreachable);
    told.one(names::RULES_SOURCE_FAILURES, status.failures);
    told.one(names::RULES_REJECTED, status.rejected);
}

fn listeners(metrics: &ServerCounters, told: &mut Exposition) {
    let listeners = metrics.listeners();
    let open = listeners.iter().map(|(name, listener)| (label("listener", name), listener.open()));
    told.family(names::CONNECTIONS, open);
    let accepted =
        listeners.iter().map(|(name, listener)| (label("listener", name), listener.accepted()));
    told.family(names::CONNECTIONS_ACCEPTED, accepted);
    let most = listeners.iter().map(|(name, listener)| (label("listener", name), listener.max()));
    told.family(names::CONNECTIONS_MOST, most);
}

fn upstreams(metrics: &ServerCounters, told: &mut Exposition) {
    let all = metrics.upstream_samples();
    if all.is_empty() {
        return;
    }
    let each = |name: &str| label("upstream", name);
    let outcomes = all.iter().flat_map(|upstream| {
        let outcomes = upstream.outcomes.iter();
        outcomes.map(|(outcome, count)| {
            (labels([("upstream", &*upstream.name), ("outcome", *outcome)]), *count)
        })
    });
    told.family(names::UPSTREAM_REQUESTS, outcomes);
    let in_flight = all.iter().map(|upstream| (each(&upstream.name), upstream.in_flight));
    told.family(names::UPSTREAM_IN_FLIGHT, in_flight);
    let most =
        all.iter().filter_map(|upstream| Some((each(&upstream.name), upstream.max_in_flight?)));
    told.family(names::UPSTREAM_MOST, most);
    let servers = all.iter().flat_map(|upstream| {
        let servers = upstream.servers.iter();
        servers.map(|(server, well)| {
            (labels([("upstream", &*upstream.name), ("server", server.as_str())]), *well)
        })
    });
    told.family(names::UPSTREAM_UP, servers);
}

fn blocks(limiter: &Limiter<AnyStore>, told: &mut Exposition) {
    let usage = limiter.blocks().usage();
    told.one(names::BLOCKED, usage.entries);
    told.one(names::BLOCKS_REFUSED, usage.refused);
    told.one(names::BLOCKS_EVICTED, usage.evicted);
}

fn memory(store: &MemoryStore, told: &mut Exposition) {
    let usage = store.usage();
    told.one(names::MEMORY_KEYS, usage.keys);
    told.one(names::MEMORY_MOST, usage.max_keys);
    told.one(names::MEMORY_BYTES, usage.bytes);
    told.one(names::MEMORY_EXPIRED, usage.expired);
    told.one(names::MEMORY_OVERFLOWED, usage.overflowed);
}

fn redis(store: &RedisStore, told: &mut Exposition) {
    told.one(names::FLEET, store.share().of);
    let counts = store.counts();
    told.one(names::REDIS_REQUESTS, counts.carried);
    told.one(names::REDIS_CALLS, counts.calls);
    told.one(names::REDIS_ASKS, counts.asks);
    told.one(names::REDIS_ASK_CALLS, counts.ask_calls);
    told.one(names::REDIS_REMEMBERED, counts.remembered);
    told.one(names::REDIS_LATE, counts.late);
    told.one(names::REDIS_LOST, counts.lost);
    told.one(names::REDIS_FAILOVERS, counts.failovers);
    servers(&store.reports(), told);
}

/// One of the figures that something knows.
type Figure<T> = fn(&T) -> u64;

fn servers(reports: &[ServerReport], told: &mut Exposition) {
    let server = |report: &ServerReport| label("server", short(report));
    let up = reports.iter().map(|report| (server(report), report.is_up));
    told.family(names::REDIS_UP, up);
    let durations = reports.iter().map(|report| (server(report), of_calls(&report.latency)));
    told.family(names::REDIS_DURATION, durations);
    let counters: [(Metric, Figure<ServerReport>); 4] = [
        (names::REDIS_TIMEOUTS, |report| report.timeouts),
        (names::REDIS_FAILURES, |report| report.failures),
        (names::REDIS_OPENED, |report| report.opened),
        (names::REDIS_CONNECTED, |report| report.connections),
    ];
    for (metric, count) in counters {
        told.family(metric, reports.iter().map(|report| (server(report), count(report))));
    }
    let uses: [(Metric, Figure<ServerUse>); 4] = [
        (names::REDIS_MEMORY, |usage| usage.memory),
        (names::REDIS_MOST_MEMORY, |usage| usage.max_memory),
        (names::REDIS_KEYS, |usage| usage.keys),
        (names::REDIS_EVICTED, |usage| usage.evicted),
    ];
    for (metric, number) in uses {
        let known = reports.iter().filter_map(|report| Some((report, report.usage?)));
        told.family(metric, known.map(|(report, usage)| (server(report), number(&usage))));
    }
}

/// What a server is called: names begin with the word `redis`, which everything around them says already.
pub fn short(report: &ServerReport) -> &str {
    report.name.strip_prefix("redis ").unwrap_or(&report.name)
}

fn of_calls(latency: &Latency) -> Histogram {
    let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    Histogram::of(&Latency::BOUNDS.map(micros), latency.counts, micros(latency.sum))
}

fn process(told: &mut Exposition) {
    let process = Process::read();
    told.known(names::CPU, process.cpu_seconds);
    told.known(names::RESIDENT, process.resident_bytes);
    told.known(names::VIRTUAL, process.virtual_bytes);
    told.known(names::OPEN_FILES, process.open_files);
    told.known(names::MOST_FILES, process.most_files);
    told.known(names::THREADS, process.threads);
    told.known(names::STARTED, process.started);
}
