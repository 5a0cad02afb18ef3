//! Streams of HTTP/2 that want to be two requests of HTTP/1.1.

use super::Gateway;
use super::frames::{Frames, Outcome};
use super::smuggling::Expected::{self, Either, Refused, Whole};
use super::smuggling::{assert_in_step, upstream};

const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Fields and pieces of a body.
type Probe<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a [&'a str], Expected);

fn post<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields =
        vec![(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/probe")];
    fields.extend(more);
    fields
}

/// As [`post`], with another value for a field that is always there.
fn with<'a>(name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    post(&[])
        .into_iter()
        .map(|(known, old)| (known, if known == name { value } else { old }))
        .collect()
}

fn try_all(probes: &[Probe<'_>]) {
    let upstream = upstream();
    let gateway = Gateway::before(&upstream.url());
    for (name, fields, pieces, expected) in probes {
        let before = upstream.received().len();
        let mut frames = Frames::to(gateway.address());
        frames.headers(fields, pieces.is_empty());
        for (at, piece) in pieces.iter().enumerate() {
            frames.data(piece, at + 1 == pieces.len());
        }
        let outcome = frames.outcome();
        drop(frames);
        assert_in_step(&gateway, &upstream, name);
        let mut received = upstream.received().split_off(before);
        received.retain(|request| {
            !["/one", "/two"].contains(&request.line().split(' ').nth(1).unwrap())
        });
        let is_refused = match outcome {
            Outcome::Refused => true,
            Outcome::Answered(status) => (400..500).contains(&status),
        };
        match expected {
            Refused => {
                assert!(is_refused && received.is_empty(), "{name}: {outcome:?} {received:?}");
            }
            Whole(body) => {
                assert_eq!((outcome, received.len()), (Outcome::Answered(200), 1), "{name}");
                assert_eq!(received[0].body, body.as_bytes(), "{name}");
            }
            Either => assert_eq!(
                received.len(),
                usize::from(!is_refused),
                "{name}: {outcome:?} {received:?}"
            ),
        }
    }
}

#[test]
fn a_length_that_lies_is_refused() {
    try_all(&[
        ("honest", post(&[("content-length", "5")]), &["hello"], Whole("hello")),
        ("less than there is", post(&[("content-length", "3")]), &["hello"], Refused),
        ("more than there is", post(&[("content-length", "10")]), &["hello"], Refused),
        ("something, and nothing comes", post(&[("content-length", "5")]), &[], Refused),
        ("nothing, and something comes", post(&[("content-length", "0")]), &[HIDDEN], Refused),
        ("two", post(&[("content-length", "5"), ("content-length", "0")]), &["hello"], Refused),
        ("no number", post(&[("content-length", "x")]), &["hello"], Refused),
        ("a sign", post(&[("content-length", "+5")]), &["hello"], Refused),
    ]);
}

#[test]
fn a_body_ends_once() {
    try_all(&[
        ("an empty frame at the end", post(&[]), &["hello", ""], Whole("hello")),
        ("empty frames between", post(&[]), &["", "he", "", "llo", ""], Whole("hello")),
        ("nothing but an empty frame", post(&[]), &[""], Whole("")),
        (
            "what looks like the end",
            post(&[]),
            &["0\r\n\r\n", HIDDEN],
            Whole("0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
        ),
        ("a GET with a body", with(":method", "GET"), &[HIDDEN], Whole(HIDDEN)),
        ("no body", with(":method", "GET"), &[], Whole("")),
    ]);
}

#[test]
fn fields_of_http1_framing_are_refused_or_mean_nothing() {
    let ends = &["0\r\n\r\n", HIDDEN][..];
    try_all(&[
        ("an encoding", post(&[("transfer-encoding", "chunked")]), ends, Refused),
        ("an encoding that is none", post(&[("transfer-encoding", "identity")]), ends, Refused),
        ("a connection", post(&[("connection", "keep-alive")]), &["hello"], Refused),
        (
            "a way to hide",
            post(&[("connection", "content-length"), ("content-length", "5")]),
            &["hello"],
            Refused,
        ),
        ("an upgrade", post(&[("upgrade", "websocket")]), &["hello"], Refused),
        ("te", post(&[("te", "gzip")]), &["hello"], Either),
    ]);
}

#[test]
fn nothing_begins_a_new_line() {
    let line = "x\r\nTransfer-Encoding: chunked";
    let path = "/probe HTTP/1.1\r\nHost: a\r\n\r\nGET /smuggled HTTP/1.1\r\nX: y";
    let method = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nPOST";
    try_all(&[
        ("CR LF in a value", post(&[("x", line)]), &["hello"], Refused),
        ("LF in a value", post(&[("x", "y\nTransfer-Encoding: chunked")]), &["hello"], Refused),
        ("CR in a value", post(&[("x", "y\rTransfer-Encoding: chunked")]), &["hello"], Refused),
        ("NUL in a value", post(&[("x", "y\0z")]), &["hello"], Refused),
        ("CR LF in a name", post(&[("x: y\r\ntransfer-encoding", "chunked")]), &["hello"], Refused),
        ("a colon in a name", post(&[("x:y", "z")]), &["hello"], Refused),
        ("a space in a name", post(&[("transfer-encoding ", "chunked")]), &["hello"], Refused),
        ("capitals in a name", post(&[("Transfer-Encoding", "chunked")]), &["hello"], Refused),
        ("no name", post(&[("", "x")]), &["hello"], Refused),
        ("CR LF in the path", with(":path", path), &["hello"], Refused),
        ("a space in the path", with(":path", "/probe HTTP/1.1"), &["hello"], Refused),
        ("CR LF in the method", with(":method", method), &["hello"], Refused),
        (
            "CR LF in the authority",
            with(":authority", "a\r\nTransfer-Encoding: chunked"),
            &["hello"],
            Refused,
        ),
        ("CR LF in the scheme", with(":scheme", "http\r\nX: y"), &["hello"], Refused),
    ]);
}

#[test]
fn a_stream_says_once_what_it_is_about() {
    let without =
        |name: &str| post(&[]).into_iter().filter(|(known, _)| *known != name).collect::<Vec<_>>();
    try_all(&[
        ("two paths", post(&[(":path", "/smuggled")]), &["hello"], Refused),
        ("two methods", post(&[(":method", "GET")]), &["hello"], Refused),
        ("two authorities", post(&[(":authority", "b")]), &["hello"], Refused),
        ("another host", post(&[("host", "b")]), &["hello"], Either),
        ("two hosts", post(&[("host", "a"), ("host", "b")]), &["hello"], Refused),
        ("no path", without(":path"), &["hello"], Refused),
        ("no method", without(":method"), &["hello"], Refused),
        ("no authority", without(":authority"), &["hello"], Refused),
        ("an empty path", with(":path", ""), &["hello"], Refused),
        ("a path without its slash", with(":path", "probe"), &["hello"], Refused),
        ("a user before the host", with(":authority", "u@a"), &["hello"], Refused),
        ("a field that only answers have", post(&[(":status", "200")]), &["hello"], Refused),
        ("a field that nobody knows", post(&[(":smuggled", "x")]), &["hello"], Refused),
        (
            "one that comes too late",
            post(&[("x", "y"), (":path", "/smuggled")]),
            &["hello"],
            Refused,
        ),
        ("CONNECT", with(":method", "CONNECT"), &["hello"], Refused),
    ]);
}
