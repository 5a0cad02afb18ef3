//! The binary `tidegate`: rate limits as a service.

mod app;
mod commands;
mod config;
mod listeners;
mod reference;

use std::process::ExitCode;

use clap::Parser;

/// Requests allocate a few dozen small objects each, which this allocator is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = commands::Arguments::parse();
    commands::log(&config::LogConfig::from_environment());
    commands::run(arguments)
}
