//! Common requests of HTTP/1.1 clients: those that the gateway reads without hyper.
//!
//! A request is common only if hyper would read the same head and body from the same bytes, and if no header changes how the
//! connection is used. Every other request is served by hyper, from the same bytes.

use std::mem::MaybeUninit;

use bytes::Bytes;
use httparse::{Header, ParserConfig, Status};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Uri, Version};

/// Largest number of headers of a common request.
const MAX_HEADERS: usize = 64;
/// Headers that the gateway adds on the way to the upstream.
const ADDED_HEADERS: usize = 4;
/// Most digits of the length of a common body. The body is in the read buffer, which is much smaller.
const MAX_LENGTH_DIGITS: usize = 5;

/// A request that was read completely.
#[derive(Debug)]
pub(crate) struct CommonRequest {
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
    /// Set if the client closes the connection after the response.
    pub(crate) is_last: bool,
}

impl CommonRequest {
    /// Removes the request at the start of the received bytes. `None` if it is not a common one, or if a part of it is
    /// missing; then the bytes do not change.
    pub(crate) fn take(received: &mut Bytes) -> Option<Self> {
        let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let parsed = ParserConfig::default().parse_request_with_uninit_headers(
            &mut request,
            received,
            &mut headers,
        );
        let Ok(Status::Complete(head_bytes)) = parsed else { return None };
        let (method, target) = (request.method?, request.path?);
        // A minor version of 1 is HTTP/1.1. A target with a slash at its start has no host.
        if request.version != Some(1) || !target.starts_with('/') {
            return None;
        }
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = Method::from_bytes(method.as_bytes()).ok()?;
        if head.method == Method::CONNECT {
            return None;
        }
        head.uri = Uri::from_maybe_shared(received.slice_ref(target.as_bytes())).ok()?;
        head.version = Version::HTTP_11;
        let meaning = HeaderMeaning::read(received, request.headers, &mut head.headers)?;
        let end = head_bytes.checked_add(meaning.body_bytes)?;
        if end > received.len() {
            return None;
        }
        let body = received.slice(head_bytes..end);
        *received = match end == received.len() {
            true => Bytes::new(),
            false => received.slice(end..),
        };
        Some(Self { head, body, is_last: meaning.closes })
    }
}

/// The headers of a request that concern its connection.
struct HeaderMeaning {
    body_bytes: usize,
    closes: bool,
}

impl HeaderMeaning {
    /// Copies the headers into a map. `None` if one of them makes the request uncommon.
    fn read(received: &Bytes, headers: &[Header<'_>], map: &mut HeaderMap) -> Option<Self> {
        let (mut length, mut hosts, mut closes) = (None, 0_usize, false);
        *map = HeaderMap::with_capacity(headers.len() + ADDED_HEADERS);
        for header in headers {
            let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
            match name.as_str() {
                "host" => hosts += 1,
                "content-length" if length.is_some() => return None,
                "content-length" => length = Some(parse_length(header.value)?),
                "connection" if header.value.eq_ignore_ascii_case(b"close") => closes = true,
                "connection" if header.value.eq_ignore_ascii_case(b"keep-alive") => {}
                "connection" | "expect" | "http2-settings" | "te" | "trailer"
                | "transfer-encoding" | "upgrade" => return None,
                _ => {}
            }
            let value = HeaderValue::from_maybe_shared(received.slice_ref(header.value)).ok()?;
            map.append(name, value);
        }
        (hosts == 1).then_some(Self { body_bytes: length.unwrap_or(0), closes })
    }
}

/// Returns the value of `Content-Length`: digits only, without leading zeros.
fn parse_length(value: &[u8]) -> Option<usize> {
    if value.is_empty() || value.len() > MAX_LENGTH_DIGITS || value.len() > 1 && value[0] == b'0' {
        return None;
    }
    value.iter().try_fold(0, |length, byte| {
        byte.is_ascii_digit().then(|| length * 10 + usize::from(byte - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Option<(CommonRequest, Bytes)> {
        let mut received = Bytes::copy_from_slice(text.as_bytes());
        let request = CommonRequest::take(&mut received);
        if request.is_none() {
            assert_eq!(received, text, "an uncommon request stays in the buffer");
        }
        Some((request?, received))
    }

    fn with_headers(headers: &str) -> String {
        format!("GET /a HTTP/1.1\r\nHost: shop\r\n{headers}\r\n")
    }

    #[test]
    fn common_request_is_taken_from_the_buffer() {
        let text = "POST /a?b=c HTTP/1.1\r\nHost: shop\r\nX-Two: 1\r\nContent-Length: 5\r\n\
                    x-two: 2\r\n\r\nhelloGET / HTTP/1.1\r\n";
        let (request, rest) = take(text).unwrap();
        let CommonRequest { head, body, is_last } = request;
        assert_eq!((head.method, head.uri.to_string()), (Method::POST, "/a?b=c".to_owned()));
        assert_eq!(head.headers.get_all("x-two").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!((body.as_ref(), is_last), (b"hello".as_slice(), false));
        assert_eq!(rest, "GET / HTTP/1.1\r\n");
    }

    #[test]
    fn connection_close_makes_a_request_the_last() {
        for (headers, is_last) in [
            ("", false),
            ("Connection: Keep-Alive\r\n", false),
            ("connection: CLOSE\r\n", true),
            ("connection: keep-alive\r\nconnection: close\r\n", true),
        ] {
            assert_eq!(take(&with_headers(headers)).unwrap().0.is_last, is_last, "{headers}");
        }
    }

    #[test]
    fn headers_of_the_connection_make_a_request_uncommon() {
        for headers in [
            "connection: close, x-a\r\n",
            "connection: upgrade\r\n",
            "connection: \r\n",
            "Content-Length: 0\r\ncontent-length: 0\r\n",
            "Expect: 100-continue\r\n",
            "host: shop\r\n",
            "HTTP2-Settings: x\r\n",
            "te: trailers\r\n",
            "trailer: x\r\n",
            "Transfer-Encoding: chunked\r\n",
            "upgrade: websocket\r\n",
            "bad name: x\r\n",
            "x : y\r\n",
            "x: a\r\n b\r\n",
            "x: a\0\r\n",
            "x: a\rb\r\n",
            "x\r\n",
        ] {
            assert!(take(&with_headers(headers)).is_none(), "{headers:?}");
        }
        for length in ["", "+1", "-1", "0x1", "01", "00", "1 1", "1,1", "1.0", "123456", "²"] {
            let headers = format!("content-length: {length}\r\n");
            assert!(take(&with_headers(&headers)).is_none(), "{length}");
        }
    }

    #[test]
    fn other_request_lines_and_partial_requests_are_uncommon() {
        for text in [
            "",
            "GET",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n",
            "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
            "CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na",
        ] {
            assert!(take(text).is_none(), "{text:?}");
        }
        let headers: String = (0..MAX_HEADERS).map(|number| format!("x-{number}: 1\r\n")).collect();
        assert!(take(&with_headers(&headers)).is_none(), "too many headers");
    }
}
