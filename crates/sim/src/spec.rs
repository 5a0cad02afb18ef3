//! A simulation of one limit, as the command line and the dashboard describe it.

use clap::ValueEnum;
use thiserror::Error;
use tidegate_core::{Algorithm, Limit, Quota, QuotaError, Span};
use tidegate_rules::{
    Accuracy, MaxAhead, OnStoreFailure, Rule, RuleError, RuleErrors, SyncInterval, SyncSettings,
};

use crate::faults::FaultPlan;
use crate::fleet::SyncPhase;
use crate::plan::SimulationPlan;
use crate::system::SystemUnderTest;
use crate::traffic::TrafficLoad;
use crate::workload::Workload;

/// Maximum product of clients and nodes: each node stores a view of each client.
const MAX_VIEWS: u64 = 1_000_000;

/// One limit, with all algorithms and accuracies that are compared.
#[derive(Clone, Debug)]
pub struct SimulationSpec {
    /// The limit of each client, without a burst.
    pub quota: Quota,
    /// The compared algorithms; a token bucket if empty.
    pub algorithms: Vec<AlgorithmKind>,
    /// Capacity of a token bucket.
    pub burst: Option<u64>,
    /// Length of a leaky bucket's queue.
    pub queue: Option<u64>,
    /// The compared accuracies. If empty, each sync interval selects one: exact for an interval of 0, else synced.
    pub accuracies: Vec<AccuracyKind>,
    /// Sync intervals of synced limits.
    pub sync_intervals: Vec<Span>,
    /// Maximum number of tokens that a node admits between two syncs.
    pub max_ahead: MaxAhead,
    /// The instants of syncs, unless there are faults.
    pub sync_phase: SyncPhase,
    /// The fallbacks compared during an outage; `allow` if empty.
    pub on_store_failure: Vec<OnStoreFailure>,
    /// Faults of nodes and store.
    pub faults: FaultPlan,
    /// The traffic.
    pub workload: Workload,
}

/// An algorithm by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(missing_docs, reason = "clap prints doc comments, and these names need no explanation")]
pub enum AlgorithmKind {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
}

/// An accuracy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccuracyKind {
    /// Each request is one atomic step in the store
    Exact,
    /// Nodes lease tokens ahead of use
    Leased,
    /// Nodes decide alone and synchronise periodically, see --sync
    Synced,
    /// Each node enforces its part
    Split,
}

/// The reason why a specification can't be simulated.
#[derive(Debug, Error)]
pub enum SpecError {
    /// The limit is invalid.
    #[error(transparent)]
    Limit(#[from] QuotaError),
    /// The limit is incompatible with another part of the rule.
    #[error("{0}")]
    Rule(String),
    /// A queue without a leaky bucket.
    #[error("queue needs algorithm leaky_bucket")]
    Queue,
    /// Too many clients times nodes.
    #[allow(missing_docs, reason = "the message contains the fields")]
    #[error(
        "accuracy {accuracy} takes at most {MAX_VIEWS} clients times nodes, found {clients} x {nodes}"
    )]
    Large { accuracy: &'static str, clients: u64, nodes: u64 },
}

impl From<RuleError> for SpecError {
    fn from(error: RuleError) -> Self {
        Self::Rule(error.without_position())
    }
}

impl From<RuleErrors> for SpecError {
    fn from(errors: RuleErrors) -> Self {
        Self::Rule(errors.to_string())
    }
}

impl AlgorithmKind {
    fn algorithm(self, queue: Option<u64>) -> Algorithm {
        match self {
            Self::TokenBucket => Algorithm::TokenBucket,
            Self::LeakyBucket => Algorithm::LeakyBucket { queue: queue.unwrap_or_default() },
            Self::FixedWindow => Algorithm::FixedWindow,
            Self::SlidingWindow => Algorithm::SlidingWindow,
            Self::SlidingLog => Algorithm::SlidingLog,
        }
    }
}

