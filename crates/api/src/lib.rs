//! The JSON types of every HTTP endpoint, once: the server writes them, commands read them, and `openapi.json` is
//! generated from them.
//!
//! Replies are generic over their text `T`. The server writes borrowed text (`&str`, `Cow<str>`), a command reads
//! [`TerminalSafe`](tidegate_core::TerminalSafe), and a program that keeps a reply reads `String`. A reader accepts replies
//! of older and newer servers: a missing field has its default value, an unknown field is ignored.
//!
//! The doc comments of types and fields are the descriptions in `openapi.json`. `make openapi` writes that file again.

mod block;
mod check;
mod clients;
mod envoy;
mod fleet;
mod lab;
mod live;
#[cfg(feature = "schema")]
pub mod openapi;
mod pairs;
mod problem;
mod rules;

pub use block::{BlockEntry, BlockPage, BlockRequest, BlockTarget};
pub use check::{
    AcquireReply, Attributes, BatchItem, BatchReply, BatchRequest, CheckRequest, DecisionBody,
    DenialBody, ReleaseReply, RenewReply, SlotRequest, UnavailableBody,
};
pub use clients::{ClientName, ClientRanking, ClientStatus, RankedClient, RefundRequest};
pub use envoy::{DescriptorLimit, DescriptorStatus, HeaderPair, RateLimitReply};
pub use fleet::{
    CallTimes, FleetReport, ListenerReport, MemoryReport, ProcessReport, RedisReport,
    RedisServerReport, StoreReport, UpstreamReport, UpstreamServerReport,
};
pub use lab::{
    AlignedPeak, LabReport, LabRequest, MaxAheadSetting, OutageCounts, SimulationLine,
    SimulationResult, Timeline,
};
pub use live::{CheckCounts, LiveReport, LiveSecond, PerOutcome, RuleActivity};
pub use problem::{DocumentError, ErrorDetail, InvalidRules, ProblemBody, VersionConflict};
pub use rules::{
    ConditionView, FieldChange, LimitView, NodeReport, OverrideView, PushedRules, RuleChange,
    RuleView, RulesDifference, RulesHistory, RulesStatus, RulesView, TierView, TiersView,
    VersionEntry,
};

/// The OpenAPI document, as `GET /openapi.json` returns it.
pub const OPENAPI_JSON: &str = include_str!("../openapi.json");

/// Text of a reply: `&str`, `Cow<str>`, `String` or [`TerminalSafe`](tidegate_core::TerminalSafe).
pub trait Text: Default + Ord {}

impl<T: Default + Ord> Text for T {}

/// Returns whether a flag is not set. Such flags are left out of replies.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !flag
}
