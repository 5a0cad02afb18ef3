//! Replacing a process under load: two of them share the port, and one leaves.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tidegate_testkit::{Port, Upstream};

use super::client::{Client, request};
use super::streams::{Streams, get};
use super::{Gateway, NO_LIMIT};

/// How often a process is replaced by a new one.
const ROUNDS: usize = 4;

/// Clients that keep their connection, and those that open one for each request: enough for some to be
/// half-way in whenever a listener closes.
const KEEPING: usize = 4;
const COMING: usize = 16;

const CONFIG: &str = "drain: {delay: 500ms, timeout: 20s}";

#[derive(Default)]
struct Load {
    over: AtomicBool,
    answered: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Load {
    /// A client that goes on until the load is over. It never asks twice, and keeps its connection if `keeps`, until
    /// it is told that it ends.
    fn client(self: &Arc<Self>, address: SocketAddr, keeps: bool) -> JoinHandle<()> {
        let load = Arc::clone(self);
        std::thread::spawn(move || {
            let mut kept = None;
            for number in 0.. {
                if load.over.load(Ordering::SeqCst) {
                    return;
                }
                match once(address, kept.take(), keeps, number) {
                    Ok(connection) => kept = connection,
                    Err(failure) => load.failures.lock().unwrap().push(failure),
                }
                load.answered.fetch_add(1, Ordering::SeqCst);
            }
        })
    }
}

/// One request: the connection if it can be used again, or what went wrong.
fn once(
    address: SocketAddr,
    kept: Option<Client>,
    keeps: bool,
    number: usize,
) -> Result<Option<Client>, String> {
    let was_kept = kept.is_some();
    let failed = |what: &str| format!("{what}, kept {was_kept}, request {number}");
    let mut client = match kept {
        Some(client) => client,
        None => Client::try_to(address).map_err(|error| failed(&format!("connect: {error}")))?,
    };
    let (method, path, body) = if number.is_multiple_of(2) {
        ("GET", "/bytes/1000", "")
    } else {
        ("POST", "/swallow", "body")
    };
    let fields: &[(&str, &str)] = if keeps { &[] } else { &[("Connection", "close")] };
    let sent = client.try_write(request(method, path, fields, body));
    sent.map_err(|error| failed(&format!("send: {error}")))?;
    let answer = client.try_receive(method).ok_or_else(|| failed("no answer"))?;
    if answer.status != 200 {
        return Err(failed(&format!("{answer:?}")));
    }
    let ends = answer.field("connection").is_some_and(|value| value.contains("close"));
    Ok((keeps && !ends).then_some(client))
}

#[test]
fn no_request_fails_while_processes_are_replaced() {
    let upstream = Upstream::start();
    let (port, url) = (Port::free(), upstream.url());
    let address = format!("127.0.0.1:{}", port.number());
    let start = || Gateway::launch(&["--gateway", &address, "--upstream", &url], CONFIG, NO_LIMIT);
    let mut serving = start();
    let load = Arc::new(Load::default());
    let clients: Vec<_> = (0..KEEPING + COMING)
        .map(|number| load.client(serving.address(), number < KEEPING))
        .collect();
    for _ in 0..ROUNDS {
        let next = start();
        let mut leaving = std::mem::replace(&mut serving, next);
        let before = load.answered.load(Ordering::SeqCst);
        tidegate_testkit::wait_for("both serve", || {
            (load.answered.load(Ordering::SeqCst) > before + 100).then_some(())
        });
        leaving.server.signal("TERM");
        assert_eq!(leaving.server.wait().code(), Some(0));
    }
    load.over.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().unwrap();
    }
    let failures = load.failures.lock().unwrap();
    let answered = load.answered.load(Ordering::SeqCst);
    assert!(failures.is_empty(), "{} of {answered} failed: {failures:#?}", failures.len());
}

#[test]
fn a_process_that_leaves_finishes_what_it_began() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::with_config(&upstream.url(), CONFIG);
    let mut client = gateway.connect();
    client.write(request("GET", "/held", &[], ""));
    tidegate_testkit::wait_for("the request", || (upstream.seen("GET /held") == 1).then_some(()));
    let mut upload = gateway.connect();
    upload.write("POST /swallow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    tidegate_testkit::wait_for("half a body", || (upstream.swallowed() == 5).then_some(()));
    gateway.server.signal("TERM");
    gateway.server.note("told to stop");
    upload.write("world");
    assert_eq!(upload.receive("POST").text(), "10");
    upstream.release(1);
    let answer = client.receive("GET");
    assert_eq!(answer.text(), "done");
    assert_eq!(gateway.server.wait().code(), Some(0));
}

#[test]
fn streams_are_finished_and_new_ones_sent_elsewhere() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::with_config(&upstream.url(), CONFIG);
    let streams = Streams::to(gateway.address());
    let held: Vec<_> = (0..10).map(|_| streams.send(get("/held"))).collect();
    tidegate_testkit::wait_for("all are there", || {
        (upstream.seen("GET /held") == 10).then_some(())
    });
    gateway.server.signal("TERM");
    gateway.server.note("told to stop");
    // The connection is told that it ends, and still carries what is under way.
    streams.wait_until_told();
    upstream.release(10);
    for answer in held {
        assert_eq!(&streams.answer(answer).body[..], b"done");
    }
    assert_eq!(gateway.server.wait().code(), Some(0));
}
