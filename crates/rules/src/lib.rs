//! The rules of Tidegate: the model of a rule, the index that finds the rules of a request, the reader of rules documents
//! and their JSON Schema.
//!
//! Everything here is a pure function of its arguments, as in `tidegate-core`: nothing reads a clock, a socket, a file or
//! the environment.
#![forbid(unsafe_code)]
#![deny(
    clippy::as_conversions,
    clippy::expect_used,
    clippy::float_arithmetic,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]
#![cfg_attr(
    test,
    allow(
        clippy::as_conversions,
        clippy::indexing_slicing,
        reason = "tests state what they expect"
    )
)]

mod accuracy;
mod canonical;
mod client_name;
mod condition;
mod condition_index;
mod error;
mod glob;
mod ignored;
mod limits;
mod lint;
mod nearest;
mod network;
mod parse;
mod pattern_set;
mod penalty;
mod per;
mod raw;
mod rollout;
mod rule;
pub mod schema;
mod set;
mod source_range;
mod warning;
mod yaml;

pub use accuracy::{Accuracy, FleetBound, MaxAhead, SyncInterval, SyncSettings};
pub use canonical::CanonicalRule;
pub use client_name::ClientName;
pub use condition::{
    Condition, RuleMismatch, ValuePattern, ValuePatterns, ValueTest, may_be_secret,
};
pub use error::{RuleError, RuleErrors};
pub use glob::Glob;
pub use ignored::IgnoredDifferences;
pub use limits::{AppliedLimit, LimitOrigin, Override, TierLimits};
pub use nearest::{did_you_mean, nearest};
pub use network::{NetworkError, NetworkSet, canonical_network, parse_address, parse_network};
pub use pattern_set::PatternSet;
pub use penalty::{DenialThreshold, Penalty, PenaltyError};
pub use per::{AttributeChain, PickedAttribute};
pub use rollout::{Rollout, RolloutError};
pub use rule::{CallerRefunds, Mode, OnStoreFailure, Rule};
pub use set::RuleSet;
pub use source_range::SourceRange;
pub use warning::{RuleWarning, RuleWarnings, WarningContext};
