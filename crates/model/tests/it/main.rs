//! Exploration of the lease model, and simulation of the production code.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]
#![allow(clippy::print_stdout, reason = "a run with --nocapture shows how much was explored")]

mod leases;
mod simulation;
