//! Tests of the public interface of the rules crate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod documentation;
mod rule_concurrency;
mod rule_documents;
mod rule_errors;
mod rule_globs;
mod rule_matching;
mod rule_rollout;
mod rule_warnings;
