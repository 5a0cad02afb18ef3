//! Collects the metrics of one moment from all counters.

use std::time::Duration;

use tidegate_core::{CallStatus, InvalidReason};
use tidegate_limiter::{Limiter, MemoryStore, Store};
use tidegate_net::listener::RefusalReason;
use tidegate_redis::{Latency, RedisStore, ServerReport, ServerUse};
use tidegate_rules::{Mode, OnStoreFailure};

use crate::active_rules::ActiveRules;
use crate::call::Protocol;
use crate::metrics::exposition::{Exposition, Labels};
use crate::metrics::names::{self, Metric};
use crate::metrics::process::ProcessStats;
use crate::source_status::SourceStatus;
use crate::stats::latency::{Histogram, seconds};
use crate::stats::rule_counts::{MAX_NAMED_RULES, OTHER_RULES_LABEL};
use crate::stats::{ALLOW_LISTED_COUNTER, BLOCKED_COUNTER, ServerCounters};
use crate::store::AnyStore;

/// Inputs of the metrics beside the counters.
#[derive(Clone, Copy, Debug)]
pub struct MetricSources<'a> {
    pub(crate) active_rules: &'a ActiveRules,
    pub(crate) source_status: &'a SourceStatus,
    pub(crate) ready: bool,
    /// Checks that the client ranking did not count.
    pub(crate) missed: u64,
}

pub(crate) fn gather(counters: &ServerCounters, sources: MetricSources<'_>) -> Exposition {
    let mut exposition = Exposition::default();
    exposition.add_family(names::BUILD, [(label("version", env!("CARGO_PKG_VERSION")), true)]);
    exposition.add(names::READY, sources.ready);
    checks(counters, &mut exposition);
    rules(counters, sources.active_rules, &mut exposition);
    source(sources.active_rules.version().number, sources.source_status, &mut exposition);
    listeners(counters, &mut exposition);
    upstreams(counters, &mut exposition);
    blocks(sources.active_rules.limiter(), &mut exposition);
    exposition.add(names::TOP_MISSED, sources.missed);
    match &**sources.active_rules.limiter().store() {
        AnyStore::Memory(store) => memory(store, &mut exposition),
        AnyStore::Redis(store) => {
            let (clients, tokens) = sources.active_rules.limiter().leased();
            exposition.add(names::LEASED_CLIENTS, clients);
            exposition.add(names::LEASED_TOKENS, tokens);
            redis(store, &mut exposition);
        }
    }
    process(&mut exposition);
    exposition
}

fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

fn checks(counters: &ServerCounters, exposition: &mut Exposition) {
    let answers = || {
        let statuses = CallStatus::ALL.into_iter().map(|status| (status.label(), status as usize));
        statuses.chain([("blocked", BLOCKED_COUNTER), ("allow_listed", ALLOW_LISTED_COUNTER)])
    };
    let rows = Protocol::ALL.into_iter().flat_map(|protocol| {
        answers().map(move |(answer, counter)| {
            let labels = labels([("listener", protocol.name()), ("answer", answer)]);
            (labels, counters.checks.total(protocol as usize, counter))
        })
    });
    exposition.add_family(names::CHECKS, rows);
    let invalid = Protocol::ALL.into_iter().flat_map(|protocol| {
        InvalidReason::ALL.into_iter().map(move |reason| {
            let labels = labels([("listener", protocol.name()), ("reason", reason.label())]);
            (labels, counters.invalid_calls.total(protocol as usize, reason as usize))
        })
    });
    exposition.add_family(names::INVALID_CALLS, invalid);
    let durations = Protocol::ALL.into_iter().map(|protocol| {
        (label("listener", protocol.name()), counters.durations.read(protocol as usize))
    });
    exposition.add_family(names::CHECK_DURATION, durations);
}

