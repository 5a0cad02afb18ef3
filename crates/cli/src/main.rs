//! The binary `tidegate`: server, reverse proxy and command line tools.

mod app;
mod commands;
mod config;
mod listeners;
mod reference;
mod resources;

use std::process::ExitCode;

use clap::Parser;

/// A request allocates a few dozen small objects, and mimalloc is fast for those.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = commands::Arguments::parse();
    commands::init_logging(&config::LogConfig::from_environment());
    commands::run(arguments)
}
