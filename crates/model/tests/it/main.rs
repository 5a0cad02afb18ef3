//! The lease model, explored, and what ships, simulated.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod leases;
mod simulation;
