//! Rate limits for a Rust process, alone or as one of a fleet.
//!
//! # Install
//!
//! ```toml
//! [dependencies]
//! tidegate = "0.1"                                  # with features = ["redis"] for a fleet
//! ```
//!
//! | feature | default | contents |
//! |---|---|---|
//! | `tower` | yes | [`tower`]: a layer for axum, tonic and any other tower service over HTTP |
//! | `redis` | no | [`redis`]: one exact limit for a fleet through Redis or Valkey |
//!
//! # One limit per key
//!
//! Without rules, [`Limiter::per_key`] returns a handle with a separate limit for each key. A check takes tens of
//! nanoseconds and no future:
//!
//! ```
//! use tidegate::{Limiter, Quota};
//!
//! let api = Limiter::per_key(Quota::per_second(100).burst(200))?;
//! if !api.check("user_42").is_allowed() {
//!     // 429 Too Many Requests
//! }
//! # Ok::<(), tidegate::error::QuotaError>(())
//! ```
//!
//! # Rules
//!
//! [`Limiter::builder`] takes a [`RuleSet`]. [`Limiter::check`] charges a [`Request`] to every rule that matches it, or
//! to none of them:
//!
//! ```
//! use tidegate::{Limiter, Request, RuleSet};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = "
//! rules:
//!   - {name: login, match: {path: /login}, per: [ip], limit: 5 per minute, algorithm: sliding_log}
//!   - {name: api, per: [api_key | ip], limit: 100 per second, burst: 200}
//! ";
//! let limiter = Limiter::builder().rules(RuleSet::parse("rules.yaml", rules)?).build();
//! let request = Request::new().with("path", "/login")?.with("ip", "192.0.2.7")?;
//! let decision = limiter.check(&request).await;
//! assert!(decision.is_allowed());
//! assert_eq!(decision.rule_outcomes().len(), 2);
//! # Ok(()) }
//! ```
#![cfg_attr(
    feature = "tower",
    doc = r#"
# axum

[`RateLimitLayer`](tower::RateLimitLayer) limits any tower service. It denies with status 429 and the rate-limit headers. Here an earlier layer has verified the
key: otherwise a client could send a new one with each request.

```
use axum::Router;
use axum::routing::get;
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Quota};

let per_key = Limiter::per_key(Quota::per_second(5))?;
let layer = RateLimitLayer::per_key(per_key, |request| {
    Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
});
let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
# Ok::<(), tidegate::error::QuotaError>(())
```
"#
)]
#![cfg_attr(
    feature = "redis",
    doc = r#"
# Redis

All processes with the same rules and the same Redis share every limit exactly:

```no_run
use std::sync::Arc;

use tidegate::redis::RedisStore;
use tidegate::{Limiter, RuleSet};

# #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
let rules = RuleSet::parse("rules.yaml", "rules: [{name: api, per: [user], limit: 100 per second}]")?;
let store = RedisStore::connect("redis://127.0.0.1:6379".parse()?).await?;
let limiter = Limiter::builder().rules(rules).store(Arc::new(store)).build();
# Ok(()) }
```
"#
)]

pub use tidegate_core::{
    Algorithm, Block, Bound, Decision, DecisionStatus, EncodedSlashes, HeaderStyle, Limit, Outcome,
    Problem, Quota, Request, RuleOutcome, Span, Timestamp,
};
#[cfg(feature = "tower")]
pub use tidegate_limiter::tower;
pub use tidegate_limiter::{
    Admission, BlockList, CheckRequest, CheckTarget, Clock, Limiter, LimiterBuilder, LiveLimiter,
    ManualClock, MemoryStore, PerKey, Receipt, SlotGuard, block, trace,
};
#[cfg(feature = "redis")]
pub use tidegate_redis as redis;
pub use tidegate_rules as rules;
pub use tidegate_rules::{Rule, RuleSet};

/// The errors of this crate.
pub mod error {
    pub use tidegate_core::{CanonicalError, QuotaError, RequestError};
    pub use tidegate_limiter::{
        AcquireError, ExceedsCapacity, NotASingleKeyRule, ResetError, StoreError, UnknownRule,
    };
    pub use tidegate_rules::{RuleError, RuleErrors};
}

/// Formats of the rate-limit headers, for [`HeaderStyle`].
pub mod headers {
    pub use tidegate_core::{Header, IetfDraft, ResetFormat};
}

/// The interface of a store, for authors of stores, and the values that pass through it.
///
/// A store knows limits, not rules. Its contract is in the documentation of [`Store`](store::Store); the tests of this
/// crate check a store against it.
pub mod store {
    pub use tidegate_core::lease;
    pub use tidegate_core::{
        ClientStates, Key, Keyer, Lease, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, RefundToken,
        RuleIndex, State, StateSnapshot, UndecidedRule, UnreportedUsage, UsageReport, Verdict,
    };
    pub use tidegate_limiter::coordination;
    pub use tidegate_limiter::{
        Charge, ChargeMode, ChargeResult, ChargeResults, FailureCounts, HeartbeatReply, Membership,
        MembershipView, MemoryUse, Outcomes, Refund, Share, ShareStatus, ShareTerm, Store,
        derived_key,
    };
}