impl SimulationSpec {
    /// Returns the plan: a trial for each combination that is compared.
    ///
    /// # Errors
    /// The rule would be invalid, or the simulation would need too much memory.
    pub fn plan(&self) -> Result<SimulationPlan, SpecError> {
        let token_bucket = [AlgorithmKind::TokenBucket];
        let algorithms =
            if self.algorithms.is_empty() { &token_bucket[..] } else { &self.algorithms };
        if self.queue.is_some() && !algorithms.contains(&AlgorithmKind::LeakyBucket) {
            return Err(SpecError::Queue);
        }
        let compared = self.compared_accuracies();
        let exact = [Accuracy::Exact];
        let accuracies = if compared.is_empty() { &exact[..] } else { &compared };
        let allow = [OnStoreFailure::default()];
        let fallbacks = match self.faults.outage.filter(|_| !self.on_store_failure.is_empty()) {
            Some(_) => &self.on_store_failure[..],
            None => &allow[..],
        };
        let load = self.workload.load(self.quota);
        let mut trials = Vec::new();
        for kind in algorithms {
            let limit = self.limit(*kind, algorithms)?;
            for (accuracy, fallback) in
                accuracies.iter().flat_map(|it| fallbacks.iter().map(move |answer| (it, answer)))
            {
                let system = self.system(&limit, *accuracy, *fallback)?;
                let mut name = limit.algorithm().to_string();
                if !compared.is_empty() {
                    name = format!("{name}, {}", accuracy_label(*accuracy));
                }
                if fallbacks.len() > 1 {
                    name = format!("{name}, {}", fallback_name(*fallback));
                }
                // The formula holds for windows; it ignores the refill of a token bucket.
                let windows = limit.algorithm() != Algorithm::TokenBucket;
                let textbook = (windows && !compared.is_empty() && load.nodes > 1)
                    .then(|| textbook_admissions(&limit, load.nodes, sync_interval(*accuracy)));
                self.workload.add_trials(&mut trials, &name, &system, textbook);
            }
        }
        let mut about =
            vec![("limit", self.quota.to_string()), ("traffic", self.workload.describe(&load))];
        about.extend(self.describe_fleet(&load, &compared));
        about.extend(self.faults.describe());
        if let (Some(_), [fallback]) = (self.faults.outage, fallbacks) {
            about.push(("without it", fallback_name(*fallback).to_owned()));
        }
        Ok(SimulationPlan { title: "simulation of a limit".to_owned(), about, load, trials })
    }

    /// Returns the accuracies that are compared; empty if only an exact limit is simulated.
    fn compared_accuracies(&self) -> Vec<Accuracy> {
        let synced = |every| Accuracy::Synced(SyncSettings { every, max_ahead: self.max_ahead });
        if self.accuracies.is_empty() {
            let accuracy = |lag: &Span| SyncInterval::new(*lag).map_or(Accuracy::Exact, synced);
            return self.sync_intervals.iter().map(accuracy).collect();
        }
        let intervals = self.sync_intervals.iter().filter_map(|lag| SyncInterval::new(*lag));
        let mut intervals: Vec<SyncInterval> = intervals.collect();
        if intervals.is_empty() {
            intervals.push(SyncInterval::default());
        }
        let accuracies = self.accuracies.iter().flat_map(|kind| match kind {
            AccuracyKind::Exact => vec![Accuracy::Exact],
            AccuracyKind::Leased => vec![Accuracy::Leased],
            AccuracyKind::Split => vec![Accuracy::Split],
            AccuracyKind::Synced => intervals.iter().copied().map(synced).collect(),
        });
        accuracies.collect()
    }

    fn describe_fleet(
        &self,
        load: &TrafficLoad,
        compared: &[Accuracy],
    ) -> Option<(&'static str, String)> {
        let syncs = compared.iter().any(|accuracy| !sync_interval(*accuracy).is_zero());
        let sync_text = match self.effective_phase() {
            SyncPhase::Together if syncs => {
                " that sync at the same instants: all report, then all read"
            }
            _ if syncs => " that sync independently: one request reports and reads",
            _ if compared.iter().all(|accuracy| *accuracy == Accuracy::Exact) => {
                " that share one store"
            }
            _ => "",
        };
        (load.nodes > 1).then(|| ("fleet", format!("{} nodes{sync_text}", load.nodes)))
    }

