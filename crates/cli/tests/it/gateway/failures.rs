//! Upstreams that are away, silent, or close at the worst moment.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_testkit::{Port, RawUpstream, Upstream, UpstreamAction, wait_for};

use super::Gateway;

#[test]
fn an_upstream_that_is_away_is_502_and_is_found_when_it_is_back() {
    let port = Port::free();
    let gateway = Gateway::before(&format!("http://127.0.0.1:{}", port.number()));
    let mut client = gateway.connect();
    for method in ["GET", "POST"] {
        client.ask(method, "/status/200", &[], "").assert_problem(502);
    }
    for _ in 0..2 {
        let upstream = Upstream::at(&port);
        wait_for("the upstream is found", || {
            (client.get("/status/200").status == 200).then_some(())
        });
        drop(upstream);
        client.get("/status/200").assert_problem(502);
    }
}

#[test]
fn a_server_that_is_away_costs_no_request_while_another_is_there() {
    let (here, away) = (Upstream::start(), Port::free());
    let away = format!("http://127.0.0.1:{}", away.number());
    let gateway =
        Gateway::launch(&["--upstream", &away, "--upstream", &here.url()], "", super::NO_LIMIT);
    let mut client = gateway.connect();
    for _ in 0..50 {
        assert_eq!(client.get("/status/200").status, 200);
    }
    for _ in 0..50 {
        assert_eq!(client.ask("POST", "/swallow", &[], "body").status, 200);
    }
}

#[test]
fn an_upstream_that_says_nothing_is_504() {
    let upstream = Upstream::start();
    let config = "gateway: {timeouts: {response: 100ms}}";
    let gateway = Gateway::with_config(&upstream.url(), config);
    let mut client = gateway.connect();
    client.get("/held").assert_problem(504);
    assert_eq!(client.get("/status/204").status, 204);
    // It was asked once: silence is no reason to ask again.
    assert_eq!(upstream.seen("GET /held"), 1);
}

/// An upstream that answers the first request of each connection, and ends the connection instead of
/// answering the second.
fn goes_stale() -> RawUpstream {
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
fn a_get_on_a_connection_that_went_stale_is_asked_once_more() {
    let upstream = goes_stale();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    for _ in 0..5 {
        let answer = client.get("/again");
        assert_eq!((answer.status, answer.text()), (200, "ok"));
    }
}

#[test]
fn a_post_is_never_sent_twice() {
    let upstream = goes_stale();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    assert_eq!(client.get("/first").status, 200);
    client.ask("POST", "/once", &[], "body").assert_problem(502);
    let sent = upstream.received();
    let posts = sent.iter().filter(|request| request.line().starts_with("POST")).count();
    assert_eq!(posts, 1, "{sent:?}");
    // Neither is a request with a body, whatever its method, nor a method that nobody knows.
    for method in ["PUT", "FROB"] {
        assert_eq!(client.get("/first").status, 200);
        client.ask(method, "/once", &[], "body").assert_problem(502);
        let sent = upstream.received();
        let count = sent.iter().filter(|request| request.line().starts_with(method)).count();
        assert_eq!(count, 1, "{sent:?}");
    }
}

#[test]
fn a_connection_that_the_upstream_has_closed_is_not_used() {
    let upstream = RawUpstream::start(|_, _| {
        UpstreamAction::RespondAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec())
    });
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    for round in 1..=10 {
        let answer = client.ask("POST", "/", &[], "body");
        assert_eq!((answer.status, answer.text()), (200, "ok"));
        // Once the gateway has seen it, it has let go of it.
        wait_for("the connection is left", || (upstream.ended() == round).then_some(()));
    }
    assert_eq!(upstream.received().len(), 10);
}

#[test]
fn an_upstream_that_always_hangs_up_is_asked_twice_at_most() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let upstream = RawUpstream::start(|_, _| {
        ASKED.fetch_add(1, Ordering::SeqCst);
        UpstreamAction::Close
    });
    let gateway = Gateway::before(&upstream.url());
    gateway.connect().get("/").assert_problem(502);
    assert!(ASKED.load(Ordering::SeqCst) <= 2, "{ASKED:?}");
}

#[test]
fn a_client_that_hangs_up_frees_the_upstream() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::Silence);
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for("the request", || (upstream.received().len() == 1).then_some(()));
    drop(client);
    wait_for("the upstream is let go", || (upstream.ended() == 1).then_some(()));
}
