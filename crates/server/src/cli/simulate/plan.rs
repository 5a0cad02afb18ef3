//! What was asked for, as something to simulate.

use std::path::Path;

use tidegate::rule::{Accuracy, Every, Synced};
use tidegate::{Quota, Span};

use super::super::{Failure, Output, named_values};
use super::rules::{note_held, read_rules};
use super::{Kept, Simulate};
use crate::simulate::{Asked, Crowd, Plan, Subject, Weather};

impl Simulate {
    /// One limit, counted and kept in all the ways that are to be compared.
    pub(super) fn asked(&self, quota: Quota) -> Asked {
        Asked {
            quota,
            countings: self.algorithm.clone(),
            burst: self.burst,
            queue: self.queue,
            accuracies: self.accuracies(),
            phase: self.sync_phase,
            on_store_failure: self.on_store_failure.iter().map(|answer| (*answer).into()).collect(),
            weather: self.weather(),
            crowd: self.crowd(),
        }
    }

    fn accuracies(&self) -> Vec<Accuracy> {
        let max_ahead = self.max_ahead.unwrap_or_default();
        let synced = |every| Accuracy::Synced(Synced { every, max_ahead });
        if self.accuracy.is_empty() {
            let kept = |lag: &Span| Every::new(*lag).map_or(Accuracy::Exact, synced);
            return self.sync.iter().map(kept).collect();
        }
        let syncs: Vec<Every> = self.sync.iter().filter_map(|lag| Every::new(*lag)).collect();
        let usual = [Every::default()];
        let syncs = if syncs.is_empty() { &usual[..] } else { &syncs };
        let kept = self.accuracy.iter().flat_map(|kept| match kept {
            Kept::Exact => vec![Accuracy::Exact],
            Kept::Leased => vec![Accuracy::Leased],
            Kept::Split => vec![Accuracy::Split],
            Kept::Synced => syncs.iter().copied().map(synced).collect(),
        });
        kept.collect()
    }

    fn weather(&self) -> Weather {
        Weather { skew: self.skew.unwrap_or(Span::ZERO), outage: self.outage }
    }

    fn crowd(&self) -> Crowd {
        Crowd {
            traffic: self.traffic,
            percent: self.at,
            count: self.count,
            rate: self.rate,
            clients: self.clients,
            nodes: self.nodes,
            length: self.length,
            seed: self.seed,
        }
    }

    /// The rules of a file.
    pub(super) fn of_rules(&self, path: &Path, output: &mut Output<'_>) -> Result<Plan, Failure> {
        let name = path.display().to_string();
        let rules = read_rules(path)?;
        let attributes = named_values(&self.attributes)?;
        note_held(&rules, output);
        let weather = self.weather();
        let subject = match self.nodes {
            1 if weather.is_calm() => Subject::Rules(rules, attributes),
            _ => Subject::Fleet(rules, attributes, weather),
        };
        let Some(limit) = subject.limit() else {
            return Err(Failure::refused(format_args!("{name}: no rule applies to the requests"))
                .hint("-a path=/v1/orders gives them what the rules match on")
                .hint(format!("tidegate explain --rules {name} / says why each does not")));
        };
        Ok(self.crowd().plan_for(name, &subject, *limit.quota()))
    }
}
