//! Bodies, trailers and persistent connections of HTTP/1.

use tidegate_testkit::{RawUpstream, Upstream};

use super::GatewayServer;
use super::client::request;

#[test]
fn bodies_pass_in_every_framing() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    let body = "0123456789".repeat(10_000);
    assert_eq!(client.send("POST", "/echo", &[], &body).text(), body);
    let chunked: String = body
        .as_bytes()
        .chunks(777)
        .map(|chunk| format!("{:x}\r\n{}\r\n", chunk.len(), str::from_utf8(chunk).unwrap()))
        .collect();
    client.write(format!(
        "PUT /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}0\r\n\r\n"
    ));
    assert_eq!(client.receive("PUT").text(), body);
    let response = client.get("/chunked/100000");
    assert_eq!(
        (response.field("transfer-encoding"), response.body.len()),
        (Some("chunked"), 100_000)
    );
    let response = client.get("/bytes/100000");
    assert_eq!((response.field("content-length"), response.body.len()), (Some("100000"), 100_000));
    assert_eq!(client.send("POST", "/echo", &[], "").text(), "");
    assert_eq!(client.send("DELETE", "/swallow", &[], "with a body").text(), "11");
    // A GET may also have a body, here without a length.
    client.write(
        "GET /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    );
    assert_eq!(client.receive("GET").text(), "body");
}

#[test]
fn trailers_pass_in_both_directions() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write(
        "POST /echo HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\nTrailer: x-check\r\n\
         Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Check: 17\r\n\r\n",
    );
    let response = client.receive("POST");
    assert_eq!(response.text(), "body");
    assert_eq!(response.trailers, [("x-check".to_owned(), "17".to_owned())]);
    let response = client.send("GET", "/trailers", &[("TE", "trailers"), ("Connection", "TE")], "");
    assert_eq!(response.trailers, [("x-sum".to_owned(), "4".to_owned())]);
}

#[test]
fn forbidden_trailer_fields_are_removed() {
    let upstream = RawUpstream::always_ok();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let forbidden = [
        "Content-Length",
        "Transfer-Encoding",
        "Host",
        "Connection",
        "Authorization",
        "Cookie",
        "X-Forwarded-For",
        "X_Forwarded_For",
        "X-Real-IP",
        "Forwarded",
        "X-RateLimit-Limit",
    ];
    let trailers: String = forbidden.iter().map(|name| format!("{name}: 100\r\n")).collect();
    let mut client = gateway.connect();
    client.write(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTrailer: {}, x-check\r\nTransfer-Encoding: chunked\r\n\r\n\
         4\r\nbody\r\n0\r\n{trailers}X-Check: 17\r\n\r\n",
        forbidden.join(", ")
    ));
    client.write(request("GET", "/next", &[("Connection", "close")], ""));
    assert_eq!((client.receive("POST").status, client.receive("GET").status), (200, 200));
    assert_eq!((upstream.received().len(), upstream.faults()), (2, vec![]));
    let received = String::from_utf8(upstream.bytes().remove(0)).unwrap().to_ascii_lowercase();
    let (_, body) = received.split_once("\r\n\r\n").unwrap();
    let body = body.split("get /next").next().unwrap();
    assert_eq!(body, "4\r\nbody\r\n0\r\nx-check: 17\r\n\r\n");
}

#[test]
fn responses_without_a_body_keep_the_connection_usable() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    let head = client.send("HEAD", "/bytes/100000", &[], "");
    assert_eq!((head.status, head.field("content-length")), (200, Some("100000")));
    let head = client.send("HEAD", "/chunked/100000", &[], "");
    assert_eq!((head.status, head.field("content-length")), (200, None));
    for status in [204, 304] {
        let response = client.get(&format!("/status/{status}"));
        assert_eq!((response.status, response.field("etag")), (status, Some("\"one\"")));
        assert_eq!(response.field("transfer-encoding"), None);
    }
    assert_eq!(client.get("/status/404").status, 404);
    assert_eq!(client.get("/bytes/3").text(), "xxx");
    assert_eq!(client.send("OPTIONS", "/status/200", &[], "").status, 200);
}

#[test]
fn pipelined_and_sequential_requests_reuse_connections() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    let pipelined: String =
        (1..=20).map(|size| request("GET", &format!("/bytes/{size}"), &[], "")).collect();
    client.write(pipelined);
    for size in 1..=20 {
        assert_eq!(client.receive("GET").body.len(), size);
    }
    // Later requests reuse open upstream connections.
    for _ in 0..20 {
        assert_eq!(client.get("/bytes/1").status, 200);
    }
    assert!(upstream.connections() < 5, "{} connections", upstream.connections());
}

#[test]
fn http_1_0_client_gets_no_chunked_response() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    for head in
        ["GET /chunked/1000 HTTP/1.0\r\n\r\n", "GET /chunked/1000 HTTP/1.0\r\nHost: a\r\n\r\n"]
    {
        let mut client = gateway.connect();
        client.write(head);
        let response = client.receive("GET");
        assert_eq!((response.status, response.body.len()), (200, 1000), "{head:?}");
        assert_eq!(response.field("transfer-encoding"), None);
    }
    let mut kept = gateway.connect();
    for _ in 0..2 {
        kept.write("GET /bytes/10 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(kept.receive("GET").body.len(), 10);
    }
}

#[test]
fn client_connection_close_is_honoured_and_upstream_connection_close_is_not_forwarded() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    for _ in 0..3 {
        // `Connection: close` of the upstream is about its own connection only.
        let response = client.get("/close");
        assert_eq!((response.text(), response.field("connection")), ("closed", None));
    }
    let response = client.send("GET", "/bytes/1", &[("Connection", "close")], "");
    assert_eq!(response.text(), "x");
    assert_eq!(client.read_to_end(), b"");
}
