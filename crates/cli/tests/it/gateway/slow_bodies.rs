//! Bodies that a client sends or takes too slowly: they end, and release their places.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::Request;
use hyper::body::Frame;
use tidegate_testkit::{Upstream, wait_for};

use super::GatewayServer;
use super::client::HttpClient;
use super::http2::{Body, Http2Client, get};

/// Time between two bytes of a slow client.
const PAUSE: Duration = Duration::from_millis(20);

#[allow(clippy::disallowed_methods, reason = "a slow peer pauses; the test does not wait for it")]
fn pause(span: Duration) {
    thread::sleep(span);
}

#[allow(clippy::disallowed_methods, reason = "a slow peer pauses; the test does not wait for it")]
async fn pause_task(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Starts a gateway with an upstream that has a capacity of four requests.
fn limited_gateway(upstream: &str, timeouts: &str) -> GatewayServer {
    let config = format!(
        "gateway: {{upstreams: [{{name: api, servers: ['{upstream}'], max_in_flight: 4}}], timeouts: {{{timeouts}}}}}"
    );
    GatewayServer::launch(&[], &config, super::NO_LIMIT)
}

/// Sends a head, and then one byte at a time until the connection is closed, for 20 seconds at most.
fn trickle(gateway: &GatewayServer, head: &str) -> HttpClient {
    let mut client = gateway.connect();
    client.write(head);
    let mut socket = client.socket();
    thread::spawn(move || {
        for _ in 0..1000 {
            if socket.write_all(b"x").is_err() {
                return;
            }
            pause(PAUSE);
        }
    });
    client
}

/// Returns a request with a body that sends one byte at a time and never ends.
fn trickled_post(path: &str, content_type: &str) -> Request<Body> {
    let bytes = stream::unfold((), |()| async {
        pause_task(PAUSE).await;
        Some((Ok(Frame::data(Bytes::from_static(b"x"))), ()))
    });
    let request = Request::post(format!("http://shop.example{path}"));
    let request = request.header("content-type", content_type);
    request.body(Body::new(StreamBody::new(Box::pin(bytes)))).unwrap()
}

fn wait_for_slow_bodies(gateway: &GatewayServer, count: usize) {
    let line = format!("tidegate_slow_bodies_total{{listener=\"gateway\"}} {count}\n");
    wait_for(&line, || {
        gateway.server.request_admin("GET", "/metrics", "").body.contains(&line).then_some(())
    });
}

fn wait_for_capacity(gateway: &GatewayServer) {
    wait_for("a request is admitted", || {
        (gateway.connect().get("/status/204").status == 204).then_some(())
    });
}

#[test]
fn trickled_uploads_get_408_and_release_their_places() {
    let upstream = Upstream::start();
    for url in [upstream.url(), upstream.h2c_url()] {
        let gateway = limited_gateway(&url, "body: 1s, response: 1s");
        let before = upstream.seen("POST /swallow");
        for framing in ["Content-Length: 1000000\r\n", "Content-Length: 300\r\n"] {
            let head = format!("POST /swallow HTTP/1.1\r\nHost: a\r\n{framing}\r\n");
            let mut slow: Vec<_> = (0..2).map(|_| trickle(&gateway, &head)).collect();
            slow.iter_mut().for_each(|client| client.receive("POST").assert_problem(408));
        }
        assert_eq!(upstream.seen("POST /swallow"), before + 4, "{url}");
        wait_for_slow_bodies(&gateway, 4);
        wait_for_capacity(&gateway);
    }
}

#[test]
fn trickled_uploads_do_not_occupy_the_capacity_for_good() {
    let upstream = Upstream::start();
    let gateway = limited_gateway(&upstream.url(), "body: 1s, response: 1s");
    let head = "POST /swallow HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    let mut slow: Vec<_> = (0..4).map(|_| trickle(&gateway, head)).collect();
    wait_for("the upstream has the requests", || {
        (upstream.seen("POST /swallow") == 4).then_some(())
    });
    wait_for_capacity(&gateway);
    slow.iter_mut().for_each(|client| client.receive("POST").assert_problem(408));
}

#[test]
fn pings_and_other_streams_are_no_progress_of_an_upload() {
    let upstream = Upstream::start();
    for url in [upstream.url(), upstream.h2c_url()] {
        let gateway = limited_gateway(&url, "body: 1s, response: 1s");
        let streams = Http2Client::connect_with_pings(gateway.address(), PAUSE);
        let slow = streams.start(trickled_post("/swallow", "text/plain"));
        while !slow.is_finished() {
            assert_eq!(streams.send(get("/bytes/100000")).body.len(), 100_000);
        }
        assert_eq!(streams.receive(slow).status, 408, "{url}");
        wait_for_slow_bodies(&gateway, 1);
    }
}

#[test]
fn trickled_upload_is_aborted_if_the_response_has_begun() {
    let upstream = Upstream::start();
    let gateway = limited_gateway(&upstream.url(), "body: 1s");
    let head =
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\nf4240\r\n";
    let mut client = trickle(&gateway, head);
    assert_eq!(client.read_head().unwrap().status, 200);
    assert!(!client.read_to_end().ends_with(b"0\r\n\r\n"));
    wait_for_slow_bodies(&gateway, 1);
    wait_for_capacity(&gateway);
}

#[test]
fn grpc_stream_may_pause_after_the_head_of_its_response() {
    let upstream = Upstream::start();
    let gateway = limited_gateway(&upstream.h2c_url(), "body: 100ms");
    let streams = Http2Client::connect(gateway.address());
    let messages = stream::iter([b"a", b"b", b"c"]).then(|message| async move {
        pause_task(Duration::from_millis(400)).await;
        Ok(Frame::data(Bytes::from_static(message)))
    });
    // The head of the response arrives before the first message.
    let messages = stream::iter([Ok(Frame::data(Bytes::from_static(b"head ")))]).chain(messages);
    let request =
        Request::post("http://shop.example/echo").header("content-type", "application/grpc");
    let request = request.body(Body::new(StreamBody::new(Box::pin(messages)))).unwrap();
    assert_eq!(streams.send(request).body, "head abc");
    wait_for_slow_bodies(&gateway, 0);
}

#[test]
fn upstream_that_does_not_read_the_body_gets_no_408() {
    // Connections wait in the queue of this listener, and are never read.
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let gateway = limited_gateway(&url, "body: 1h, response: 1s");
    let mut client = gateway.connect();
    let mut socket = client.socket();
    thread::spawn(move || {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n";
        let _ = socket.write_all(head.as_bytes());
        while socket.write_all(&[b'x'; 64 * 1024]).is_ok() {}
    });
    client.receive("POST").assert_problem(504);
}

#[test]
fn slow_reader_of_a_response_releases_its_place() {
    let upstream = Upstream::start();
    for url in [upstream.url(), upstream.h2c_url()] {
        let gateway = limited_gateway(&url, "body: 1s");
        let mut slow: Vec<_> = (0..4).map(|_| gateway.connect()).collect();
        for client in &mut slow {
            client.write("GET /bytes/1000000000 HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.read_head().unwrap().status, 200);
            let mut socket = client.socket();
            thread::spawn(move || {
                while socket.read_exact(&mut [0; 1]).is_ok() {
                    pause(PAUSE);
                }
            });
        }
        wait_for_slow_bodies(&gateway, 4);
        wait_for_capacity(&gateway);
    }
}

#[test]
fn stream_without_flow_control_window_releases_its_place_while_pings_arrive() {
    let upstream = Upstream::start();
    for url in [upstream.url(), upstream.h2c_url()] {
        let gateway = limited_gateway(&url, "body: 1s");
        let streams = Http2Client::connect_with_pings(gateway.address(), PAUSE);
        let unread: Vec<_> = (0..4).map(|_| streams.response(get("/bytes/1000000000"))).collect();
        wait_for_slow_bodies(&gateway, 4);
        wait_for_capacity(&gateway);
        // The connection stays open for other streams.
        assert_eq!(streams.send(get("/status/204")).status, 204, "{url}");
        drop(unread);
    }
}

#[test]
fn events_of_a_quiet_upstream_are_no_slow_body() {
    let address = start_event_source();
    let gateway = limited_gateway(&format!("http://{address}"), "body: 50ms");
    let mut client = gateway.connect();
    client.write("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = client.receive("GET");
    assert_eq!(response.text(), "data: 1\n\n".repeat(4));
    wait_for_slow_bodies(&gateway, 0);
}

/// Starts an upstream that sends four events, with 300 ms before each.
fn start_event_source() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..4 {
            pause(Duration::from_millis(300));
            stream.write_all(b"9\r\ndata: 1\n\n\r\n").unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    address
}