    /// Returns the phase of syncs. With faults, nodes sync as in production: the textbook formula has no faults.
    fn effective_phase(&self) -> SyncPhase {
        if self.faults.is_empty() { self.sync_phase } else { SyncPhase::Own }
    }

    fn limit(&self, kind: AlgorithmKind, all: &[AlgorithmKind]) -> Result<Limit, SpecError> {
        // Among several algorithms the burst is for the token bucket; without one the limit rejects it.
        let bucket = AlgorithmKind::TokenBucket;
        let quota = match self.burst.filter(|_| kind == bucket || !all.contains(&bucket)) {
            Some(burst) => self.quota.burst(burst),
            None => self.quota,
        };
        Ok(Limit::new(kind.algorithm(self.queue), quota)?)
    }

    fn system(
        &self,
        limit: &Limit,
        accuracy: Accuracy,
        fallback: OnStoreFailure,
    ) -> Result<SystemUnderTest, SpecError> {
        let Workload { clients, nodes, .. } = self.workload;
        // The constructors of a rule reject incompatible settings.
        let rule = limit_rule(limit)?.with_accuracy(accuracy)?.with_on_store_failure(fallback);
        if accuracy == Accuracy::Exact && self.faults.is_empty() {
            return Ok(SystemUnderTest::single_limit(rule)?);
        }
        if nodes.saturating_mul(clients) > MAX_VIEWS {
            return Err(SpecError::Large { accuracy: accuracy.name(), clients, nodes });
        }
        Ok(SystemUnderTest::single_limit_fleet(rule, self.effective_phase(), self.faults)?)
    }
}

/// Returns a rule that has this limit for each client.
pub(crate) fn limit_rule(limit: &Limit) -> Result<Rule, RuleError> {
    Rule::new("limit", limit.algorithm(), *limit.quota())?.with_per("client")
}

/// Returns the time between two syncs of a node; zero without syncs.
fn sync_interval(accuracy: Accuracy) -> Span {
    match accuracy {
        Accuracy::Synced(SyncSettings { every, .. }) => every.span(),
        _ => Span::ZERO,
    }
}

fn accuracy_label(accuracy: Accuracy) -> String {
    match accuracy {
        Accuracy::Synced(SyncSettings { every, .. }) => format!("sync every {}", every.span()),
        other => other.name().to_owned(),
    }
}

/// Returns the word of a rules file.
fn fallback_name(fallback: OnStoreFailure) -> &'static str {
    match fallback {
        OnStoreFailure::Allow => "allow",
        OnStoreFailure::Deny => "deny",
        OnStoreFailure::Local => "local",
    }
}

/// Returns the number of requests that the textbook formula expects in one window: each node admits at the full rate
/// of the limit until it syncs.
pub(crate) fn textbook_admissions(limit: &Limit, nodes: u64, lag: Span) -> u64 {
    let (amount, window) = (limit.quota().amount(), limit.quota().window());
    let (lag, window) = (lag.min(window).as_micros(), window.as_micros().max(1));
    let alone = u128::from(nodes.saturating_sub(1)) * u128::from(lag);
    let admitted = u128::from(amount) * (u128::from(window) + alone) / u128::from(window);
    u64::try_from(admitted).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn textbook_admissions_grow_with_the_lag_up_to_one_limit_per_node() {
        let limit = Limit::new(Algorithm::FixedWindow, Quota::per_second(60)).unwrap();
        let lags = [0, 400, 1_000, 5_000].map(Span::from_millis);
        assert_eq!(lags.map(|lag| textbook_admissions(&limit, 3, lag)), [60, 108, 180, 180]);
    }
}
