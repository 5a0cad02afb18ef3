//! Requests of HTTP/1.1 that want to be two.
//!
//! Every probe is followed by an honest request on the same connection. Whatever the gateway makes of it, the
//! upstream reads without forgiving anything, and neither it nor the client may take one request for another.

use tidegate_testkit::{RawUpstream, UpstreamAction};

use super::Gateway;

/// What must come of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// An answer that says no, and no request upstream.
    Refused,
    /// One request upstream, with this body.
    Whole(&'static str),
    /// One or the other.
    Either,
}
use Expected::{Either, Refused, Whole};

/// A request that must never be one.
const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// An upstream that says which path it was asked for.
pub(crate) fn upstream() -> RawUpstream {
    RawUpstream::start(|_, head| UpstreamAction::ok(head.split(' ').nth(1).unwrap_or_default()))
}

/// That nobody who asks now gets another's answer, and that all the upstream ever got was whole and honest.
pub(crate) fn assert_in_step(gateway: &Gateway, upstream: &RawUpstream, probe: &str) {
    let mut client = gateway.connect();
    for path in ["/one", "/two"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.text()), (200, path), "after {probe}");
    }
    assert_eq!(upstream.faults(), [""; 0], "{probe}");
    let hidden =
        upstream.received().into_iter().find(|request| request.line().contains("/smuggled"));
    assert_eq!(hidden, None, "{probe}");
}

fn try_probe(
    gateway: &Gateway,
    upstream: &RawUpstream,
    name: &str,
    probe: &str,
    expected: Expected,
) {
    let before = upstream.received().len();
    let mut client = gateway.connect();
    let after = "GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    // Whoever refuses the first part may have hung up already.
    let _ = client.try_write(format!("{probe}{after}"));
    let first = client.try_receive("POST").unwrap_or_else(|| panic!("{name}: no answer"));
    let second = client.try_receive("GET");
    drop(client);
    let received = upstream.received().split_off(before);
    let is_refused = (400..500).contains(&first.status) || first.status == 501;
    let whole = received.iter().find(|request| request.line().contains(" /probe "));
    match (expected, whole) {
        (Refused, whole) => {
            assert!(is_refused, "{name}: {first:?}");
            assert_eq!(whole, None, "{name}");
        }
        (Whole(body), Some(whole)) => {
            assert_eq!((first.status, first.text()), (200, "/probe"), "{name}");
            assert_eq!(whole.body, body.as_bytes(), "{name}");
        }
        (Whole(_), None) => panic!("{name}: nothing upstream, {first:?}"),
        (Either, whole) => assert_eq!(is_refused, whole.is_none(), "{name}: {first:?}"),
    }
    if let Some(second) = &second {
        assert_eq!((second.status, second.text()), (200, "/after"), "{name}");
    }
    let expected = usize::from(whole.is_some()) + usize::from(second.is_some());
    assert_eq!(received.len(), expected, "{name}: {received:?}");
    assert_in_step(gateway, upstream, name);
}

fn try_all(probes: &[(&str, String, Expected)]) {
    let upstream = upstream();
    let gateway = Gateway::before(&upstream.url());
    for (name, probe, expected) in probes {
        try_probe(&gateway, &upstream, name, probe, *expected);
    }
}

