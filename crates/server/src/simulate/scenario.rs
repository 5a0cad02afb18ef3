//! Scenarios that come with Tidegate, each of them a question that people ask before they choose a limit.

use clap::ValueEnum;
use tidegate::rule::{Every, MaxAhead, Synced};
use tidegate::{Algorithm, Limit, Quota, QuotaError, Span};

use super::fleet::{Telling, textbook};
use super::{Load, Plan, Shape, Subject, Trial};

/// A scenario by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// A client spends its limit late in a window, and again when the next one begins
    BoundaryAttack,
    /// Three nodes that tell each other late what they admitted
    SyncLag,
    /// Thirty requests at once into room for fifty
    Burst,
}

/// One client on one node, for two seconds.
fn load(shape: Shape) -> Load {
    let (rate, length) = (Quota::per_second(1), Span::from_secs(2));
    Load { shape, rate, clients: 1, nodes: 1, length, seed: 1 }
}

fn exact(name: &str, algorithm: Algorithm, quota: Quota) -> Result<Trial, QuotaError> {
    let subject = Subject::Exact(Limit::new(algorithm, quota)?);
    Ok(Trial { name: name.to_owned(), subject, again: None, textbook: None })
}

impl Scenario {
    /// What is to be simulated.
    ///
    /// # Errors
    /// None, as long as the numbers here are those of limits.
    pub(crate) fn plan(self) -> Result<Plan, QuotaError> {
        match self {
            Self::BoundaryAttack => boundary_attack(),
            Self::SyncLag => sync_lag(),
            Self::Burst => burst(),
        }
    }
}

fn boundary_attack() -> Result<Plan, QuotaError> {
    let quota = Quota::per_second(20);
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::SlidingLog,
    ];
    let trials = algorithms.map(|algorithm| exact(algorithm.name(), algorithm, quota));
    Ok(Plan {
        title: "boundary-attack: a limit spent late in a window, and again in the next one".into(),
        about: vec![
            ("limit", quota.to_string()),
            ("traffic", "one client, 20 at 85 % of a window and 20 when the next begins".into()),
        ],
        load: load(Shape::Boundary { amount: 20, window: Span::SECOND, percent: 85 }),
        trials: trials.into_iter().collect::<Result<_, _>>()?,
    })
}

fn sync_lag() -> Result<Plan, QuotaError> {
    let (nodes, quota) = (3, Quota::per_second(60));
    let limit = Limit::new(Algorithm::FixedWindow, quota)?;
    let kept = |lag: Span, telling| match Every::new(lag) {
        None => Subject::Exact(limit.clone()),
        Some(every) => {
            let synced = Synced { every, max_ahead: MaxAhead::Unbounded };
            Subject::Synced(limit.clone(), synced, telling)
        }
    };
    let trial = |name: &str, millis, telling| {
        let lag = Span::from_millis(millis);
        let textbook = Some(textbook(&limit, nodes, lag));
        Trial { name: name.to_owned(), subject: kept(lag, telling), again: None, textbook }
    };
    let trials = vec![
        trial("exact", 0, Telling::Together),
        trial("sync every 400 ms", 400, Telling::Together),
        trial("sync every 1 s", 1_000, Telling::Together),
        trial("sync every 400 ms, in turn", 400, Telling::InTurn),
    ];
    Ok(Plan {
        title: "sync-lag: nodes that decide alone and tell each other late".into(),
        about: vec![
            ("limit", limit.to_string()),
            ("traffic", "one client, 90 per second to each of 3 nodes for 1 s".into()),
            ("fleet", "all nodes sync at the same instants, without max_ahead".into()),
            ("in turn", "as nodes ask: the first does not hear what others tell after it".into()),
            ("textbook", "limit x (1 + (nodes - 1) x lag / window)".into()),
        ],
        load: Load {
            rate: Quota::per_second(270),
            nodes,
            length: Span::SECOND,
            ..load(Shape::Steady)
        },
        trials,
    })
}

fn burst() -> Result<Plan, QuotaError> {
    let quota = Quota::per_second(10);
    let queue = Algorithm::LeakyBucket { queue: 49 };
    let trials = [
        exact("token_bucket, burst 50", Algorithm::TokenBucket, quota.burst(50)),
        exact("leaky_bucket, queue 49", queue, quota),
        exact("token_bucket", Algorithm::TokenBucket, quota),
        exact("fixed_window", Algorithm::FixedWindow, quota),
    ];
    Ok(Plan {
        title: "burst: 30 requests at once, where there is room for 50 and where there is not"
            .into(),
        about: vec![("limit", quota.to_string()), ("traffic", "one client, 30 at once".into())],
        load: load(Shape::Once { count: 30 }),
        trials: trials.into_iter().collect::<Result<_, _>>()?,
    })
}
