//! Answers of upstreams that frame them badly.

use tidegate_testkit::{RawUpstream, UpstreamAction};

use super::Gateway;

/// What comes of an answer, and of the next request on the same connection.
fn passed(answer: &'static str) -> (Option<(u16, String)>, Option<u16>) {
    let upstream = RawUpstream::start(move |_, head| match head.contains("/next") {
        true => UpstreamAction::ok("next"),
        false => UpstreamAction::RespondAndClose(answer.as_bytes().to_vec()),
    });
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let first = client.try_receive("POST").map(|answer| (answer.status, answer.text().to_owned()));
    // A connection that is over may say so by a reset.
    let next = client.try_write("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    let next = next.ok().and_then(|()| client.try_receive("GET"));
    if let Some(next) = &next {
        assert_eq!(next.text(), "next", "after {answer:?}");
    }
    (first, next.map(|answer| answer.status))
}

#[test]
fn an_answer_with_two_lengths_is_framed_in_one_way() {
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    assert_eq!(passed(both).0, Some((200, "ok".to_owned())));
    let other = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    assert_eq!(passed(other).0, Some((200, "ok".to_owned())));
    let differ = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nok";
    assert_eq!(passed(differ).0.unwrap().0, 502);
}

#[test]
fn an_answer_without_a_length_ends_with_its_connection() {
    assert_eq!(
        passed("HTTP/1.1 200 OK\r\n\r\nuntil the end").0,
        Some((200, "until the end".into()))
    );
    assert_eq!(passed("HTTP/1.0 200 OK\r\n\r\nold").0, Some((200, "old".into())));
}

#[test]
fn what_is_no_answer_is_502() {
    for nonsense in
        ["", "HTTP/1.1 200", "what?\r\n\r\n", "HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n"]
    {
        let (first, next) = passed(nonsense);
        assert_eq!(first.unwrap_or_else(|| panic!("{nonsense:?}")).0, 502, "{nonsense:?}");
        assert_eq!(next, Some(200), "{nonsense:?}");
    }
}

#[test]
fn a_body_that_breaks_off_is_never_whole() {
    let (first, next) = passed("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    assert_eq!((first, next), (None, None));
    let (first, next) = passed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhalf");
    assert_eq!((first, next), (None, None));
    let (first, next) =
        passed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    assert_eq!((first, next), (None, None));
}

#[test]
fn bytes_after_an_answer_are_nobodys_answer() {
    let extra = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let (first, next) = passed(extra);
    assert_eq!((first, next), (Some((200, "ok".into())), Some(200)));
}

#[test]
fn interim_answers_do_not_end_a_request() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let upstream =
        RawUpstream::start(move |_, _| UpstreamAction::Respond(hints.as_bytes().to_vec()));
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = client.head().unwrap();
    // They may be passed on or not.
    while head.status < 200 {
        head = client.head().unwrap();
    }
    assert_eq!((head.status, head.field("content-length")), (200, Some("2")));
    assert_eq!(client.read(2), b"ok");
}
