//! The real binary, over real sockets.
#![allow(clippy::unwrap_used, reason = "tests state what they expect")]

mod admin;
mod bad_input;
mod block;
mod cli;
mod deploy;
mod http;
mod kit;
mod metrics;
mod redis;
mod redis_config;
mod resp;
mod serve;
mod tls;
