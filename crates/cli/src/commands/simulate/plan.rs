//! Converts arguments into the plan of a simulation.

use std::path::Path;

use tidegate_core::{Quota, Span};
use tidegate_sim::{FaultPlan, SimulationPlan, SimulationSpec, SystemUnderTest, Workload};

use super::SimulateCommand;
use super::rules::{note_concurrency_rules, read_rules};
use crate::commands::{CommandError, CommandOutput, parse_attributes};

impl SimulateCommand {
    /// Returns the simulation of one limit.
    pub(crate) fn spec(&self, quota: Quota) -> SimulationSpec {
        SimulationSpec {
            quota,
            algorithms: self.algorithm.clone(),
            burst: self.burst,
            queue: self.queue,
            accuracies: self.accuracy.clone(),
            sync_intervals: self.sync.clone(),
            max_ahead: self.max_ahead.unwrap_or_default(),
            sync_phase: self.sync_phase,
            on_store_failure: self.on_store_failure.iter().map(|answer| (*answer).into()).collect(),
            faults: self.faults(),
            workload: self.workload(),
        }
    }

    fn faults(&self) -> FaultPlan {
        FaultPlan { clock_skew: self.skew.unwrap_or(Span::ZERO), outage: self.outage }
    }

    fn workload(&self) -> Workload {
        Workload {
            traffic: self.traffic,
            attack_percent: self.at,
            burst_size: self.count,
            rate: self.rate,
            clients: self.clients,
            nodes: self.nodes,
            length: self.length,
            seed: self.seed,
        }
    }

    /// Returns the simulation of the rules of a file.
    pub(crate) fn plan_rules(
        &self,
        path: &Path,
        output: &mut CommandOutput<'_>,
    ) -> Result<SimulationPlan, CommandError> {
        let name = path.display().to_string();
        let rules = read_rules(path)?;
        let attributes = parse_attributes(&self.attributes)?;
        note_concurrency_rules(&rules, output);
        let faults = self.faults();
        let system = match self.nodes {
            1 if faults.is_empty() => SystemUnderTest::rules(rules, attributes),
            _ => SystemUnderTest::rules_fleet(rules, attributes, faults),
        };
        let Some(limit) = system.first_limit() else {
            return Err(CommandError::negative(format_args!(
                "{name}: no rule applies to the requests"
            ))
            .hint("-a path=/v1/orders sets an attribute that the rules match")
            .hint(format!(
                "tidegate explain --rules {name} / shows the condition that does not hold"
            )));
        };
        Ok(self.workload().plan_for(name, &system, *limit.quota()))
    }
}
