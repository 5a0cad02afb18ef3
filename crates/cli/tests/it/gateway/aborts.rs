//! Every way a request can end, at any point: afterwards nothing is in flight.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate_testkit::{Port, Redis, Upstream, wait_for};

use super::{Gateway, patiently_in};

/// Nobody loses a slot by waiting: what is free was released.
const RULES: &str = "
rules:
  - {name: flights, per: [upstream], limit: 1000 in flight, hold: 1h}
  - {name: gentle, match: {path: /bytes/3}, algorithm: leaky_bucket, limit: 20 per second, queue: 5}
";

/// One upstream that answers and one that nobody can reach.
fn config(upstream: &Upstream, nobody: &Port) -> String {
    format!(
        "gateway:
  upstreams:
    - {{name: api, servers: [{}]}}
    - {{name: nobody, servers: ['http://127.0.0.1:{}']}}
  routes:
    - {{path: /nobody, upstream: nobody}}
    - {{upstream: api}}
",
        upstream.url(),
        nobody.number()
    )
}

/// What one client does.
#[derive(Clone, Debug)]
enum Visit {
    /// Sends so many bytes of a request, reads so many of what comes back, and leaves.
    One { request: usize, send: usize, read: usize, reset: bool },
    /// Some requests on one connection of HTTP/2, of whose answers so many frames are read.
    Two { requests: usize, frames: usize },
}

/// Requests of HTTP/1: what a client says, and whether there is an answer to wait for.
const REQUESTS: [(&str, bool); 12] = [
    ("GET /bytes/3 HTTP/1.1\r\nhost: a\r\n\r\n", true),
    ("GET /bytes/300000 HTTP/1.1\r\nhost: a\r\n\r\n", true),
    ("GET /chunked/70000 HTTP/1.1\r\nhost: a\r\n\r\n", true),
    ("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 20\r\n\r\n12345678901234567890", true),
    (
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        true,
    ),
    (
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\nno chunk",
        true,
    ),
    ("GET /broken HTTP/1.1\r\nhost: a\r\n\r\n", true),
    ("GET /held HTTP/1.1\r\nhost: a\r\n\r\n", false),
    ("POST /held HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nand then nothing", false),
    ("GET /nobody HTTP/1.1\r\nhost: a\r\n\r\n", true),
    ("GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n", true),
    ("POST /early/413 HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\npart of it", true),
];

fn visits() -> impl Strategy<Value = Vec<Visit>> {
    let length = prop_oneof![3 => Just(usize::MAX), 2 => 0_usize..160];
    let read = prop_oneof![2 => Just(0_usize), 2 => 1_usize..400, 1 => 1_000_usize..250_000];
    let one = (0..REQUESTS.len(), length, read, any::<bool>())
        .prop_map(|(request, send, read, reset)| Visit::One { request, send, read, reset });
    let two =
        (1_usize..6, 0_usize..4).prop_map(|(requests, frames)| Visit::Two { requests, frames });
    prop::collection::vec(prop_oneof![5 => one, 1 => two], 1..24)
}

impl Visit {
    fn pay(&self, gateway: &Gateway) {
        match *self {
            Self::One { request, send, read, reset } => one(gateway, request, send, read, reset),
            Self::Two { requests, frames } => two(gateway, requests, frames),
        }
    }
}

fn one(gateway: &Gateway, request: usize, send: usize, read: usize, reset: bool) {
    let (text, is_answered) = REQUESTS[request];
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    let sent = &text.as_bytes()[..send.min(text.len())];
    // The gateway may be done with a client before the client is: that is one of the ways.
    let _ = stream.write_all(sent);
    if sent.len() == text.len() && is_answered && read > 0 {
        let mut left = read;
        let mut buffer = [0; 8 * 1024];
        // What is kept open after a whole answer says nothing more.
        let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(200)));
        while left > 0 {
            let most = left.min(buffer.len());
            match stream.read(&mut buffer[..most]) {
                Ok(0) | Err(_) => break,
                Ok(count) => left -= count,
            }
        }
    }
    if reset {
        // Unread bytes make a reset of it; else it is an end in good order.
        return;
    }
    let _ = stream.shutdown(Shutdown::Both);
}

fn two(gateway: &Gateway, requests: usize, frames: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.address()).await.unwrap();
        let (sender, connection) = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
            TokioExecutor::new(),
            TokioIo::new(stream),
        )
        .await
        .unwrap();
        let connection = tokio::spawn(connection);
        let paths = ["/bytes/300000", "/broken", "/trailers", "/nobody"];
        let asked = (0..requests).map(|number| {
            let mut sender = sender.clone();
            let uri = format!("http://a{}", paths[number % paths.len()]);
            let request = hyper::Request::get(uri).body(Full::default()).unwrap();
            async move {
                let Ok(mut response) = sender.send_request(request).await else { return };
                for _ in 0..frames {
                    let Some(Ok(_)) = response.body_mut().frame().await else { return };
                }
            }
        });
        futures_util::future::join_all(asked).await;
        connection.abort();
    });
}

/// How much of the limit is free, for an upstream.
fn free(gateway: &Gateway, upstream: &str) -> u64 {
    let look = format!(r#"{{"rule":"flights","client":"{upstream}","cost":0}}"#);
    gateway.server.check(&look).json()["remaining"].as_u64().unwrap()
}

fn nothing_stays_in_flight(store: &str, cases: u32) {
    let (upstream, nobody) = (Upstream::start(), Port::free());
    let gateway = Gateway::launch(&[], &(config(&upstream, &nobody) + store), RULES);
    let mut runner = TestRunner::new(Config { max_shrink_iters: 64, ..Config::with_cases(cases) });
    let most = AtomicU64::new(0);
    let ran = runner.run(&visits(), |visits| {
        std::thread::scope(|scope| {
            for visit in &visits {
                scope.spawn(|| visit.pay(&gateway));
            }
            let busy = 1000 - free(&gateway, "api").min(1000);
            most.fetch_max(busy, Ordering::Relaxed);
        });
        for name in ["api", "nobody"] {
            wait_for(&format!("everything is released after {visits:?}"), || {
                (free(&gateway, name) == 1000).then_some(())
            });
        }
        Ok(())
    });
    ran.unwrap();
    // Else there was nothing to release.
    assert!(upstream.seen("") > 0 && most.into_inner() > 0, "nothing was ever in flight");
}

#[test]
fn however_a_request_ends_nothing_stays_in_flight_in_memory() {
    nothing_stays_in_flight("", 40);
}

#[test]
fn however_a_request_ends_nothing_stays_in_flight_in_redis() {
    let redis = Redis::start();
    nothing_stays_in_flight(&patiently_in(&redis), 40);
}
