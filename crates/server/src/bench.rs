//! Load against a door, and what came back.
//!
//! A [`Schedule`](schedule::Schedule) says when each request is due, a link of its own carries one request after
//! another, and a tally counts what became of them. With a rate, latencies run from when a request was due: a
//! server that stalls is charged for everybody who had to wait behind.

mod ask;
mod grpc;
mod http;
mod link;
mod report;
mod resp;
mod run;
mod schedule;
mod tally;
mod target;

pub(crate) use ask::{Ask, Clients, Spread};
pub(crate) use report::Report;
pub(crate) use run::{Load, run};
pub(crate) use schedule::Bounds;
pub(crate) use target::{Door, Target};
