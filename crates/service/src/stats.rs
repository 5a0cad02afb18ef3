//! Counters of the calls that this process has answered.
//!
//! Calls are counted in one place (`service.rs`), in counters of the thread that answers. `metrics` and `live`
//! read them.

pub(crate) mod counter_ids;
pub(crate) mod latency;
pub(crate) mod quantile;
pub(crate) mod rule_counts;
mod sample;
pub(crate) mod shards;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{CallError, CallStatus, Decision, InvalidReason, Span};
use tidegate_limiter::block::BlockAction;
use tidegate_net::listener::ConnectionCounts;
use tidegate_rules::RuleSet;

pub use self::counter_ids::CounterIds;
use self::latency::LatencyHistograms;
use self::rule_counts::RuleCounts;
pub use self::sample::CounterSample;
pub(crate) use self::sample::{checks_delta, counter_delta};
use self::shards::COUNTERS_PER_LINE;
pub use self::shards::ShardedCounters;
use crate::call::Protocol;

/// Index of the counter of blocked checks. The counters before it belong to each [`CallStatus`].
pub(crate) const BLOCKED_COUNTER: usize = CallStatus::ALL.len();
/// Index of the counter of checks by clients that an operator allowed.
pub(crate) const ALLOW_LISTED_COUNTER: usize = BLOCKED_COUNTER + 1;
const _: () = assert!(ALLOW_LISTED_COUNTER < COUNTERS_PER_LINE);
const _: () = assert!(InvalidReason::ALL.len() <= COUNTERS_PER_LINE);

/// Counters of calls by listener, counters of rules, and the sources of further samples.
#[derive(Debug)]
pub struct ServerCounters {
    /// One line of counters for each listener.
    pub(crate) checks: ShardedCounters,
    /// Invalid calls by [`InvalidReason`], one line of counters for each listener.
    pub(crate) invalid_calls: ShardedCounters,
    pub(crate) durations: LatencyHistograms,
    pub(crate) rules: RuleCounts,
    listeners: Mutex<Vec<(&'static str, Arc<ConnectionCounts>)>>,
    upstreams: Mutex<Option<UpstreamSource>>,
}

/// The counts and the health of one upstream at one moment.
#[derive(Debug)]
pub struct UpstreamSample {
    /// The name of the upstream.
    pub name: Arc<str>,
    /// Requests in flight.
    pub in_flight: usize,
    /// Most requests in flight; `None` without such a limit.
    pub max_in_flight: Option<usize>,
    /// The number of requests by outcome.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Its servers, and whether each is healthy.
    pub servers: Vec<(String, bool)>,
}

/// A function that returns the samples of a gateway's upstreams.
#[derive(Clone)]
struct UpstreamSource(Arc<dyn Fn() -> Vec<UpstreamSample> + Send + Sync>);

impl fmt::Debug for UpstreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamSource")
    }
}

impl ServerCounters {
    pub(crate) fn new() -> Self {
        Self {
            checks: ShardedCounters::new(Protocol::ALL.len()),
            invalid_calls: ShardedCounters::new(Protocol::ALL.len()),
            durations: LatencyHistograms::new(Protocol::ALL.len()),
            rules: RuleCounts::new(),
            listeners: Mutex::default(),
            upstreams: Mutex::default(),
        }
    }

    /// Reports the connections of a listener from now on.
    pub fn register_listener(&self, name: &'static str, connections: Arc<ConnectionCounts>) {
        self.listeners.lock().push((name, connections));
    }

    /// Reports the samples of a gateway's upstreams from now on.
    pub fn register_upstreams(
        &self,
        sample: impl Fn() -> Vec<UpstreamSample> + Send + Sync + 'static,
    ) {
        *self.upstreams.lock() = Some(UpstreamSource(Arc::new(sample)));
    }

    /// Returns the names of listeners and the counters of their connections.
    pub fn listeners(&self) -> Vec<(&'static str, Arc<ConnectionCounts>)> {
        self.listeners.lock().clone()
    }

    /// Returns the samples of a gateway's upstreams; none without a gateway.
    pub fn upstream_samples(&self) -> Vec<UpstreamSample> {
        let source = self.upstreams.lock().clone();
        source.map_or_else(Vec::new, |source| (source.0)())
    }

    /// Counts a check that was decided.
    #[inline]
    pub(crate) fn record_call(
        &self,
        protocol: Protocol,
        status: CallStatus,
        listed: Option<BlockAction>,
        took: Span,
    ) {
        let counter = match listed {
            None => status as usize,
            Some(BlockAction::Block) => BLOCKED_COUNTER,
            Some(BlockAction::Allow) => ALLOW_LISTED_COUNTER,
        };
        self.checks.add(protocol as usize, counter, 1);
        self.durations.add(protocol as usize, took, 1);
    }

    /// Counts checks that were decided together, with a duration each, by clients that are not listed.
    #[inline]
    pub(crate) fn record_calls(
        &self,
        protocol: Protocol,
        status: CallStatus,
        took: Span,
        count: usize,
    ) {
        if count > 0 {
            let count = count as u64;
            self.checks.add(protocol as usize, status as usize, count);
            self.durations.add(protocol as usize, took, count);
        }
    }

    /// Counts a call that was rejected without a decision.
    pub(crate) fn record_rejected(&self, protocol: Protocol, error: &CallError) {
        self.checks.add(protocol as usize, error.status as usize, 1);
        if let Some(reason) = error.reason {
            self.invalid_calls.add(protocol as usize, reason as usize, 1);
        }
    }

    /// Counts the outcome of each rule of a check.
    #[inline]
    pub(crate) fn record_decision(
        &self,
        counter_ids: &CounterIds,
        rules: &RuleSet,
        decision: &Decision,
    ) {
        self.rules.add(counter_ids, rules, decision);
    }

    /// Assigns counters to rules that become active. `on_reuse` is called with each number that another rule had before.
    pub(crate) fn register_rules(
        &self,
        rules: &RuleSet,
        on_reuse: impl FnMut(usize),
    ) -> CounterIds {
        self.rules.register_rules(rules, on_reuse)
    }
}
