//! Requests that end in every way and at any point: each releases its slots.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate_testkit::{Port, Redis, Upstream, wait_for};

use super::{GatewayServer, redis_store_with_long_timeout};

/// Limits in flight with a hold of one hour, so that a free slot was released and did not expire.
const RULES: &str = "
rules:
  - {name: flights, per: [upstream], limit: 1000 in flight, hold: 1h}
  - {name: gentle, match: {path: /bytes/3}, algorithm: leaky_bucket, limit: 20 per second, queue: 5}
";

/// Configures one upstream that answers and one that is unreachable.
fn config(upstream: &Upstream, unused: &Port) -> String {
    format!(
        "gateway:
  upstreams:
    - {{name: api, servers: [{}]}}
    - {{name: unreachable, servers: ['http://127.0.0.1:{}']}}
  routes:
    - {{path: /unreachable, upstream: unreachable}}
    - {{upstream: api}}
",
        upstream.url(),
        unused.number()
    )
}

/// The actions of one client.
#[derive(Clone, Debug)]
enum ClientAction {
    /// Sends `send` bytes of a request, reads `read` bytes of the response, and closes the connection.
    Http1 { request: usize, send: usize, read: usize, reset: bool },
    /// Sends requests on one HTTP/2 connection, and reads `frames` frames of each response.
    Http2 { requests: usize, frames: usize },
}

/// HTTP/1 requests, each with whether the gateway answers it.
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
    ("GET /unreachable HTTP/1.1\r\nhost: a\r\n\r\n", true),
    ("GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n", true),
    ("POST /early/413 HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\npart of it", true),
];

fn client_actions() -> impl Strategy<Value = Vec<ClientAction>> {
    let length = prop_oneof![3 => Just(usize::MAX), 2 => 0_usize..160];
    let read = prop_oneof![2 => Just(0_usize), 2 => 1_usize..400, 1 => 1_000_usize..250_000];
    let http1 = (0..REQUESTS.len(), length, read, any::<bool>()).prop_map(
        |(request, send, read, reset)| ClientAction::Http1 { request, send, read, reset },
    );
    let http2 = (1_usize..6, 0_usize..4)
        .prop_map(|(requests, frames)| ClientAction::Http2 { requests, frames });
    prop::collection::vec(prop_oneof![5 => http1, 1 => http2], 1..24)
}

impl ClientAction {
    fn run(&self, gateway: &GatewayServer) {
        match *self {
            Self::Http1 { request, send, read, reset } => {
                run_http1(gateway, request, send, read, reset);
            }
            Self::Http2 { requests, frames } => run_http2(gateway, requests, frames),
        }
    }
}

fn run_http1(gateway: &GatewayServer, request: usize, send: usize, read: usize, reset: bool) {
    let (text, is_answered) = REQUESTS[request];
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    let sent = &text.as_bytes()[..send.min(text.len())];
    // The gateway may close the connection first, which is one of the tested ends.
    let _ = stream.write_all(sent);
    if sent.len() == text.len() && is_answered && read > 0 {
        let mut left = read;
        let mut buffer = [0; 8 * 1024];
        // A connection that stays open after the response sends no end, so the read times out.
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
        // Dropping the socket sends a reset if bytes are unread, and a normal close otherwise.
        return;
    }
    let _ = stream.shutdown(Shutdown::Both);
}

fn run_http2(gateway: &GatewayServer, requests: usize, frames: usize) {
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
        let paths = ["/bytes/300000", "/broken", "/trailers", "/unreachable"];
        let pending = (0..requests).map(|number| {
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
        futures_util::future::join_all(pending).await;
        connection.abort();
    });
}

/// Returns the number of free slots of an upstream.
fn free_slots(gateway: &GatewayServer, upstream: &str) -> u64 {
    let peek = format!(r#"{{"rule":"flights","client":"{upstream}","cost":0}}"#);
    gateway.server.check(&peek).json()["remaining"].as_u64().unwrap()
}

/// Runs random client actions at once, and checks that every slot is released afterwards.
fn assert_all_slots_released(store: &str, cases: u32) {
    let (upstream, unused) = (Upstream::start(), Port::free());
    let gateway = GatewayServer::launch(&[], &(config(&upstream, &unused) + store), RULES);
    let mut runner = TestRunner::new(Config { max_shrink_iters: 64, ..Config::with_cases(cases) });
    let (max_in_flight, released) = (AtomicU64::new(0), AtomicUsize::new(0));
    let ran = runner.run(&client_actions(), |actions| {
        std::thread::scope(|scope| {
            for action in &actions {
                scope.spawn(|| action.run(&gateway));
            }
            let in_flight = 1000 - free_slots(&gateway, "api").min(1000);
            max_in_flight.fetch_max(in_flight, Ordering::Relaxed);
        });
        for name in ["api", "unreachable"] {
            wait_for(&format!("all slots are released after {actions:?}"), || {
                // An abandoned request holds its slot until the upstream responds.
                let held = upstream.seen("GET /held") + upstream.seen("POST /held");
                upstream.release(held - released.swap(held, Ordering::Relaxed));
                (free_slots(&gateway, name) == 1000).then_some(())
            });
        }
        Ok(())
    });
    ran.unwrap();
    // Without a request in flight the test would prove nothing.
    assert!(upstream.seen("") > 0 && max_in_flight.into_inner() > 0, "nothing was ever in flight");
}

#[test]
fn every_end_of_a_request_releases_its_slot_in_memory() {
    assert_all_slots_released("", 40);
}

#[test]
fn every_end_of_a_request_releases_its_slot_in_redis() {
    let redis = Redis::start();
    assert_all_slots_released(&redis_store_with_long_timeout(&redis), 40);
}