fn rules(counters: &ServerCounters, active_rules: &ActiveRules, exposition: &mut Exposition) {
    let (limiter, ids, version) =
        (active_rules.limiter(), active_rules.counter_ids(), active_rules.version());
    let rules = limiter.rules();
    let decisions = counters.rules.read(ids, rules).map(|(rule, outcome, count)| {
        (labels([("rule", rule), ("outcome", outcome.label())]), count)
    });
    exposition.add_family(names::DECISIONS, decisions);
    let (mut failures, mut others) = (Vec::new(), [0; 3]);
    for ((rule_index, rule), (_, counts)) in rules.all().zip(limiter.failures()) {
        let answers = [
            (OnStoreFailure::Allow, "allow", counts.open),
            (OnStoreFailure::Deny, "deny", counts.closed),
            (OnStoreFailure::Local, "local", counts.local),
        ];
        for (index, (answer, name, count)) in answers.into_iter().enumerate() {
            let possible = rule.on_store_failure() == answer && rule.mode() == Mode::Enforce;
            if ids.number(rule_index).is_none_or(|number| number >= MAX_NAMED_RULES) {
                others[index] += count;
            } else if possible || count > 0 {
                failures.push((labels([("rule", rule.name()), ("answer", name)]), count));
            }
        }
    }
    if rules.all().count() > MAX_NAMED_RULES {
        let names = ["allow", "deny", "local"].into_iter().zip(others);
        let others = names
            .map(|(name, count)| (labels([("rule", OTHER_RULES_LABEL), ("answer", name)]), count));
        failures.extend(others);
    }
    exposition.add_family(names::STORE_FAILURES, failures);
    exposition.add(names::RULES, rules.rules().len());
    exposition.add_family(names::RULES_VERSION, [(label("version", &version.hash), true)]);
    exposition.add(names::RULES_NUMBER, version.number);
    exposition.add(names::RULES_LOADED, seconds(version.loaded.as_micros()));
}

fn source(number: u64, status: &SourceStatus, exposition: &mut Exposition) {
    exposition.add(names::RULES_BEHIND, status.is_behind(number));
    exposition.add(names::RULES_SOURCE_UP, !status.is_unreachable);
    exposition.add(names::RULES_SOURCE_FAILURES, status.failures);
    exposition.add(names::RULES_REJECTED, status.rejected);
}

fn listeners(counters: &ServerCounters, exposition: &mut Exposition) {
    let listeners = counters.listeners();
    let open = listeners.iter().map(|(name, listener)| (label("listener", name), listener.open()));
    exposition.add_family(names::CONNECTIONS, open);
    let accepted =
        listeners.iter().map(|(name, listener)| (label("listener", name), listener.accepted()));
    exposition.add_family(names::CONNECTIONS_ACCEPTED, accepted);
    let limits = listeners.iter().map(|(name, listener)| (label("listener", name), listener.max()));
    exposition.add_family(names::CONNECTIONS_LIMIT, limits);
    let evicted =
        listeners.iter().map(|(name, listener)| (label("listener", name), listener.evicted()));
    exposition.add_family(names::CONNECTIONS_EVICTED, evicted);
    let refused = listeners.iter().flat_map(|(name, listener)| {
        RefusalReason::ALL.into_iter().map(move |reason| {
            let labels = labels([("listener", *name), ("reason", reason.label())]);
            (labels, listener.refused(reason))
        })
    });
    exposition.add_family(names::CONNECTIONS_REFUSED, refused);
    let gateway = listeners.iter().map(|(_, listener)| listener);
    for listener in gateway.filter(|listener| listener.max_upstream() > 0) {
        exposition.add(names::UPSTREAM_CONNECTIONS, listener.upstream_open());
        exposition.add(names::UPSTREAM_CONNECTIONS_LIMIT, listener.max_upstream());
    }
    let abandoning =
        listeners.iter().map(|(name, listener)| (label("listener", name), listener.abandoning()));
    exposition.add_family(names::CONNECTIONS_ABANDONING, abandoning);
    let slow =
        listeners.iter().map(|(name, listener)| (label("listener", name), listener.slow_bodies()));
    exposition.add_family(names::SLOW_BODIES, slow);
    // Only these listeners have a token or a password.
    let failures = listeners.iter().filter(|(name, _)| matches!(*name, "admin" | "resp"));
    let failures =
        failures.map(|(name, listener)| (label("listener", name), listener.auth_failures()));
    exposition.add_family(names::AUTH_FAILURES, failures);
}

fn upstreams(counters: &ServerCounters, exposition: &mut Exposition) {
    let all = counters.upstream_samples();
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
    exposition.add_family(names::UPSTREAM_REQUESTS, outcomes);
    let in_flight = all.iter().map(|upstream| (each(&upstream.name), upstream.in_flight));
    exposition.add_family(names::UPSTREAM_IN_FLIGHT, in_flight);
    let limits =
        all.iter().filter_map(|upstream| Some((each(&upstream.name), upstream.max_in_flight?)));
    exposition.add_family(names::UPSTREAM_LIMIT, limits);
    let servers = all.iter().flat_map(|upstream| {
        let servers = upstream.servers.iter();
        servers.map(|(server, is_healthy)| {
            (labels([("upstream", &*upstream.name), ("server", server.as_str())]), *is_healthy)
        })
    });
    exposition.add_family(names::UPSTREAM_UP, servers);
}

