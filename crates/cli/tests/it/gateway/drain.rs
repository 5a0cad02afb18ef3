//! Rolling restarts under load: two processes share a port, and the older one drains.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tidegate_testkit::{Port, Upstream};

use super::client::{HttpClient, request};
use super::http2::{Http2Client, get};
use super::{GatewayServer, NO_LIMIT};

/// Number of restarts.
const RESTARTS: usize = 4;

/// Clients that keep their connection.
const PERSISTENT_CLIENTS: usize = 4;
/// Clients that open a connection for each request. With 16 of them, some connect whenever a listener closes.
const CONNECTING_CLIENTS: usize = 16;

const CONFIG: &str = "drain: {delay: 500ms, timeout: 20s}";

/// Shared state of the clients under load.
#[derive(Default)]
struct ClientLoad {
    stopped: AtomicBool,
    answered: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl ClientLoad {
    /// Starts a client that sends requests until the load is stopped. It never retries. A persistent client keeps its
    /// connection until a response has `Connection: close`.
    fn start_client(self: &Arc<Self>, address: SocketAddr, persistent: bool) -> JoinHandle<()> {
        let load = Arc::clone(self);
        std::thread::spawn(move || {
            let mut kept = None;
            for number in 0.. {
                if load.stopped.load(Ordering::SeqCst) {
                    return;
                }
                match send_one(address, kept.take(), persistent, number) {
                    Ok(connection) => kept = connection,
                    Err(failure) => load.failures.lock().unwrap().push(failure),
                }
                load.answered.fetch_add(1, Ordering::SeqCst);
            }
        })
    }
}

/// Sends one request. Returns the connection if it can be reused, or a description of the failure.
fn send_one(
    address: SocketAddr,
    kept: Option<HttpClient>,
    persistent: bool,
    number: usize,
) -> Result<Option<HttpClient>, String> {
    let reused = kept.is_some();
    let failure = |cause: &str| format!("{cause}, reused connection: {reused}, request {number}");
    let mut client = match kept {
        Some(client) => client,
        None => HttpClient::try_connect(address)
            .map_err(|error| failure(&format!("connect: {error}")))?,
    };
    let (method, path, body) = if number.is_multiple_of(2) {
        ("GET", "/bytes/1000", "")
    } else {
        ("POST", "/swallow", "body")
    };
    let fields: &[(&str, &str)] = if persistent { &[] } else { &[("Connection", "close")] };
    let sent = client.try_write(request(method, path, fields, body));
    sent.map_err(|error| failure(&format!("send: {error}")))?;
    let response = client.try_receive(method).ok_or_else(|| failure("no answer"))?;
    if response.status != 200 {
        return Err(failure(&format!("{response:?}")));
    }
    let closes = response.field("connection").is_some_and(|value| value.contains("close"));
    Ok((persistent && !closes).then_some(client))
}

#[test]
fn no_request_fails_during_a_rolling_restart() {
    let upstream = Upstream::start();
    let (port, url) = (Port::free(), upstream.url());
    let address = format!("127.0.0.1:{}", port.number());
    let start =
        || GatewayServer::launch(&["--gateway", &address, "--upstream", &url], CONFIG, NO_LIMIT);
    let mut serving = start();
    let load = Arc::new(ClientLoad::default());
    let clients: Vec<_> = (0..PERSISTENT_CLIENTS + CONNECTING_CLIENTS)
        .map(|number| load.start_client(serving.address(), number < PERSISTENT_CLIENTS))
        .collect();
    for _ in 0..RESTARTS {
        let next = start();
        let mut draining = std::mem::replace(&mut serving, next);
        let before = load.answered.load(Ordering::SeqCst);
        tidegate_testkit::wait_for("both processes serve", || {
            (load.answered.load(Ordering::SeqCst) > before + 100).then_some(())
        });
        draining.server.signal("TERM");
        assert_eq!(draining.server.wait().code(), Some(0));
    }
    load.stopped.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().unwrap();
    }
    let failures = load.failures.lock().unwrap();
    let answered = load.answered.load(Ordering::SeqCst);
    assert!(failures.is_empty(), "{} of {answered} failed: {failures:#?}", failures.len());
}

#[test]
fn draining_process_finishes_requests_in_flight() {
    let upstream = Upstream::start();
    let mut gateway = GatewayServer::with_config(&upstream.url(), CONFIG);
    let mut client = gateway.connect();
    client.write(request("GET", "/held", &[], ""));
    tidegate_testkit::wait_for("the upstream has the request", || {
        (upstream.seen("GET /held") == 1).then_some(())
    });
    let mut upload = gateway.connect();
    upload.write("POST /swallow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    tidegate_testkit::wait_for("the upstream has half of the body", || {
        (upstream.swallowed() == 5).then_some(())
    });
    gateway.server.signal("TERM");
    gateway.server.wait_for_log("stop signal");
    upload.write("world");
    assert_eq!(upload.receive("POST").text(), "10");
    upstream.release(1);
    let response = client.receive("GET");
    assert_eq!(response.text(), "done");
    assert_eq!(gateway.server.wait().code(), Some(0));
}

#[test]
fn draining_process_finishes_http2_streams_after_goaway() {
    let upstream = Upstream::start();
    let mut gateway = GatewayServer::with_config(&upstream.url(), CONFIG);
    let streams = Http2Client::connect(gateway.address());
    let held: Vec<_> = (0..10).map(|_| streams.start(get("/held"))).collect();
    tidegate_testkit::wait_for("the upstream has all requests", || {
        (upstream.seen("GET /held") == 10).then_some(())
    });
    gateway.server.signal("TERM");
    gateway.server.wait_for_log("stop signal");
    // GOAWAY is sent, and the connection still carries the requests in flight.
    streams.wait_for_goaway();
    upstream.release(10);
    for response in held {
        assert_eq!(&streams.receive(response).body[..], b"done");
    }
    assert_eq!(gateway.server.wait().code(), Some(0));
}
