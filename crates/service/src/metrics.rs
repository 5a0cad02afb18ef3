//! What a running server tells Prometheus.
//!
//! Checks are counted in `service.rs` and nowhere else, by a few additions to counters of the thread's
//! own. Everything else is asked for when somebody looks.

mod exposition;
mod gather;
mod latency;
mod lines;
mod names;
mod process;
mod quantile;
mod rules;
mod sample;
pub(crate) mod shards;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{CallStatus, Decision, Span};
use tidegate_net::listener::ConnectionCounts;
use tidegate_rules::RuleSet;

pub use self::exposition::Format;
pub use self::gather::{Sources, short};
use self::latency::Latency;
pub use self::lines::Lines;
pub use self::process::Process;
pub(crate) use self::quantile::quantile;
use self::rules::RuleCounts;
pub use self::sample::{Checks, Said, Sample, since};
use self::shards::PER_LINE;
pub use self::shards::Shards;
use crate::service::Via;

/// How checks ended that were blocked; the others are [`CallStatus`]s.
const BLOCKED: usize = CallStatus::ALL.len();
const _: () = assert!(BLOCKED < PER_LINE);

/// Counts what a server does.
#[derive(Debug)]
pub struct Metrics {
    /// A line for each door.
    checks: Shards,
    durations: Latency,
    rules: RuleCounts,
    doors: Mutex<Vec<(&'static str, Arc<ConnectionCounts>)>>,
    upstreams: Mutex<Option<UpstreamSource>>,
}

/// The counts and the health of one upstream at one moment.
#[derive(Debug)]
pub struct UpstreamSample {
    /// The name of the upstream.
    pub name: Arc<str>,
    /// Requests in flight.
    pub in_flight: usize,
    /// Most requests in flight, if there is such a limit.
    pub max_in_flight: Option<usize>,
    /// The number of requests by outcome.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Its servers, and whether each is healthy.
    pub servers: Vec<(String, bool)>,
}

/// Takes the samples of a gateway's upstreams.
#[derive(Clone)]
struct UpstreamSource(Arc<dyn Fn() -> Vec<UpstreamSample> + Send + Sync>);

impl fmt::Debug for UpstreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamSource")
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            checks: Shards::new(Via::ALL.len()),
            durations: Latency::new(Via::ALL.len()),
            rules: RuleCounts::new(),
            doors: Mutex::default(),
            upstreams: Mutex::default(),
        }
    }

    /// Tells of a door from now on.
    pub fn door(&self, name: &'static str, connections: Arc<ConnectionCounts>) {
        self.doors.lock().push((name, connections));
    }

    /// Reports the samples of a gateway's upstreams from now on.
    pub fn register_upstreams(
        &self,
        sample: impl Fn() -> Vec<UpstreamSample> + Send + Sync + 'static,
    ) {
        *self.upstreams.lock() = Some(UpstreamSource(Arc::new(sample)));
    }

    /// The doors by name, and their connections.
    pub fn doors(&self) -> Vec<(&'static str, Arc<ConnectionCounts>)> {
        self.doors.lock().clone()
    }

    /// Returns the samples of a gateway's upstreams; none without a gateway.
    pub fn upstream_samples(&self) -> Vec<UpstreamSample> {
        let source = self.upstreams.lock().clone();
        source.map_or_else(Vec::new, |source| (source.0)())
    }

    /// Counts a check that was decided.
    #[inline]
    pub(crate) fn answered(&self, via: Via, ending: CallStatus, blocked: bool, took: Span) {
        let answer = if blocked { BLOCKED } else { ending as usize };
        self.checks.add(via as usize, answer, 1);
        self.durations.add(via as usize, took, 1);
    }

    /// Counts a call that was not understood.
    pub(crate) fn refused(&self, via: Via, ending: CallStatus) {
        self.checks.add(via as usize, ending as usize, 1);
    }

    /// Counts what the rules said to a check.
    #[inline]
    pub(crate) fn decided(&self, lines: &Lines, rules: &RuleSet, decision: &Decision) {
        self.rules.add(lines, rules, decision);
    }

    /// The counters of rules that come into force. `anew` is told those that had been another rule's.
    pub(crate) fn enlist(&self, rules: &RuleSet, anew: impl FnMut(usize)) -> Lines {
        self.rules.enlist(rules, anew)
    }

    /// The metrics of this moment.
    pub(crate) fn write(&self, sources: Sources<'_>, format: Format) -> String {
        gather::gather(self, sources).write(format)
    }
}
