//! The lease protocol of `docs/decisions/0011-leases.md`, explored exhaustively for small fleets.
//!
//! The model is written from the page and shares nothing with the code, so that the two can
//! disagree. One client, whole ticks of time, two or three nodes, one store:
//!
//! - A message in flight may come at any time, in any order, again, or never.
//! - A node may do nothing at any time: that is a pause. It may crash and come back without memory,
//!   and its clock may run apart from the store's by the rate that the margin covers.
//! - A store grants any part of what fits: the bound does not depend on how much is granted.
//! - A store may go back to what it was at any earlier time, if that is asked for.
//!
//! What was really admitted is kept beside all that, as a second meter that is charged at the instant
//! of each admission: a cost when the store decides it, a held token when the node's clock is read.
//! It must never hold more than the limit, plus what a store has lost.
//!
//! A state says how long things still last, not what time it is, and names of holds that nobody will
//! mention again are reused. So the states of a fleet are finite, and [`explore`] visits them all:
//! what it finds holds for ever, not for a number of steps. What is bounded is said by [`Fleet`]: nodes,
//! tokens, and how many messages are in flight and holds are kept at once.
//!
//! Each rule of the page can be broken by a [`Flaw`], and each time the exploration finds the trace
//! that admits too much. That is what shows that it could.
//!
//! # Why not stateright
//!
//! It takes two states with the same 64-bit fingerprint for one, and brings a web server and a dozen other
//! crates. Here states are compared in full, equal up to the names of nodes and holds, and what cannot
//! matter any more is taken out of them before: that is what keeps them few. The search itself is a
//! hundred lines, and the path that it shows is the shortest.

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

pub use algorithm::{Algorithm, Gauge, Limit};
pub use explore::{Explored, World, explore};
pub use flaw::Flaw;
pub use fleet::{Faults, Fleet};
pub use scenario::{Scenario, flawed, sound};
pub use state::{Asking, HOLDS, Hold, LEASES, Lease, Message, NODES, Node, Report, State, Store};
pub use step::Step;
