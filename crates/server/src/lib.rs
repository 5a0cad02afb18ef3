//! The server behind the binary `tidegate`: rate limits as a service.
//!
//! It is a library so that fuzzers and benchmarks can reach its parts; nobody else should build on it.

mod admin;
mod app;
mod cli;
mod config;
mod config_error;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod identity;
mod live;
mod metrics;
mod reference;
mod reload;
mod rules;
mod rules_version;
mod service;
mod store;
mod top;
mod transport;

pub use tidegate_proto as proto;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    cli::log(&config::LogConfig::from_environment());
    cli::run(arguments)
}
