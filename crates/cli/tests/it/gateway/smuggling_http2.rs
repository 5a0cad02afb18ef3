//! Request smuggling from HTTP/2 streams to HTTP/1.1 upstreams.

use super::GatewayServer;
use super::http2_frames::{FrameConnection, StreamOutcome};
use super::smuggling::ProbeOutcome::{self, Either, Forwarded, Rejected};
use super::smuggling::{assert_in_sync, start_upstream};

const HIDDEN_REQUEST: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Name, header fields, DATA frames and expected outcome of a probe.
type StreamProbe<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a [&'a str], ProbeOutcome);

/// Returns the fields of a POST, followed by additional ones.
fn post<'a>(extra: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields =
        vec![(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/probe")];
    fields.extend(extra);
    fields
}

/// As [`post`], with another value for one of its fields.
fn with_field<'a>(name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    post(&[])
        .into_iter()
        .map(|(known, old)| (known, if known == name { value } else { old }))
        .collect()
}

fn check_probes(probes: &[StreamProbe<'_>]) {
    let upstream = start_upstream();
    let gateway = GatewayServer::forward_to(&upstream.url());
    for (name, fields, pieces, expected) in probes {
        let before = upstream.received().len();
        let mut connection = FrameConnection::connect(gateway.address());
        connection.send_headers(fields, pieces.is_empty());
        for (at, piece) in pieces.iter().enumerate() {
            connection.send_data(piece, at + 1 == pieces.len());
        }
        let outcome = connection.read_outcome();
        drop(connection);
        assert_in_sync(&gateway, &upstream, name);
        let mut received = upstream.received().split_off(before);
        received.retain(|request| {
            !["/one", "/two"].contains(&request.line().split(' ').nth(1).unwrap())
        });
        let is_rejected = match outcome {
            StreamOutcome::Rejected => true,
            StreamOutcome::Response(status) => (400..500).contains(&status),
        };
        match expected {
            Rejected => {
                assert!(is_rejected && received.is_empty(), "{name}: {outcome:?} {received:?}");
            }
            Forwarded(body) => {
                assert_eq!((outcome, received.len()), (StreamOutcome::Response(200), 1), "{name}");
                assert_eq!(received[0].body, body.as_bytes(), "{name}");
            }
            Either => assert_eq!(
                received.len(),
                usize::from(!is_rejected),
                "{name}: {outcome:?} {received:?}"
            ),
        }
    }
}

#[test]
fn content_length_that_differs_from_the_data_is_rejected() {
    check_probes(&[
        ("honest", post(&[("content-length", "5")]), &["hello"], Forwarded("hello")),
        ("less than there is", post(&[("content-length", "3")]), &["hello"], Rejected),
        ("more than there is", post(&[("content-length", "10")]), &["hello"], Rejected),
        ("something, and nothing comes", post(&[("content-length", "5")]), &[], Rejected),
        (
            "nothing, and something comes",
            post(&[("content-length", "0")]),
            &[HIDDEN_REQUEST],
            Rejected,
        ),
        ("two", post(&[("content-length", "5"), ("content-length", "0")]), &["hello"], Rejected),
        ("no number", post(&[("content-length", "x")]), &["hello"], Rejected),
        ("a sign", post(&[("content-length", "+5")]), &["hello"], Rejected),
    ]);
}

#[test]
fn body_ends_only_at_end_stream() {
    check_probes(&[
        ("an empty frame at the end", post(&[]), &["hello", ""], Forwarded("hello")),
        ("empty frames between", post(&[]), &["", "he", "", "llo", ""], Forwarded("hello")),
        ("nothing but an empty frame", post(&[]), &[""], Forwarded("")),
        (
            "the last chunk of HTTP/1.1 in a frame",
            post(&[]),
            &["0\r\n\r\n", HIDDEN_REQUEST],
            Forwarded("0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
        ),
        (
            "a GET with a body",
            with_field(":method", "GET"),
            &[HIDDEN_REQUEST],
            Forwarded(HIDDEN_REQUEST),
        ),
        ("no body", with_field(":method", "GET"), &[], Forwarded("")),
    ]);
}

#[test]
fn http1_framing_fields_are_rejected_or_ignored() {
    let ends = &["0\r\n\r\n", HIDDEN_REQUEST][..];
    check_probes(&[
        ("an encoding", post(&[("transfer-encoding", "chunked")]), ends, Rejected),
        ("an encoding that is none", post(&[("transfer-encoding", "identity")]), ends, Rejected),
        ("a connection", post(&[("connection", "keep-alive")]), &["hello"], Rejected),
        (
            "a length that is called hop-by-hop",
            post(&[("connection", "content-length"), ("content-length", "5")]),
            &["hello"],
            Rejected,
        ),
        ("an upgrade", post(&[("upgrade", "websocket")]), &["hello"], Rejected),
        ("te", post(&[("te", "gzip")]), &["hello"], Either),
    ]);
}

#[test]
fn line_breaks_and_invalid_characters_are_rejected() {
    let line = "x\r\nTransfer-Encoding: chunked";
    let path = "/probe HTTP/1.1\r\nHost: a\r\n\r\nGET /smuggled HTTP/1.1\r\nX: y";
    let method = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nPOST";
    check_probes(&[
        ("CR LF in a value", post(&[("x", line)]), &["hello"], Rejected),
        ("LF in a value", post(&[("x", "y\nTransfer-Encoding: chunked")]), &["hello"], Rejected),
        ("CR in a value", post(&[("x", "y\rTransfer-Encoding: chunked")]), &["hello"], Rejected),
        ("NUL in a value", post(&[("x", "y\0z")]), &["hello"], Rejected),
        (
            "CR LF in a name",
            post(&[("x: y\r\ntransfer-encoding", "chunked")]),
            &["hello"],
            Rejected,
        ),
        ("a colon in a name", post(&[("x:y", "z")]), &["hello"], Rejected),
        ("a space in a name", post(&[("transfer-encoding ", "chunked")]), &["hello"], Rejected),
        ("capitals in a name", post(&[("Transfer-Encoding", "chunked")]), &["hello"], Rejected),
        ("no name", post(&[("", "x")]), &["hello"], Rejected),
        ("CR LF in the path", with_field(":path", path), &["hello"], Rejected),
        ("a space in the path", with_field(":path", "/probe HTTP/1.1"), &["hello"], Rejected),
        ("CR LF in the method", with_field(":method", method), &["hello"], Rejected),
        (
            "CR LF in the authority",
            with_field(":authority", "a\r\nTransfer-Encoding: chunked"),
            &["hello"],
            Rejected,
        ),
        ("CR LF in the scheme", with_field(":scheme", "http\r\nX: y"), &["hello"], Rejected),
    ]);
}

#[test]
fn duplicate_missing_and_invalid_pseudo_headers_are_rejected() {
    let without =
        |name: &str| post(&[]).into_iter().filter(|(known, _)| *known != name).collect::<Vec<_>>();
    check_probes(&[
        ("two paths", post(&[(":path", "/smuggled")]), &["hello"], Rejected),
        ("two methods", post(&[(":method", "GET")]), &["hello"], Rejected),
        ("two authorities", post(&[(":authority", "b")]), &["hello"], Rejected),
        ("another host", post(&[("host", "b")]), &["hello"], Either),
        ("two hosts", post(&[("host", "a"), ("host", "b")]), &["hello"], Rejected),
        ("no path", without(":path"), &["hello"], Rejected),
        ("no method", without(":method"), &["hello"], Rejected),
        ("no authority", without(":authority"), &["hello"], Rejected),
        ("an empty path", with_field(":path", ""), &["hello"], Rejected),
        ("a path without its slash", with_field(":path", "probe"), &["hello"], Rejected),
        ("a user before the host", with_field(":authority", "u@a"), &["hello"], Rejected),
        ("a field that only answers have", post(&[(":status", "200")]), &["hello"], Rejected),
        ("an unknown pseudo-header", post(&[(":smuggled", "x")]), &["hello"], Rejected),
        (
            "one that comes too late",
            post(&[("x", "y"), (":path", "/smuggled")]),
            &["hello"],
            Rejected,
        ),
        ("CONNECT", with_field(":method", "CONNECT"), &["hello"], Rejected),
    ]);
}