/// A request with these fields and this body.
fn post(fields: &str, body: &str) -> String {
    format!("POST /probe HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
}

#[test]
fn a_length_and_an_encoding_are_one_request() {
    let ends_at_once = format!("0\r\n\r\n{HIDDEN}");
    let chunk = "5\r\nhello\r\n0\r\n\r\n";
    try_all(&[
        (
            "length, encoding",
            post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", &ends_at_once),
            Whole(""),
        ),
        (
            "encoding, length",
            post("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", &ends_at_once),
            Whole(""),
        ),
        (
            "a length that is too long",
            post("Content-Length: 1000\r\nTransfer-Encoding: chunked\r\n", chunk),
            Whole("hello"),
        ),
        (
            "a length that is none",
            post("Content-Length: x\r\nTransfer-Encoding: chunked\r\n", chunk),
            Either,
        ),
    ]);
}

#[test]
fn an_encoding_is_chunked_or_refused() {
    let body = format!("0\r\n\r\n{HIDDEN}");
    let chunk = "5\r\nhello\r\n0\r\n\r\n";
    let encoded = |value: &str, body: &str| post(&format!("Transfer-Encoding: {value}\r\n"), body);
    let with_length = |line: &str| post(&format!("Content-Length: 5\r\n{line}\r\n"), "hello");
    try_all(&[
        ("xchunked", encoded("xchunked", &body), Refused),
        ("identity", encoded("identity", &body), Refused),
        ("chunked, identity", encoded("chunked, identity", &body), Refused),
        ("chunked, chunked", encoded("chunked, chunked", chunk), Either),
        ("gzip, chunked", encoded("gzip, chunked", chunk), Either),
        ("CHUNKED", encoded("CHUNKED", chunk), Whole("hello")),
        ("tab before", encoded("\tchunked", chunk), Either),
        ("in quotes", encoded("\"chunked\"", &body), Refused),
        ("vertical tab", encoded("\x0bchunked", &body), Refused),
        ("a parameter", encoded("chunked;a=b", &body), Refused),
        (
            "two lines",
            post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", chunk),
            Either,
        ),
        (
            "two lines, wrong order",
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", &body),
            Refused,
        ),
        ("a space before the colon", with_length("Transfer-Encoding : chunked"), Refused),
        ("folded", with_length("X: y\r\n Transfer-Encoding: chunked"), Refused),
        ("folded value", with_length("Transfer-Encoding:\r\n chunked"), Refused),
        ("an underscore", with_length("Transfer_Encoding: chunked"), Either),
        (
            "HTTP/1.0",
            format!("POST /probe HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"),
            Refused,
        ),
        (
            "called private",
            post("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n", chunk),
            Whole("hello"),
        ),
    ]);
}

#[test]
fn a_length_is_one_number() {
    let sized = |value: &str| post(&format!("Content-Length: {value}\r\n"), "hello");
    let twice = |first: &str, second: &str| {
        post(&format!("Content-Length: {first}\r\nContent-Length: {second}\r\n"), "hello")
    };
    try_all(&[
        ("+5", sized("+5"), Refused),
        ("-5", sized("-5"), Refused),
        ("0x5", sized("0x5"), Refused),
        ("5.0", sized("5.0"), Refused),
        ("5 5", sized("5 5"), Refused),
        ("5, 5", sized("5, 5"), Either),
        ("5, 6", sized("5, 6"), Refused),
        ("nothing", sized(""), Refused),
        ("too long a number", sized("99999999999999999999999"), Refused),
        ("a leading zero", sized("05"), Either),
        ("spaces around", sized("  5  "), Whole("hello")),
        ("the same twice", twice("5", "5"), Either),
        ("two that differ", twice("5", "0"), Refused),
        ("two that differ, the other way", twice("0", "5"), Refused),
        ("a space before the colon", post("Content-Length : 5\r\n", "hello"), Refused),
        ("folded", post("X: y\r\n Content-Length: 5\r\n", "hello"), Refused),
        (
            "called private",
            post("Connection: content-length\r\nContent-Length: 5\r\n", "hello"),
            Whole("hello"),
        ),
        (
            "of a GET",
            format!(
                "GET /probe HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{HIDDEN}",
                HIDDEN.len()
            ),
            Whole(HIDDEN),
        ),
        (
            "with a wait",
            post(&format!("Expect: 100-continue\r\nContent-Length: {}\r\n", HIDDEN.len()), HIDDEN),
            Whole(HIDDEN),
        ),
    ]);
}

#[test]
fn chunks_are_what_they_say() {
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let end = "0\r\n\r\n";
    try_all(&[
        ("an extension", chunked(&format!("5;a=b\r\nhello\r\n{end}")), Whole("hello")),
        (
            "an extension in quotes",
            chunked(&format!("5;a=\"b;c\"\r\nhello\r\n{end}")),
            Whole("hello"),
        ),
        ("LF in an extension", chunked(&format!("5;a\nb\r\nhello\r\n{end}")), Refused),
        ("CR in an extension", chunked(&format!("5;a\rb\r\nhello\r\n{end}")), Refused),
        ("a size that ends in LF", chunked(&format!("5\nhello\r\n{end}")), Refused),
        ("0x", chunked(&format!("0x5\r\nhello\r\n{end}")), Refused),
        ("a sign", chunked(&format!("+5\r\nhello\r\n{end}")), Refused),
        ("no size", chunked(&format!("\r\nhello\r\n{end}")), Refused),
        (
            "more than a number holds",
            chunked(&format!("ffffffffffffffffff\r\nhello\r\n{end}")),
            Refused,
        ),
        (
            "a number that wraps to five",
            chunked(&format!("10000000000000005\r\nhello\r\n{end}")),
            Refused,
        ),
        ("data longer than its chunk", chunked(&format!("3\r\nhello\r\n{end}")), Refused),
        ("a space after the size", chunked(&format!("5 \r\nhello\r\n{end}")), Either),
        ("leading zeros", chunked(&format!("0005\r\nhello\r\n{end}")), Whole("hello")),
        ("trailers", chunked("5\r\nhello\r\n0\r\nContent-Length: 500\r\nHost: b\r\n\r\n"), Either),
        (
            "a request as trailers",
            chunked("5\r\nhello\r\n0\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
            Refused,
        ),
    ]);
}

#[test]
fn lines_and_fields_are_what_they_seem() {
    let hidden = "x\r\n\r\n";
    try_all(&[
        (
            "lines that end in LF",
            "POST /probe HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello".to_owned(),
            Whole("hello"),
        ),
        (
            "CR in a value",
            post("X: a\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", "hello"),
            Refused,
        ),
        ("NUL in a value", post("X: a\0b\r\nContent-Length: 5\r\n", "hello"), Refused),
        ("a field without a colon", post("nonsense\r\nContent-Length: 5\r\n", "hello"), Refused),
        ("a field without a name", post(": x\r\nContent-Length: 5\r\n", "hello"), Refused),
        (
            "a first field that is folded",
            format!("POST /probe HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n{hidden}"),
            Refused,
        ),
        (
            "two versions",
            format!("POST /probe HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n{hidden}"),
            Refused,
        ),
        ("another version", format!("POST /probe HTTP/3.0\r\nHost: a\r\n\r\n{hidden}"), Refused),
        (
            "a target with a space",
            format!("POST /probe /smuggled HTTP/1.1\r\nHost: a\r\n\r\n{hidden}"),
            Refused,
        ),
        (
            "an empty line before",
            format!("\r\n{}", post("Content-Length: 5\r\n", "hello")),
            Whole("hello"),
        ),
        (
            "a host that is private",
            post("Connection: host\r\nContent-Length: 5\r\n", "hello"),
            Whole("hello"),
        ),
    ]);
}
