//! The rate-limit algorithms of Tidegate, as pure functions.
//!
//! The time is an argument, a [`Timestamp`], and the state is a few integers. Nothing here reads a clock, a socket, a
//! file or the environment. Lua scripts repeat the same arithmetic inside Redis; the vectors in `tests/vectors` check
//! that both give the same results.
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
    allow(clippy::as_conversions, clippy::indexing_slicing, reason = "a test may panic")
)]

pub mod address;
pub mod algorithm;
pub mod call_error;
pub mod canonical;
pub mod decision;
pub mod escape;
pub mod header;
pub mod key;
pub mod lease;
pub mod outcome;
pub mod quota;
pub mod reply;
pub mod request;
pub mod terminal;
pub mod time;

pub use algorithm::{Algorithm, Bound, ClientStates, Limit, Meter, State};
pub use call_error::{CallError, CallStatus, InvalidReason, quote, truncate};
pub use canonical::{
    CanonicalError, CanonicalHost, EncodedSlashes, canonical_host, canonical_path, check_method,
};
pub use decision::{
    Block, Decision, DecisionStatus, RuleIndex, RuleOutcome, RuleOutcomes, UndecidedRule,
};
pub use escape::{escape_bytes, escape_text, is_unescaped, unescape};
pub use header::{Header, HeaderStyle, IetfDraft, Problem, ResetFormat, retry_after_seconds};
pub use key::{Key, Keyer, Part, Scope};
pub use lease::{
    Lease, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, StateSnapshot, UnreportedUsage, UsageReport,
};
pub use outcome::{Outcome, RefundToken, Verdict, strictest};
pub use quota::{Quota, QuotaError};
pub use reply::Reply;
pub use request::{Request, RequestError};
pub use terminal::TerminalSafe;
pub use time::{Span, Timestamp};
