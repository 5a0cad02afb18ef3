//! Request smuggling over HTTP/1.1.
//!
//! Every probe is followed by a valid request on the same connection. The upstream parses strictly, and records every
//! framing error. Neither the upstream nor the client may associate a response with another request.

use tidegate_testkit::{RawUpstream, UpstreamAction};

use super::GatewayServer;

/// The expected outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    /// An error response, and no request at the upstream.
    Rejected,
    /// One request at the upstream, with this body.
    Forwarded(&'static str),
    /// Rejected, or forwarded as one request.
    Either,
}
use ProbeOutcome::{Either, Forwarded, Rejected};

/// A request inside of a body, which must never be parsed as a request.
const HIDDEN_REQUEST: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Starts a strict upstream that responds with the path of the request.
pub(crate) fn start_upstream() -> RawUpstream {
    RawUpstream::start(|_, head| UpstreamAction::ok(head.split(' ').nth(1).unwrap_or_default()))
}

/// Checks that further requests get their own responses, and that the upstream has received only valid requests.
pub(crate) fn assert_in_sync(gateway: &GatewayServer, upstream: &RawUpstream, probe: &str) {
    let mut client = gateway.connect();
    for path in ["/one", "/two"] {
        let response = client.get(path);
        assert_eq!((response.status, response.text()), (200, path), "after {probe}");
    }
    assert_eq!(upstream.faults(), [""; 0], "{probe}");
    let hidden =
        upstream.received().into_iter().find(|request| request.line().contains("/smuggled"));
    assert_eq!(hidden, None, "{probe}");
}

/// Sends a probe and a valid request, and checks the responses and the requests at the upstream.
fn check_probe(
    gateway: &GatewayServer,
    upstream: &RawUpstream,
    name: &str,
    probe: &str,
    expected: ProbeOutcome,
) {
    let before = upstream.received().len();
    let mut client = gateway.connect();
    let after = "GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    // The gateway may close the connection when it rejects the probe.
    let _ = client.try_write(format!("{probe}{after}"));
    let first = client.try_receive("POST").unwrap_or_else(|| panic!("{name}: no answer"));
    let second = client.try_receive("GET");
    drop(client);
    let received = upstream.received().split_off(before);
    let is_rejected = (400..500).contains(&first.status) || first.status == 501;
    let forwarded = received.iter().find(|request| request.line().contains(" /probe "));
    match (expected, forwarded) {
        (Rejected, forwarded) => {
            assert!(is_rejected, "{name}: {first:?}");
            assert_eq!(forwarded, None, "{name}");
        }
        (Forwarded(body), Some(forwarded)) => {
            assert_eq!((first.status, first.text()), (200, "/probe"), "{name}");
            assert_eq!(forwarded.body, body.as_bytes(), "{name}");
        }
        (Forwarded(_), None) => panic!("{name}: no request at the upstream, {first:?}"),
        (Either, forwarded) => assert_eq!(is_rejected, forwarded.is_none(), "{name}: {first:?}"),
    }
    if let Some(second) = &second {
        assert_eq!((second.status, second.text()), (200, "/after"), "{name}");
    }
    let expected = usize::from(forwarded.is_some()) + usize::from(second.is_some());
    assert_eq!(received.len(), expected, "{name}: {received:?}");
    assert_in_sync(gateway, upstream, name);
}

fn check_probes(probes: &[(&str, String, ProbeOutcome)]) {
    let upstream = start_upstream();
    let gateway = GatewayServer::forward_to(&upstream.url());
    for (name, probe, expected) in probes {
        check_probe(&gateway, &upstream, name, probe, *expected);
    }
}

