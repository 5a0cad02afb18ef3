//! Tests of the public interface of `tidegate-core`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod bounds;
mod concurrency;
mod headers;
mod leases;
mod limit_changes;
mod max_wait;
mod model;
mod properties;
mod vectors;
