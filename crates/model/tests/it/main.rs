//! The lease model, explored, and what ships, simulated.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "a run with --nocapture shows how much was explored")]

mod leases;
mod simulation;