/// Returns a request with these fields and this body.
fn post(fields: &str, body: &str) -> String {
    format!("POST /probe HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
}

#[test]
fn content_length_beside_transfer_encoding_is_one_request() {
    let ends_at_once = format!("0\r\n\r\n{HIDDEN_REQUEST}");
    let chunk = "5\r\nhello\r\n0\r\n\r\n";
    check_probes(&[
        (
            "length, encoding",
            post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", &ends_at_once),
            Forwarded(""),
        ),
        (
            "encoding, length",
            post("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", &ends_at_once),
            Forwarded(""),
        ),
        (
            "a length that is too long",
            post("Content-Length: 1000\r\nTransfer-Encoding: chunked\r\n", chunk),
            Forwarded("hello"),
        ),
        (
            "a length that is none",
            post("Content-Length: x\r\nTransfer-Encoding: chunked\r\n", chunk),
            Either,
        ),
    ]);
}

#[test]
fn transfer_encoding_is_chunked_or_rejected() {
    let body = format!("0\r\n\r\n{HIDDEN_REQUEST}");
    let chunk = "5\r\nhello\r\n0\r\n\r\n";
    let encoded = |value: &str, body: &str| post(&format!("Transfer-Encoding: {value}\r\n"), body);
    let with_length = |line: &str| post(&format!("Content-Length: 5\r\n{line}\r\n"), "hello");
    check_probes(&[
        ("xchunked", encoded("xchunked", &body), Rejected),
        ("identity", encoded("identity", &body), Rejected),
        ("chunked, identity", encoded("chunked, identity", &body), Rejected),
        ("chunked, chunked", encoded("chunked, chunked", chunk), Either),
        ("gzip, chunked", encoded("gzip, chunked", chunk), Either),
        ("CHUNKED", encoded("CHUNKED", chunk), Forwarded("hello")),
        ("tab before", encoded("\tchunked", chunk), Either),
        ("in quotes", encoded("\"chunked\"", &body), Rejected),
        ("vertical tab", encoded("\x0bchunked", &body), Rejected),
        ("a parameter", encoded("chunked;a=b", &body), Rejected),
        (
            "two lines",
            post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", chunk),
            Either,
        ),
        (
            "two lines, wrong order",
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", &body),
            Rejected,
        ),
        ("a space before the colon", with_length("Transfer-Encoding : chunked"), Rejected),
        ("folded", with_length("X: y\r\n Transfer-Encoding: chunked"), Rejected),
        ("folded value", with_length("Transfer-Encoding:\r\n chunked"), Rejected),
        ("an underscore", with_length("Transfer_Encoding: chunked"), Either),
        (
            "HTTP/1.0",
            format!("POST /probe HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"),
            Rejected,
        ),
        (
            "called private",
            post("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n", chunk),
            Forwarded("hello"),
        ),
    ]);
}

#[test]
fn content_length_is_one_decimal_number_or_rejected() {
    let sized = |value: &str| post(&format!("Content-Length: {value}\r\n"), "hello");
    let twice = |first: &str, second: &str| {
        post(&format!("Content-Length: {first}\r\nContent-Length: {second}\r\n"), "hello")
    };
    check_probes(&[
        ("+5", sized("+5"), Rejected),
        ("-5", sized("-5"), Rejected),
        ("0x5", sized("0x5"), Rejected),
        ("5.0", sized("5.0"), Rejected),
        ("5 5", sized("5 5"), Rejected),
        ("5, 5", sized("5, 5"), Either),
        ("5, 6", sized("5, 6"), Rejected),
        ("nothing", sized(""), Rejected),
        ("too long a number", sized("99999999999999999999999"), Rejected),
        ("a leading zero", sized("05"), Either),
        ("spaces around", sized("  5  "), Forwarded("hello")),
        ("the same twice", twice("5", "5"), Either),
        ("two that differ", twice("5", "0"), Rejected),
        ("two that differ, the other way", twice("0", "5"), Rejected),
        ("a space before the colon", post("Content-Length : 5\r\n", "hello"), Rejected),
        ("folded", post("X: y\r\n Content-Length: 5\r\n", "hello"), Rejected),
        (
            "called private",
            post("Connection: content-length\r\nContent-Length: 5\r\n", "hello"),
            Forwarded("hello"),
        ),
        (
            "of a GET",
            format!(
                "GET /probe HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{HIDDEN_REQUEST}",
                HIDDEN_REQUEST.len()
            ),
            Forwarded(HIDDEN_REQUEST),
        ),
        (
            "with a wait",
            post(
                &format!("Expect: 100-continue\r\nContent-Length: {}\r\n", HIDDEN_REQUEST.len()),
                HIDDEN_REQUEST,
            ),
            Forwarded(HIDDEN_REQUEST),
        ),
    ]);
}

#[test]
fn malformed_chunks_are_rejected() {
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let end = "0\r\n\r\n";
    check_probes(&[
        ("an extension", chunked(&format!("5;a=b\r\nhello\r\n{end}")), Forwarded("hello")),
        (
            "an extension in quotes",
            chunked(&format!("5;a=\"b;c\"\r\nhello\r\n{end}")),
            Forwarded("hello"),
        ),
        ("LF in an extension", chunked(&format!("5;a\nb\r\nhello\r\n{end}")), Rejected),
        ("CR in an extension", chunked(&format!("5;a\rb\r\nhello\r\n{end}")), Rejected),
        ("a size that ends in LF", chunked(&format!("5\nhello\r\n{end}")), Rejected),
        ("0x", chunked(&format!("0x5\r\nhello\r\n{end}")), Rejected),
        ("a sign", chunked(&format!("+5\r\nhello\r\n{end}")), Rejected),
        ("no size", chunked(&format!("\r\nhello\r\n{end}")), Rejected),
        (
            "more than a number holds",
            chunked(&format!("ffffffffffffffffff\r\nhello\r\n{end}")),
            Rejected,
        ),
        (
            "a number that wraps to five",
            chunked(&format!("10000000000000005\r\nhello\r\n{end}")),
            Rejected,
        ),
        ("data longer than its chunk", chunked(&format!("3\r\nhello\r\n{end}")), Rejected),
        ("a space after the size", chunked(&format!("5 \r\nhello\r\n{end}")), Either),
        ("leading zeros", chunked(&format!("0005\r\nhello\r\n{end}")), Forwarded("hello")),
        ("trailers", chunked("5\r\nhello\r\n0\r\nContent-Length: 500\r\nHost: b\r\n\r\n"), Either),
        (
            "a request as trailers",
            chunked("5\r\nhello\r\n0\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
            Rejected,
        ),
    ]);
}

#[test]
fn malformed_request_lines_and_fields_are_rejected() {
    let rest = "x\r\n\r\n";
    check_probes(&[
        (
            "lines that end in LF",
            "POST /probe HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello".to_owned(),
            Forwarded("hello"),
        ),
        (
            "CR in a value",
            post("X: a\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", "hello"),
            Rejected,
        ),
        ("NUL in a value", post("X: a\0b\r\nContent-Length: 5\r\n", "hello"), Rejected),
        ("a field without a colon", post("nonsense\r\nContent-Length: 5\r\n", "hello"), Rejected),
        ("a field without a name", post(": x\r\nContent-Length: 5\r\n", "hello"), Rejected),
        (
            "a first field that is folded",
            format!("POST /probe HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n{rest}"),
            Rejected,
        ),
        (
            "two versions",
            format!("POST /probe HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n{rest}"),
            Rejected,
        ),
        ("another version", format!("POST /probe HTTP/3.0\r\nHost: a\r\n\r\n{rest}"), Rejected),
        (
            "a target with a space",
            format!("POST /probe /smuggled HTTP/1.1\r\nHost: a\r\n\r\n{rest}"),
            Rejected,
        ),
        (
            "an empty line before",
            format!("\r\n{}", post("Content-Length: 5\r\n", "hello")),
            Forwarded("hello"),
        ),
        (
            "a host that is private",
            post("Connection: host\r\nContent-Length: 5\r\n", "hello"),
            Forwarded("hello"),
        ),
    ]);
}
