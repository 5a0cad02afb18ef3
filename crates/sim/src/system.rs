//! The simulated system: rules, and the nodes that apply them.

use tidegate_core::{Limit, Span, Timestamp};
use tidegate_rules::{Accuracy, Rule, RuleErrors, RuleSet, SyncSettings};

use crate::decider::SimDecider;
use crate::faults::FaultPlan;
use crate::fleet::SyncPhase;
use crate::template::{ClientNames, RequestTemplate};
use crate::traffic::TrafficLoad;

/// Rules on one node or on a fleet, with the production limiter.
#[derive(Clone, Debug)]
pub struct SystemUnderTest {
    rules: RuleSet,
    /// Attributes that all requests have.
    attributes: Vec<(String, String)>,
    fleet: Option<FleetSetup>,
    /// True if the report has one line, for the only rule, and no line for all rules together.
    is_single_limit: bool,
}

/// Nodes that share one store.
#[derive(Clone, Copy, Debug)]
struct FleetSetup {
    phase: SyncPhase,
    faults: FaultPlan,
}

/// Steps of one node for one rule of a request, which passes through a simulated store.
const FLEET_STEPS: u64 = 2;
/// Steps of one node for a joint sync.
const SYNC_STEPS: u64 = 5;
/// Interval at which nodes have background work on average, unless they sync together.
const BACKGROUND_INTERVAL: Span = Span::from_millis(100);

impl SystemUnderTest {
    /// Returns a system with one limit for each client, on one node with a store in memory.
    ///
    /// # Errors
    /// The rule set is invalid.
    pub(crate) fn single_limit(rule: Rule) -> Result<Self, RuleErrors> {
        let rules = RuleSet::new(vec![rule])?;
        Ok(Self { rules, attributes: Vec::new(), fleet: None, is_single_limit: true })
    }

    /// Returns a system with one limit for each client, on nodes that enforce it by the rule's accuracy.
    ///
    /// # Errors
    /// The rule set is invalid.
    pub(crate) fn single_limit_fleet(
        rule: Rule,
        phase: SyncPhase,
        faults: FaultPlan,
    ) -> Result<Self, RuleErrors> {
        Ok(Self { fleet: Some(FleetSetup { phase, faults }), ..Self::single_limit(rule)? })
    }

    /// Returns a system with rules on one node with a store in memory. All requests have these attributes.
    pub fn rules(rules: RuleSet, attributes: Vec<(String, String)>) -> Self {
        Self { rules, attributes, fleet: None, is_single_limit: false }
    }

    /// Returns a system with rules on nodes that enforce each by its accuracy. All requests have these attributes.
    pub fn rules_fleet(
        rules: RuleSet,
        attributes: Vec<(String, String)>,
        faults: FaultPlan,
    ) -> Self {
        let fleet = Some(FleetSetup { phase: SyncPhase::Own, faults });
        Self { rules, attributes, fleet, is_single_limit: false }
    }

    /// Returns the limit of the first rule that applies to a client's request and does not exempt it.
    pub fn first_limit(&self) -> Option<Limit> {
        let template = RequestTemplate::new(&self.rules, self.attributes.clone());
        let mut names = ClientNames::default();
        let request = template.request(0, &mut names).ok()?;
        let matching = self.rules.matching(&request);
        let limits = matching.iter().map(|rule| rule.limit_for(&request, Timestamp::EPOCH).limit);
        limits.flatten().next().map(|limit| Limit::clone(limit))
    }

    /// Returns the simulated faults.
    pub(crate) fn faults(&self) -> FaultPlan {
        self.fleet.map_or_else(FaultPlan::default, |fleet| fleet.faults)
    }

    pub(crate) fn is_single_limit(&self) -> bool {
        self.is_single_limit
    }

    /// Starts the nodes.
    pub(crate) fn start(&self, load: &TrafficLoad, start: Timestamp) -> SimDecider {
        let template = RequestTemplate::new(&self.rules, self.attributes.clone());
        match self.fleet {
            None => SimDecider::single(self.rules.clone(), template, start),
            Some(FleetSetup { phase, faults }) => {
                SimDecider::fleet(self.rules.clone(), template, (load.nodes, phase, faults), start)
            }
        }
    }

    /// Returns the estimated work of one request. A step is one rule on one node with its store in memory.
    pub(crate) fn steps_per_request(&self) -> u64 {
        let rules = self.rules.rules().len() as u64;
        if self.fleet.is_some() { FLEET_STEPS * rules } else { rules }
    }

    /// Returns the estimated work of nodes in the background, for this number of arrivals.
    pub(crate) fn background_steps(&self, load: &TrafficLoad, arrivals: u64) -> u64 {
        let Some(FleetSetup { phase, .. }) = self.fleet else { return 0 };
        let times = |every: Span| load.length.as_micros() / every.as_micros().max(1) + 1;
        let synced = self.rules.rules().iter().find_map(|rule| match rule.accuracy() {
            Accuracy::Synced(SyncSettings { every, .. }) => Some(every.span()),
            _ => None,
        });
        let each_node = match synced.filter(|_| phase == SyncPhase::Together) {
            // Only nodes with something to report sync, and only active clients are read.
            Some(every) => {
                let syncs = times(every).min(arrivals).saturating_mul(SYNC_STEPS);
                let reads = times(every).saturating_mul(load.clients).min(arrivals);
                syncs.saturating_add(reads.saturating_mul(self.steps_per_request()))
            }
            None => times(BACKGROUND_INTERVAL).saturating_mul(1 + load.clients),
        };
        each_node.saturating_mul(load.nodes)
    }
}
