//! The test kit itself: real servers, proxies, processes and browsers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "a worker process answers on stdout")]

mod browser;
mod cluster;
mod process;
mod proxy;
mod redis;
mod sentinel;
mod upstream;
