//! What the web servers of the kit promise to tests of a proxy.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use tidegate_testkit::{Port, RawUpstream, Upstream, UpstreamAction, WAIT_TIMEOUT};

/// Sends bytes and reads until the server closes.
fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream
}

fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    exchange(address, request.as_bytes())
}

#[test]
fn upstream_returns_the_request_head_and_counts_requests() {
    let upstream = Upstream::start();
    let answer = get(upstream.address(), "/head?x=1");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains(r#"["host","a"]"#) && answer.contains(r#""target":"/head?x=1""#));
    assert_eq!(
        (upstream.seen("GET /head"), upstream.seen("POST"), upstream.connections()),
        (1, 0, 1)
    );
}

#[test]
fn upstream_generates_and_discards_bodies() {
    let upstream = Upstream::start();
    let answer = get(upstream.address(), "/bytes/100000");
    assert!(answer.contains("content-length: 100000\r\n"));
    assert!(answer.ends_with(&"x".repeat(100_000)));
    let body = "y".repeat(5000);
    let head =
        "POST /swallow HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5000\r\n\r\n";
    let answer = exchange(upstream.address(), format!("{head}{body}").as_bytes());
    assert!(answer.ends_with("\r\n\r\n5000"), "{answer}");
    assert_eq!(upstream.swallowed(), 5000);
    let broken = get(upstream.address(), "/broken");
    assert!(broken.contains("content-length: 100\r\n") && broken.ends_with("\r\n\r\nxxxxxxxxxx"));
}

#[test]
fn upstream_blocks_requests_until_they_are_released() {
    let upstream = Upstream::start();
    let mut stream = connect(upstream.address());
    stream.write_all(b"GET /held HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    upstream.release(1);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("done"), "{answer}");
}

#[test]
fn upstream_echoes_after_an_upgrade() {
    let upstream = Upstream::start();
    let mut stream = connect(upstream.address());
    let head = "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: mine\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\nhello"), "{answer}");
}

#[test]
fn dropped_upstream_frees_its_port_and_connections() {
    let port = Port::free();
    let upstream = Upstream::at(&port);
    let mut kept = connect(upstream.address());
    kept.write_all(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    tidegate_testkit::wait_for("the request", || (upstream.seen("GET /held") == 1).then_some(()));
    drop(upstream);
    assert_eq!(kept.read(&mut [0; 10]).unwrap_or(0), 0);
    let again = Upstream::at(&port);
    assert!(get(again.address(), "/status/204").starts_with("HTTP/1.1 204"));
}

#[test]
fn raw_upstream_stores_received_bytes() {
    let upstream = RawUpstream::start(|_, head| match head.starts_with("GET /bye") {
        true => UpstreamAction::RespondAndClose(
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec(),
        ),
        false => UpstreamAction::ok("ok"),
    });
    let post =
        "POST /a HTTP/1.1\r\nHost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let sent = format!("{post}GET /bye HTTP/1.1\r\nHost: b\r\n\r\n");
    let answer = exchange(upstream.address(), sent.as_bytes());
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
    let received = upstream.received();
    assert_eq!(
        (received[0].line(), received[0].body.as_slice()),
        ("POST /a HTTP/1.1", &b"abc"[..])
    );
    assert_eq!(received[1].fields("HOST"), ["b"]);
    assert_eq!((upstream.faults().len(), upstream.unfinished()), (0, 0));
    assert_eq!(upstream.bytes(), [sent.as_bytes()]);
}

#[test]
fn raw_upstream_reports_invalid_requests() {
    let upstream = RawUpstream::always_ok();
    let answer = exchange(upstream.address(), b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n");
    assert_eq!(answer, "");
    assert!(upstream.faults()[0].starts_with("a field whose name is none"));
    assert!(upstream.received().is_empty());
}
