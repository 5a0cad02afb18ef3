//! An exhaustive model check of the lease protocol in `docs/decisions/0011-leases.md`, for small fleets.
//!
//! The model is written from the decision page and shares no code with the implementation, so that the two can
//! disagree. It has one client, whole ticks of time, two or three nodes and one store:
//!
//! - A message in flight may arrive at any time, in any order, twice, or never.
//! - A node may pause at any time. It may crash and restart without its state, and its clock may differ from the
//!   store's clock by the rate that the margin covers.
//! - The store grants any part of the free tokens: the bound does not depend on the size of a grant.
//! - The store may fail over to an earlier state, if the scenario includes that.
//!
//! A second meter counts the real admissions at their instant: a cost when the store decides it, a leased token when
//! the node spends it. It must never exceed the limit, plus the tokens that a store has lost.
//!
//! A state contains remaining times and no clock, and ids of leases that no message mentions are reused. The number of
//! states is therefore finite, and [`explore`] visits them all: the result holds for any number of steps. [`FleetModel`]
//! contains the bounds: nodes, tokens, messages in flight and leases at once.
//!
//! Each [`ProtocolFlaw`] breaks one rule of the page, and the exploration finds a trace that admits too much. This shows
//! that the check is able to fail.
//!
//! # Why not stateright
//!
//! It treats two states with the same 64-bit fingerprint as equal, and depends on a web server and a dozen other crates.
//! Here states are compared in full, up to the order of nodes and the ids of leases, after all parts without any further
//! effect are removed. The search has a hundred lines and returns a shortest trace.

mod algorithm;
mod canon;
mod explore;
mod flaw;
mod fleet;
mod node;
mod scenario;
mod state;
mod step;
mod store;

pub use algorithm::{Algorithm, Limit, UsageGauge};
pub use explore::{Exploration, StateSpace, explore};
pub use flaw::ProtocolFlaw;
pub use fleet::{FaultModel, FleetModel};
pub use scenario::{ModelScenario, flawed_scenarios, sound_scenarios};
pub use state::{
    FleetState, HeldLease, LeaseMessage, MAX_HELD_LEASES, MAX_NODES, MAX_STORED_LEASES, NodeState,
    PendingRequest, StoreState, StoredLease, UsageReport,
};
pub use step::ModelStep;