fn blocks(limiter: &Limiter<AnyStore>, exposition: &mut Exposition) {
    let usage = limiter.blocks().usage();
    exposition.add(names::BLOCKED, usage.entries.saturating_sub(usage.allowed));
    exposition.add(names::ALLOW_LISTED, usage.allowed);
    exposition.add(names::BLOCKS_REFUSED, usage.refused);
    exposition.add(names::BLOCKS_EVICTED, usage.evicted);
}

fn memory(store: &MemoryStore, exposition: &mut Exposition) {
    let usage = store.usage();
    exposition.add(names::MEMORY_KEYS, usage.keys);
    exposition.add(names::MEMORY_LIMIT, usage.max_keys);
    exposition.add(names::MEMORY_BYTES, usage.bytes);
    exposition.add(names::MEMORY_BYTES_LIMIT, usage.max_bytes);
    exposition.add(names::MEMORY_EXPIRED, usage.expired);
    exposition.add(names::MEMORY_OVERFLOWED, usage.overflowed);
    exposition.add(names::MEMORY_GROWTH_DENIED, usage.growth_denied);
}

fn redis(store: &RedisStore, exposition: &mut Exposition) {
    exposition.add(names::FLEET, store.share().of);
    let counts = store.counts();
    exposition.add(names::REDIS_REQUESTS, counts.carried);
    exposition.add(names::REDIS_CALLS, counts.calls);
    exposition.add(names::REDIS_ASKS, counts.asks);
    exposition.add(names::REDIS_ASK_CALLS, counts.ask_calls);
    exposition.add(names::REDIS_REMEMBERED, counts.remembered);
    exposition.add(names::REDIS_LATE, counts.late);
    exposition.add(names::REDIS_LOST, counts.lost);
    exposition.add(names::REDIS_FAILOVERS, counts.failovers);
    servers(&store.reports(), exposition);
}

/// A function that reads one number of a report.
type ReadNumber<T> = fn(&T) -> u64;

fn servers(reports: &[ServerReport], exposition: &mut Exposition) {
    let server = |report: &ServerReport| label("server", redis_server_label(report));
    let up = reports.iter().map(|report| (server(report), report.is_up));
    exposition.add_family(names::REDIS_UP, up);
    let durations = reports.iter().map(|report| (server(report), call_durations(&report.latency)));
    exposition.add_family(names::REDIS_DURATION, durations);
    let counters: [(Metric, ReadNumber<ServerReport>); 4] = [
        (names::REDIS_TIMEOUTS, |report| report.timeouts),
        (names::REDIS_FAILURES, |report| report.failures),
        (names::REDIS_OPENED, |report| report.opened),
        (names::REDIS_CONNECTED, |report| report.connections),
    ];
    for (metric, count) in counters {
        exposition.add_family(metric, reports.iter().map(|report| (server(report), count(report))));
    }
    let uses: [(Metric, ReadNumber<ServerUse>); 4] = [
        (names::REDIS_MEMORY, |usage| usage.memory),
        (names::REDIS_MAX_MEMORY, |usage| usage.max_memory),
        (names::REDIS_KEYS, |usage| usage.keys),
        (names::REDIS_EVICTED, |usage| usage.evicted),
    ];
    for (metric, number) in uses {
        let known = reports.iter().filter_map(|report| Some((report, report.usage?)));
        exposition
            .add_family(metric, known.map(|(report, usage)| (server(report), number(&usage))));
    }
}

/// Returns the name of a server without the leading word `redis`, which is part of every metric name and heading.
pub fn redis_server_label(report: &ServerReport) -> &str {
    report.name.strip_prefix("redis ").unwrap_or(&report.name)
}

fn call_durations(latency: &Latency) -> Histogram {
    let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    Histogram::from_micros(&Latency::BOUNDS.map(micros), latency.counts, micros(latency.sum))
}

fn process(exposition: &mut Exposition) {
    let process = ProcessStats::read();
    exposition.add_known(names::CPU, process.cpu_seconds);
    exposition.add_known(names::RESIDENT, process.resident_bytes);
    exposition.add_known(names::VIRTUAL, process.virtual_bytes);
    exposition.add_known(names::OPEN_FILES, process.open_files);
    exposition.add_known(names::MAX_FILES, process.max_files);
    exposition.add_known(names::THREADS, process.threads);
    exposition.add_known(names::STARTED, process.started);
}
