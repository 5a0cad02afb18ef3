//! Listeners, TLS, connection timeouts and HTTP helpers that the protocols of Tidegate share.
//!
//! An internal crate: it has no stable interface.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "an internal crate; the names of short items describe them")]

pub mod auth_failures;
pub mod client;
pub mod http;
pub mod http1;
pub mod listener;
pub mod log_interval;
pub mod token;
