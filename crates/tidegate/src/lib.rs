//! Rate limits in your process.
//!
//! Without a rules file, [`Limiter::per_key`] gives a handle that limits each key on its own:
//!
//! ```
//! use tidegate::{Limiter, Quota};
//!
//! let api = Limiter::per_key(Quota::per_second(100).burst(200))?;
//! if !api.check("user_42").is_allowed() {
//!     // 429
//! }
//! # Ok::<(), tidegate::QuotaError>(())
//! ```
//!
//! With one, [`Limiter::builder`] takes a [`RuleSet`], and [`Limiter::check`] decides a [`Request`] by
//! every rule that matches it: all of them are charged, or none. The `tower` feature puts either in
//! front of an HTTP or gRPC service.

pub use tidegate_core::{
    Algorithm, Block, Bound, ClientStates, Decision, DecisionStatus, HeaderStyle, IetfDraft, Key,
    Keyer, Lease, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Limit, Outcome, Problem, Quota,
    QuotaError, RefundToken, Request, RequestError, ResetFormat, RuleIndex, RuleOutcome, Span,
    State, StateSnapshot, Timestamp, UndecidedRule, UnreportedUsage, UsageReport, Verdict, lease,
};
#[cfg(feature = "tower")]
pub use tidegate_limiter::tower;
pub use tidegate_limiter::{
    AcquireError, Admission, BlockList, Charge, ChargeMode, ChargeResult, ChargeResults,
    CheckRequest, CheckTarget, Clock, ExceedsCapacity, FailureCounts, HeartbeatReply, Limiter,
    LimiterBuilder, LiveLimiter, ManualClock, Membership, MembershipView, MemoryStore, MemoryUse,
    NotASingleKeyRule, Outcomes, PerKey, Receipt, Refund, ResetError, Share, ShareStatus,
    ShareTerm, SlotGuard, Store, StoreError, UnknownRule, block, clock, coordination, limiter,
    live, per_key, store,
};
#[cfg(feature = "redis")]
pub use tidegate_redis::{
    self as redis, Address, DocumentVersion, Draft, Edition, Expected, Latency, Latest, OpenError,
    PutError, RedisConfig, RedisConfigError, RedisCounts, RedisDocument, RedisStore, Secret,
    ServerReport, ServerUse, Servers, Tls, TlsIdentity,
};
pub use tidegate_rules::{self as rule, Rule, RuleSet};
