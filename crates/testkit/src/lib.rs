//! Real servers and programs for Tidegate's tests, on free loopback ports.
//!
//! [`Redis`] is one server, [`Cluster`] six of them, [`Sentinel`] a master with a replica and sentinels, and
//! [`FaultProxy`] a bad network in front of a server. [`Process`] runs a program of our own. [`Upstream`] is a web server to
//! stand behind a proxy, [`RawUpstream`] one that stores every received byte. [`Browser`] is a real browser, [`Screen`]
//! is a terminal.
//!
//! Whatever is started here ends with its handle, also when the test panics, and does not outlive a test runner that is
//! killed. Waiting means polling a real condition; what never comes is a panic that shows the server's last lines.
//!
//! Everything blocks and needs no runtime, so it can be used from `#[test]` and from `#[tokio::test]` alike.

mod browser;
mod certificates;
mod cluster;
mod listener;
mod loopback_server;
mod port;
mod process;
mod proxy;
mod raw_upstream;
mod redis;
mod screen;
mod sentinel;
mod skew;
mod tool;
mod upstream;
mod wait;

pub use crate::browser::{Browser, Element, keys};
pub use crate::certificates::Certificates;
pub use crate::cluster::{Cluster, ClusterBuilder};
pub use crate::listener::listen;
pub use crate::port::Port;
pub use crate::process::{Process, ProcessOutput};
pub use crate::proxy::FaultProxy;
pub use crate::raw_upstream::{RawUpstream, ReceivedRequest, UpstreamAction};
pub use crate::redis::{Redis, RedisBuilder};
pub use crate::screen::Screen;
pub use crate::sentinel::{Sentinel, SentinelBuilder};
pub use crate::tool::{Flavour, Tool, lacking};
pub use crate::upstream::Upstream;
pub use crate::wait::{WAIT_TIMEOUT, poll, wait_for};
