//! The one place where a call becomes a reply.
//!
//! Listeners of every protocol pass a `Call` to the [`service::Service`], which checks it by the active rules, counts and
//! logs it. Rules come from a source ([`rules`]) and are replaced while calls are answered.

pub mod active_rules;
pub mod call;
pub mod config_error;
pub mod envoy;
#[doc(hidden)]
pub mod fuzzing;
pub mod identity;
pub mod live;
pub mod metrics;
pub mod reload;
pub mod rules;
pub mod rules_version;
pub mod service;
pub mod source_status;
pub mod stats;
pub mod store;
pub mod top;
