//! The traffic of a simulation, as the command line and the dashboard describe it.

use clap::ValueEnum;
use tidegate_core::{Quota, Span};

use crate::plan::{RetryBehavior, SimulationPlan, Trial};
use crate::system::SystemUnderTest;
use crate::traffic::{TrafficLoad, TrafficShape};

/// Requests of clients to nodes.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The distribution of requests.
    pub traffic: TrafficKind,
    /// Start of a boundary attack in a window.
    pub attack_percent: u64,
    /// Size of a burst, for each client.
    pub burst_size: u64,
    /// Rate of all clients at all nodes.
    pub rate: Quota,
    /// Number of clients.
    pub clients: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Length of the simulation; depends on the traffic if it is not given.
    pub length: Option<Span>,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// The distribution of requests over time and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrafficKind {
    /// Evenly, client after client
    Steady,
    /// All requests of ten seconds arrive in the first second
    Bursty,
    /// Each client spends its limit late in a window, and again when the next one begins
    Boundary,
    /// Each client sends --count requests at once, and none later
    Burst,
    /// At random; the busiest client sends twice as many as the second, three times as many as the third
    Zipf,
    /// Steady, and denied clients retry: every 100 ms, or after Retry-After
    RetryStorm,
}

/// Wait of clients that ignore Retry-After.
const BLIND_RETRY_WAIT: Span = Span::from_millis(100);

impl Workload {
    /// Start of a boundary attack by default, in percent of a window.
    pub const DEFAULT_ATTACK_PERCENT: u64 = 85;
    /// Size of a burst by default.
    pub const DEFAULT_BURST_SIZE: u64 = 30;

    /// Returns the load for clients that have this limit.
    pub(crate) fn load(&self, limit: Quota) -> TrafficLoad {
        let timed = !limit.is_in_flight();
        let window = if timed { limit.window() } else { Span::SECOND };
        let amount = if timed { limit.amount() } else { 1 };
        let percent = self.attack_percent;
        let shape = match self.traffic {
            TrafficKind::Steady | TrafficKind::RetryStorm => TrafficShape::Steady,
            TrafficKind::Bursty => TrafficShape::Bursty,
            TrafficKind::Zipf => TrafficShape::Zipf,
            TrafficKind::Boundary => TrafficShape::Boundary { amount, window, percent },
            TrafficKind::Burst => TrafficShape::Once { count: self.burst_size },
        };
        let default_length = match self.traffic {
            TrafficKind::Boundary => window.checked_mul(2).unwrap_or(window),
            TrafficKind::Burst => window,
            _ => Span::MINUTE,
        };
        let length = self.length.unwrap_or(default_length);
        let Self { rate, clients, nodes, seed, .. } = *self;
        TrafficLoad { shape, rate, clients, nodes, length, seed }
    }

    /// Describes the load for the head of a report.
    pub(crate) fn describe(&self, load: &TrafficLoad) -> String {
        let clients = match load.clients {
            1 => "one client".to_owned(),
            clients => format!("{clients} clients"),
        };
        let length = load.length;
        let name = self.traffic.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        match load.shape {
            TrafficShape::Boundary { amount, percent, .. } => format!(
                "{name}, {clients}, each {amount} at {percent} % of a window and {amount} when the \
                 next begins, for {length}"
            ),
            TrafficShape::Once { count } => format!("{name}, {clients}, {count} at once"),
            _ => format!("{name}, {clients}, {} for {length}", load.rate),
        }
    }

    /// Adds a trial of a system for each retry behaviour.
    pub(crate) fn add_trials(
        &self,
        trials: &mut Vec<Trial>,
        name: &str,
        system: &SystemUnderTest,
        textbook: Option<u64>,
    ) {
        let retries: &[(&str, Option<RetryBehavior>)] = match self.traffic {
            TrafficKind::RetryStorm => &[
                (", back after 100 ms", Some(RetryBehavior::After(BLIND_RETRY_WAIT))),
                (", back after Retry-After", Some(RetryBehavior::RetryAfter)),
            ],
            _ => &[("", None)],
        };
        for (label, retry) in retries {
            let (name, system) = (format!("{name}{label}"), system.clone());
            trials.push(Trial { name, system, retry: *retry, textbook });
        }
    }

    /// Returns the plan for the rules of a file. A boundary attack spends `limit`, the first that applies.
    pub fn plan_for(&self, file: String, system: &SystemUnderTest, limit: Quota) -> SimulationPlan {
        let load = self.load(limit);
        let mut about = vec![("rules", file), ("traffic", self.describe(&load))];
        if load.nodes > 1 {
            about.push(("fleet", format!("{} nodes, each rule by its accuracy", load.nodes)));
        }
        about.extend(system.faults().describe());
        let mut trials = Vec::new();
        self.add_trials(&mut trials, "all rules", system, None);
        SimulationPlan { title: "simulation of rules".to_owned(), about, load, trials }
    }
}
