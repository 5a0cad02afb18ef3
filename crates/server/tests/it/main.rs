//! The real binary, over real sockets.
#![allow(clippy::unwrap_used, reason = "tests state what they expect")]

mod admin;
mod authorize;
mod bad_input;
mod block;
mod cli;
mod deploy;
mod http;
mod identity;
mod kit;
mod metrics;
mod openapi;
mod proxies;
mod redis;
mod redis_config;
mod serve;
mod tls;
