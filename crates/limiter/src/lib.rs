//! Rate limits in your process.
//!
//! Without a rules file, [`Limiter::per_key`] returns a handle that limits each key independently:
//!
//! ```
//! use tidegate::{Limiter, Quota};
//!
//! let api = Limiter::per_key(Quota::per_second(100).burst(200))?;
//! if !api.check("user_42").is_allowed() {
//!     // 429
//! }
//! # Ok::<(), tidegate::error::QuotaError>(())
//! ```
//!
//! With rules, [`Limiter::builder`] takes a [`RuleSet`](tidegate_rules::RuleSet). [`Limiter::check`] decides a
//! [`Request`](tidegate_core::Request) by every rule that matches it: all of these rules are charged, or none. The
//! `tower` feature adds a layer that limits an HTTP or gRPC service.

pub mod block;
pub mod clock;
pub mod coordination;
mod limit_shares;
pub mod limiter;
pub mod live;
pub mod per_key;
pub mod sharded_map;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;
pub mod trace;

pub use block::BlockList;
pub use clock::{Clock, ManualClock};
pub use coordination::membership::{
    HeartbeatReply, Membership, MembershipView, ShareStatus, ShareTerm,
};
pub use limiter::{
    AcquireError, Admission, CheckRequest, CheckTarget, FailureCounts, Limiter, LimiterBuilder,
    NotASingleKeyRule, Receipt, ResetError, SlotGuard, UnknownRule,
};
pub use live::LiveLimiter;
pub use per_key::{ExceedsCapacity, PerKey};
pub use store::memory::{MemoryStore, MemoryUse};
pub use store::{
    Charge, ChargeMode, ChargeResult, ChargeResults, Outcomes, Refund, Share, Store, StoreError,
    derived_key,
};
