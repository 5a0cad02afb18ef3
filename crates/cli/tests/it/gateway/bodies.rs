//! Bodies, trailers and connections of HTTP/1.

use tidegate_testkit::Upstream;

use super::Gateway;
use super::client::request;

#[test]
fn a_body_passes_in_every_framing() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    let body = "0123456789".repeat(10_000);
    assert_eq!(client.ask("POST", "/echo", &[], &body).text(), body);
    let chunked: String = body
        .as_bytes()
        .chunks(777)
        .map(|chunk| format!("{:x}\r\n{}\r\n", chunk.len(), str::from_utf8(chunk).unwrap()))
        .collect();
    client.write(format!(
        "PUT /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}0\r\n\r\n"
    ));
    assert_eq!(client.receive("PUT").text(), body);
    let answer = client.get("/chunked/100000");
    assert_eq!((answer.field("transfer-encoding"), answer.body.len()), (Some("chunked"), 100_000));
    let answer = client.get("/bytes/100000");
    assert_eq!((answer.field("content-length"), answer.body.len()), (Some("100000"), 100_000));
    assert_eq!(client.ask("POST", "/echo", &[], "").text(), "");
    assert_eq!(client.ask("DELETE", "/swallow", &[], "with a body").text(), "11");
    // A GET may have a body too, and one without a length.
    client.write(
        "GET /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    );
    assert_eq!(client.receive("GET").text(), "body");
}

#[test]
fn trailers_pass_both_ways() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write(
        "POST /echo HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\nTrailer: x-check\r\n\
         Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Check: 17\r\n\r\n",
    );
    let answer = client.receive("POST");
    assert_eq!(answer.text(), "body");
    assert_eq!(answer.trailers, [("x-check".to_owned(), "17".to_owned())]);
    let answer = client.ask("GET", "/trailers", &[("TE", "trailers"), ("Connection", "TE")], "");
    assert_eq!(answer.trailers, [("x-sum".to_owned(), "4".to_owned())]);
}

#[test]
fn what_a_trailer_must_not_say_it_does_not_say() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write(
        "POST /swallow HTTP/1.1\r\nHost: a\r\nTrailer: content-length\r\nTransfer-Encoding: chunked\r\n\r\n\
         4\r\nbody\r\n0\r\nContent-Length: 100\r\n\r\n",
    );
    client.write(request("GET", "/status/204", &[("Connection", "close")], ""));
    assert_eq!(client.receive("POST").text(), "4");
    assert_eq!(client.receive("GET").status, 204);
}

#[test]
fn answers_without_a_body_have_none_and_the_connection_goes_on() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    let head = client.ask("HEAD", "/bytes/100000", &[], "");
    assert_eq!((head.status, head.field("content-length")), (200, Some("100000")));
    let head = client.ask("HEAD", "/chunked/100000", &[], "");
    assert_eq!((head.status, head.field("content-length")), (200, None));
    for status in [204, 304] {
        let answer = client.get(&format!("/status/{status}"));
        assert_eq!((answer.status, answer.field("etag")), (status, Some("\"one\"")));
        assert_eq!(answer.field("transfer-encoding"), None);
    }
    assert_eq!(client.get("/status/404").status, 404);
    assert_eq!(client.get("/bytes/3").text(), "xxx");
    assert_eq!(client.ask("OPTIONS", "/status/200", &[], "").status, 200);
}

#[test]
fn requests_share_a_connection_one_after_another_and_sent_ahead() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    let ahead: String =
        (1..=20).map(|size| request("GET", &format!("/bytes/{size}"), &[], "")).collect();
    client.write(ahead);
    for size in 1..=20 {
        assert_eq!(client.receive("GET").body.len(), size);
    }
    // Whoever comes later finds connections that are open already.
    for _ in 0..20 {
        assert_eq!(client.get("/bytes/1").status, 200);
    }
    assert!(upstream.connections() < 5, "{} connections", upstream.connections());
}

#[test]
fn a_client_of_http_1_0_gets_what_it_understands() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    for head in
        ["GET /chunked/1000 HTTP/1.0\r\n\r\n", "GET /chunked/1000 HTTP/1.0\r\nHost: a\r\n\r\n"]
    {
        let mut client = gateway.connect();
        client.write(head);
        let answer = client.receive("GET");
        assert_eq!((answer.status, answer.body.len()), (200, 1000), "{head:?}");
        assert_eq!(answer.field("transfer-encoding"), None);
    }
    let mut kept = gateway.connect();
    for _ in 0..2 {
        kept.write("GET /bytes/10 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(kept.receive("GET").body.len(), 10);
    }
}

#[test]
fn a_connection_closes_when_the_client_asks_and_stays_when_the_upstream_does() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    for _ in 0..3 {
        // What the upstream says of its own connection is none of the client's business.
        let answer = client.get("/close");
        assert_eq!((answer.text(), answer.field("connection")), ("closed", None));
    }
    let answer = client.ask("GET", "/bytes/1", &[("Connection", "close")], "");
    assert_eq!(answer.text(), "x");
    assert_eq!(client.rest(), b"");
}
