//! Rules as their callers see them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod documentation;
mod rule_concurrency;
mod rule_documents;
mod rule_errors;
mod rule_globs;
mod rule_matching;
mod rule_rollout;
