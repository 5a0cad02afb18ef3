//! Traffic against limits in virtual time, and access logs against rules. The code that decides is the one that ships.
//!
//! A [`SimulationSpec`] or a [`Scenario`] makes a [`SimulationPlan`]: trials of systems under one load. Each trial has
//! arrivals, a decider (limiters that ship, on a simulated store) and statistics. The same seed gives the same report on
//! every machine. [`replay`] has an access log decided by one or two sets of rules.

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
