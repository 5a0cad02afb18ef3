//! The messages of the gRPC door, with clients that tests and benchmarks call it by.
#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rustdoc::all,
    clippy::all,
    clippy::semicolon_if_nothing_returned,
    clippy::allow_attributes_without_reason,
    reason = "generated from the files in proto, which say what things mean"
)]

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

/// What reflection tells about the services and messages.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
