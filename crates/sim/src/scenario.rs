//! Built-in scenarios, each for a question about the choice of a limit.

use clap::ValueEnum;
use tidegate_core::{Algorithm, Limit, Quota, Span};
use tidegate_rules::{Accuracy, MaxAhead, SyncInterval, SyncSettings};

use crate::faults::FaultPlan;
use crate::fleet::SyncPhase;
use crate::plan::{SimulationPlan, Trial};
use crate::spec::{SpecError, limit_rule, textbook_admissions};
use crate::system::SystemUnderTest;
use crate::traffic::{TrafficLoad, TrafficShape};

/// A scenario by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A client spends its limit late in a window, and again when the next one begins
    BoundaryAttack,
    /// Three nodes that synchronise late
    SyncLag,
    /// Thirty requests at once under a burst limit of fifty
    Burst,
}

/// Returns the load of one client on one node, for two seconds.
fn load(shape: TrafficShape) -> TrafficLoad {
    let (rate, length) = (Quota::per_second(1), Span::from_secs(2));
    TrafficLoad { shape, rate, clients: 1, nodes: 1, length, seed: 1 }
}

fn exact(name: &str, algorithm: Algorithm, quota: Quota) -> Result<Trial, SpecError> {
    let system = SystemUnderTest::single_limit(limit_rule(&Limit::new(algorithm, quota)?)?)?;
    Ok(Trial { name: name.to_owned(), system, retry: None, textbook: None })
}

impl Scenario {
    /// Returns the plan of the scenario.
    ///
    /// # Errors
    /// None, as long as the limits below are valid.
    pub fn plan(self) -> Result<SimulationPlan, SpecError> {
        match self {
            Self::BoundaryAttack => boundary_attack(),
            Self::SyncLag => sync_lag(),
            Self::Burst => burst(),
        }
    }
}

fn boundary_attack() -> Result<SimulationPlan, SpecError> {
    let quota = Quota::per_second(20);
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::SlidingLog,
    ];
    let trials = algorithms.map(|algorithm| exact(algorithm.name(), algorithm, quota));
    Ok(SimulationPlan {
        title: "boundary-attack: a limit spent late in a window, and again in the next one".into(),
        about: vec![
            ("limit", quota.to_string()),
            ("traffic", "one client, 20 at 85 % of a window and 20 when the next begins".into()),
        ],
        load: load(TrafficShape::Boundary { amount: 20, window: Span::SECOND, percent: 85 }),
        trials: trials.into_iter().collect::<Result<_, _>>()?,
    })
}

fn sync_lag() -> Result<SimulationPlan, SpecError> {
    let (nodes, quota) = (3, Quota::per_second(60));
    let limit = Limit::new(Algorithm::FixedWindow, quota)?;
    let trial = |name: &str, millis, phase| {
        let (lag, rule) = (Span::from_millis(millis), limit_rule(&limit)?);
        let system = match SyncInterval::new(lag) {
            None => SystemUnderTest::single_limit(rule)?,
            Some(every) => {
                let synced = SyncSettings { every, max_ahead: MaxAhead::Unbounded };
                let rule = rule.with_accuracy(Accuracy::Synced(synced))?;
                SystemUnderTest::single_limit_fleet(rule, phase, FaultPlan::default())?
            }
        };
        let textbook = Some(textbook_admissions(&limit, nodes, lag));
        Ok::<_, SpecError>(Trial { name: name.to_owned(), system, retry: None, textbook })
    };
    let trials = vec![
        trial("exact", 0, SyncPhase::Together)?,
        trial("sync every 400 ms", 400, SyncPhase::Together)?,
        trial("sync every 1 s", 1_000, SyncPhase::Together)?,
        trial("sync every 400 ms, in turn", 400, SyncPhase::InTurn)?,
    ];
    Ok(SimulationPlan {
        title: "sync-lag: nodes that decide alone and synchronise late".into(),
        about: vec![
            ("limit", limit.to_string()),
            ("traffic", "one client, 90 per second to each of 3 nodes for 1 s".into()),
            ("fleet", "all nodes sync at the same instants, without max_ahead".into()),
            ("in turn", "one after the other: the first does not see the later reports".into()),
            ("textbook", "limit x (1 + (nodes - 1) x lag / window)".into()),
        ],
        load: TrafficLoad {
            rate: Quota::per_second(270),
            nodes,
            length: Span::SECOND,
            ..load(TrafficShape::Steady)
        },
        trials,
    })
}

fn burst() -> Result<SimulationPlan, SpecError> {
    let quota = Quota::per_second(10);
    let queue = Algorithm::LeakyBucket { queue: 49 };
    let trials = [
        exact("token_bucket, burst 50", Algorithm::TokenBucket, quota.burst(50)),
        exact("leaky_bucket, queue 49", queue, quota),
        exact("token_bucket", Algorithm::TokenBucket, quota),
        exact("fixed_window", Algorithm::FixedWindow, quota),
    ];
    Ok(SimulationPlan {
        title: "burst: 30 requests at once, where there is room for 50 and where there is not"
            .into(),
        about: vec![("limit", quota.to_string()), ("traffic", "one client, 30 at once".into())],
        load: load(TrafficShape::Once { count: 30 }),
        trials: trials.into_iter().collect::<Result<_, _>>()?,
    })
}
