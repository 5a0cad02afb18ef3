//! The doors: each turns the bytes of its protocol into calls, and replies into bytes.

pub(crate) mod connection;
pub(crate) mod door;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
