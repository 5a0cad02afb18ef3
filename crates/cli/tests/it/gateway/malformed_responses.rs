//! Responses of upstreams with malformed or ambiguous framing.

use tidegate_testkit::{RawUpstream, UpstreamAction};

use super::GatewayServer;

/// Sends an upstream response through the gateway. Returns the status and body that the client gets, and the status of the
/// next request on the same connection; `None` where the connection ended.
fn pass_response(response: &'static str) -> (Option<(u16, String)>, Option<u16>) {
    let upstream = RawUpstream::start(move |_, head| match head.contains("/next") {
        true => UpstreamAction::ok("next"),
        false => UpstreamAction::RespondAndClose(response.as_bytes().to_vec()),
    });
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let first =
        client.try_receive("POST").map(|response| (response.status, response.text().to_owned()));
    // A closed connection may fail the write with a reset.
    let next = client.try_write("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    let next = next.ok().and_then(|()| client.try_receive("GET"));
    if let Some(next) = &next {
        assert_eq!(next.text(), "next", "after {response:?}");
    }
    (first, next.map(|response| response.status))
}

#[test]
fn response_with_conflicting_lengths_is_framed_as_chunked_or_502() {
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    assert_eq!(pass_response(both).0, Some((200, "ok".to_owned())));
    let other = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    assert_eq!(pass_response(other).0, Some((200, "ok".to_owned())));
    let differ = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nok";
    assert_eq!(pass_response(differ).0.unwrap().0, 502);
}

#[test]
fn response_without_a_length_ends_at_connection_close() {
    assert_eq!(
        pass_response("HTTP/1.1 200 OK\r\n\r\nuntil the end").0,
        Some((200, "until the end".into()))
    );
    assert_eq!(pass_response("HTTP/1.0 200 OK\r\n\r\nold").0, Some((200, "old".into())));
}

#[test]
fn invalid_response_is_502() {
    for invalid in ["", "HTTP/1.1 200", "what?\r\n\r\n", "HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n"]
    {
        let (first, next) = pass_response(invalid);
        assert_eq!(first.unwrap_or_else(|| panic!("{invalid:?}")).0, 502, "{invalid:?}");
        assert_eq!(next, Some(200), "{invalid:?}");
    }
}

#[test]
fn truncated_response_body_is_never_completed() {
    let (first, next) = pass_response("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    assert_eq!((first, next), (None, None));
    let (first, next) =
        pass_response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhalf");
    assert_eq!((first, next), (None, None));
    let (first, next) =
        pass_response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    assert_eq!((first, next), (None, None));
}

#[test]
fn extra_bytes_after_a_response_are_discarded() {
    let extra = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let (first, next) = pass_response(extra);
    assert_eq!((first, next), (Some((200, "ok".into())), Some(200)));
}

#[test]
fn interim_response_does_not_end_the_request() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let upstream =
        RawUpstream::start(move |_, _| UpstreamAction::Respond(hints.as_bytes().to_vec()));
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = client.read_head().unwrap();
    // The gateway may forward interim responses or not.
    while head.status < 200 {
        head = client.read_head().unwrap();
    }
    assert_eq!((head.status, head.field("content-length")), (200, Some("2")));
    assert_eq!(client.read(2), b"ok");
}
