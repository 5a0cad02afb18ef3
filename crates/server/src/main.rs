//! `tidegate`: rate limits as a service.

mod admin;
mod app;
mod cli;
mod client;
mod config;
mod service;
mod store;
mod transport;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    cli::log(&config::log_filter());
    cli::run(arguments)
}
