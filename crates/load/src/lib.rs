//! Load against a listener, and the replies to it.
//!
//! A schedule has the time at which each request is due, a connection carries one request after another, and statistics
//! count the replies. With a rate, a latency begins when its request was due: the time that requests wait behind a stalled
//! server counts.

mod connection;
mod grpc;
mod http;
mod reply;
mod report;
mod request;
mod resp;
mod run;
mod schedule;
mod stats;
mod target;

pub use report::LoadReport;
pub use request::{ClientPool, ClientSpread, LoadRequest};
pub use run::{LoadPlan, LoadProgress, run};
pub use schedule::LoadBounds;
pub use target::{ListenerKind, LoadTarget};
