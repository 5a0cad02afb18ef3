//! Tests of the `tidegate` binary over real sockets.
#![allow(clippy::unwrap_used, reason = "tests state what they expect")]

mod abuse;
mod accuracy;
mod admin;
mod authorize;
mod bad_input;
#[cfg(feature = "bench")]
mod bench;
mod block;
mod browser;
mod cli;
mod deploy;
mod envoy;
mod envoy_rules;
mod fault_soak;
mod gateway;
mod grpc_caller;
mod grpc_native;
mod grpc_protocol;
mod grpc_python;
mod grpc_rls;
mod guide;
mod http;
mod identity;
mod kit;
mod live;
mod metrics;
mod openapi;
mod proxies;
mod recipes;
mod redis;
mod redis_config;
mod reload;
mod resp;
mod rls_json;
mod roles;
mod rules_cli;
mod rules_files;
mod rules_fleet;
mod rules_url;
mod serve;
#[cfg(feature = "simulate")]
mod simulate;
#[cfg(feature = "simulate")]
mod simulate_real;
mod slots;
mod tls;
#[cfg(feature = "top")]
mod top;
