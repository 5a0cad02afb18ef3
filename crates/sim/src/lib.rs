//! Simulates traffic against limits in virtual time, and replays access logs against rules, with the production limiter.
//!
//! A [`SimulationSpec`] or a [`Scenario`] makes a [`SimulationPlan`]: trials of systems under one load. Each trial has
//! arrivals, a decider (production limiters on a simulated store) and statistics. The same seed gives the same report on
//! every machine. [`replay`] decides the requests of an access log by one or two sets of rules.

mod decider;
mod faults;
mod fleet;
pub mod log;
mod plan;
mod plot;
pub mod replay;
mod report;
mod scenario;
mod spec;
mod stats;
mod store;
mod system;
mod template;
#[cfg(test)]
mod tests;
mod traffic;
mod workload;
mod worst_window;

pub use faults::{FaultPlan, StoreOutage};
pub use fleet::SyncPhase;
pub use plan::SimulationPlan;
pub use plot::TrafficPlot;
pub use report::SimulationReport;
pub use scenario::Scenario;
pub use spec::{AccuracyKind, AlgorithmKind, SimulationSpec, SpecError};
pub use system::SystemUnderTest;
pub use workload::{TrafficKind, Workload};
