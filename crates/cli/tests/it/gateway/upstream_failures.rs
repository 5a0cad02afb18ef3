//! Upstreams that are unreachable, do not respond, or close the connection at a critical moment.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_testkit::{Port, RawUpstream, Upstream, UpstreamAction, wait_for};

use super::GatewayServer;

#[test]
fn unreachable_upstream_is_502_until_it_is_reachable_again() {
    let port = Port::free();
    let gateway = GatewayServer::forward_to(&format!("http://127.0.0.1:{}", port.number()));
    let mut client = gateway.connect();
    for method in ["GET", "POST"] {
        client.send(method, "/status/200", &[], "").assert_problem(502);
    }
    for _ in 0..2 {
        let upstream = Upstream::at(&port);
        wait_for("the upstream is reachable", || {
            (client.get("/status/200").status == 200).then_some(())
        });
        drop(upstream);
        client.get("/status/200").assert_problem(502);
    }
}

#[test]
fn unreachable_server_fails_no_request_while_another_server_is_up() {
    let (upstream, unused) = (Upstream::start(), Port::free());
    let unreachable = format!("http://127.0.0.1:{}", unused.number());
    let gateway = GatewayServer::launch(
        &["--upstream", &unreachable, "--upstream", &upstream.url()],
        "",
        super::NO_LIMIT,
    );
    let mut client = gateway.connect();
    for _ in 0..50 {
        assert_eq!(client.get("/status/200").status, 200);
    }
    for _ in 0..50 {
        assert_eq!(client.send("POST", "/swallow", &[], "body").status, 200);
    }
}

#[test]
fn upstream_without_a_response_is_504_and_is_not_retried() {
    let upstream = Upstream::start();
    let config = "gateway: {timeouts: {response: 100ms}}";
    let gateway = GatewayServer::with_config(&upstream.url(), config);
    let mut client = gateway.connect();
    client.get("/held").assert_problem(504);
    assert_eq!(client.get("/status/204").status, 204);
    // A timeout is not retried, because the upstream may have processed the request.
    assert_eq!(upstream.seen("GET /held"), 1);
}

/// Starts an upstream that answers the first request of each connection, and closes the connection at the second.
fn start_stale_upstream() -> RawUpstream {
    let mut answered = Vec::new();
    RawUpstream::start(move |connection, _| {
        if answered.contains(&connection) {
            return UpstreamAction::Close;
        }
        answered.push(connection);
        UpstreamAction::ok("ok")
    })
}

#[test]
fn get_on_a_stale_connection_is_retried_once() {
    let upstream = start_stale_upstream();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    for _ in 0..5 {
        let response = client.get("/again");
        assert_eq!((response.status, response.text()), (200, "ok"));
    }
}

#[test]
fn post_is_never_retried() {
    let upstream = start_stale_upstream();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    assert_eq!(client.get("/first").status, 200);
    client.send("POST", "/once", &[], "body").assert_problem(502);
    let sent = upstream.received();
    let posts = sent.iter().filter(|request| request.line().starts_with("POST")).count();
    assert_eq!(posts, 1, "{sent:?}");
    // A request with a body and a request with an unknown method are not retried either.
    for method in ["PUT", "FROB"] {
        assert_eq!(client.get("/first").status, 200);
        client.send(method, "/once", &[], "body").assert_problem(502);
        let sent = upstream.received();
        let count = sent.iter().filter(|request| request.line().starts_with(method)).count();
        assert_eq!(count, 1, "{sent:?}");
    }
}

#[test]
fn connection_closed_by_the_upstream_is_not_reused() {
    let upstream = RawUpstream::start(|_, _| {
        UpstreamAction::RespondAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec())
    });
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    for round in 1..=10 {
        let response = client.send("POST", "/", &[], "body");
        assert_eq!((response.status, response.text()), (200, "ok"));
        // The gateway closes its side when it detects the close of the upstream.
        wait_for("the gateway closes its side", || (upstream.ended() == round).then_some(()));
    }
    assert_eq!(upstream.received().len(), 10);
}

#[test]
fn request_is_sent_at_most_twice_when_the_upstream_always_closes() {
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    let upstream = RawUpstream::start(|_, _| {
        REQUESTS.fetch_add(1, Ordering::SeqCst);
        UpstreamAction::Close
    });
    let gateway = GatewayServer::forward_to(&upstream.url());
    gateway.connect().get("/").assert_problem(502);
    assert!(REQUESTS.load(Ordering::SeqCst) <= 2, "{REQUESTS:?}");
}

#[test]
fn client_disconnect_closes_the_upstream_connection() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::Silence);
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for("the upstream has the request", || (upstream.received().len() == 1).then_some(()));
    drop(client);
    wait_for("the upstream connection is closed", || (upstream.ended() == 1).then_some(()));
}
