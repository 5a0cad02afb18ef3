//! Encodes HTTP/1.1 requests to upstreams and responses to clients. The bytes are those that hyper would send.

use std::io::Write as _;

use hyper::ext::ReasonPhrase;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderValue, TRAILER, TRANSFER_ENCODING,
};
use hyper::http::{request, response};
use hyper::{Method, StatusCode};

/// Expected length of a header in bytes.
const HEADER_BYTES: usize = 48;

/// Returns a request with its whole body.
pub(crate) fn request(head: &request::Parts, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + head.headers.len() * HEADER_BYTES + body.len());
    bytes.extend_from_slice(head.method.as_str().as_bytes());
    bytes.push(b' ');
    bytes.extend_from_slice(head.uri.path().as_bytes());
    if let Some(query) = head.uri.query() {
        bytes.push(b'?');
        bytes.extend_from_slice(query.as_bytes());
    }
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in &head.headers {
        push_header(&mut bytes, name.as_str(), value.as_bytes());
    }
    if !body.is_empty() {
        push_length(&mut bytes, body.len());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// The length of a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    /// There is no body.
    Empty,
    Known(u64),
    Unknown,
}

/// The properties of an exchange that change how its response is encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseContext<'a> {
    /// The method of the request.
    pub(crate) method: &'a Method,
    /// Set if the connection closes after the response.
    pub(crate) closes: bool,
    pub(crate) length: BodyLength,
}

/// Encodes a response after its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEncoder {
    /// Bytes of the body that are missing.
    Length(u64),
    Chunked,
}

impl ResponseEncoder {
    /// Appends the head of a response. `date` appends the value of `Date`, if the response has none.
    pub(crate) fn start(
        bytes: &mut Vec<u8>,
        head: &response::Parts,
        context: ResponseContext<'_>,
        date: impl FnOnce(&mut Vec<u8>),
    ) -> Self {
        bytes.reserve(64 + head.headers.len() * HEADER_BYTES);
        push_status(bytes, head);
        let encoder = push_headers(bytes, head, context);
        if context.closes {
            push_header(bytes, "connection", b"close");
        }
        let encoder = encoder.unwrap_or_else(|| push_framing(bytes, head.status, None, context));
        if !head.headers.contains_key(DATE) {
            bytes.extend_from_slice(b"date: ");
            date(bytes);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        encoder
    }

    /// Appends a part of the body. Bytes beyond the length are dropped.
    pub(crate) fn push(&mut self, bytes: &mut Vec<u8>, data: &[u8]) {
        match self {
            Self::Length(missing) => {
                let length =
                    usize::try_from(*missing).map_or(data.len(), |all| all.min(data.len()));
                bytes.extend_from_slice(data.get(..length).unwrap_or_default());
                *missing = missing.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
            }
            // An empty chunk would end the body.
            Self::Chunked if data.is_empty() => {}
            Self::Chunked => {
                // A write to a vector can't fail.
                let _ = write!(bytes, "{:X}\r\n", data.len());
                bytes.extend_from_slice(data);
                bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends the end of the body. Returns `false` if a part of it is missing: the connection must be closed then.
    #[must_use]
    pub(crate) fn end(self, bytes: &mut Vec<u8>) -> bool {
        match self {
            Self::Length(missing) => missing == 0,
            Self::Chunked => {
                bytes.extend_from_slice(b"0\r\n\r\n");
                true
            }
        }
    }
}

/// Returns whether a response has a body (RFC 9112, section 6.3).
pub(crate) fn has_body(method: &Method, status: StatusCode) -> bool {
    *method != Method::HEAD && has_length(status)
}

/// Returns whether a response may have the header `Content-Length`.
fn has_length(status: StatusCode) -> bool {
    !status.is_informational()
        && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn push_status(bytes: &mut Vec<u8>, head: &response::Parts) {
    bytes.extend_from_slice(b"HTTP/1.1 ");
    bytes.extend_from_slice(head.status.as_str().as_bytes());
    bytes.push(b' ');
    let canonical = head.status.canonical_reason().unwrap_or("<none>").as_bytes();
    let reason = head.extensions.get::<ReasonPhrase>().map_or(canonical, ReasonPhrase::as_bytes);
    bytes.extend_from_slice(reason);
    bytes.extend_from_slice(b"\r\n");
}

/// Appends the headers of a response, except those of its connection. Returns the encoder if the headers state the length
/// of the body.
fn push_headers(
    bytes: &mut Vec<u8>,
    head: &response::Parts,
    context: ResponseContext<'_>,
) -> Option<ResponseEncoder> {
    let has_body = has_body(context.method, head.status);
    let states_length = !has_body || matches!(context.length, BodyLength::Known(_));
    let (mut encoder, mut has_trailer) = (None, false);
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH {
            if states_length && encoder.is_none() {
                encoder = Some(push_framing(bytes, head.status, Some(value), context));
            }
        } else if *name == TRAILER {
            if has_body && !std::mem::replace(&mut has_trailer, true) {
                push_trailer(bytes, &head.headers);
            }
        } else if *name != CONNECTION && *name != TRANSFER_ENCODING {
            push_header(bytes, name.as_str(), value.as_bytes());
        }
    }
    encoder
}

/// Appends the headers that state the length of the body.
fn push_framing(
    bytes: &mut Vec<u8>,
    status: StatusCode,
    header: Option<&HeaderValue>,
    context: ResponseContext<'_>,
) -> ResponseEncoder {
    let has_body = has_body(context.method, status);
    match (context.length, header) {
        // The response to HEAD has the length that the response to GET would have.
        (_, Some(length)) if *context.method == Method::HEAD => {
            push_header(bytes, "content-length", length.as_bytes());
            ResponseEncoder::Length(0)
        }
        (BodyLength::Known(length), _) if has_length(status) => {
            push_length(bytes, length);
            ResponseEncoder::Length(if has_body { length } else { 0 })
        }
        (BodyLength::Unknown, _) if has_body => {
            push_header(bytes, "transfer-encoding", b"chunked");
            ResponseEncoder::Chunked
        }
        (BodyLength::Empty, _) if has_body => {
            push_length(bytes, 0);
            ResponseEncoder::Length(0)
        }
        _ => ResponseEncoder::Length(0),
    }
}

/// Appends the values of `Trailer` as one line.
fn push_trailer(bytes: &mut Vec<u8>, headers: &HeaderMap) {
    let mut values = headers.get_all(TRAILER).iter();
    let Some(first) = values.next() else { return };
    bytes.extend_from_slice(b"trailer: ");
    bytes.extend_from_slice(first.as_bytes());
    for value in values {
        bytes.extend_from_slice(b", ");
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
}

fn push_length(bytes: &mut Vec<u8>, length: impl itoa::Integer) {
    push_header(bytes, "content-length", itoa::Buffer::new().format(length).as_bytes());
}

fn push_header(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use hyper::{Request, Response};

    use super::*;

    fn response_head(response: response::Builder, method: &Method, length: BodyLength) -> String {
        let (head, ()) = response.body(()).unwrap().into_parts();
        let mut bytes = Vec::new();
        let context = ResponseContext { method, closes: false, length };
        let _ = ResponseEncoder::start(&mut bytes, &head, context, |bytes| bytes.push(b'D'));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn request_has_its_length_only_with_a_body() {
        let head = Request::builder().method("POST").uri("/a?b").header("Host", "shop");
        let (head, ()) = head.body(()).unwrap().into_parts();
        assert_eq!(request(&head, b""), b"POST /a?b HTTP/1.1\r\nhost: shop\r\n\r\n");
        assert_eq!(
            request(&head, b"hi"),
            b"POST /a?b HTTP/1.1\r\nhost: shop\r\ncontent-length: 2\r\n\r\nhi"
        );
    }

    #[test]
    fn response_has_one_framing() {
        use BodyLength::{Empty, Known, Unknown};
        let get = &Method::GET;
        let ok = || Response::builder().header("content-length", "7");
        for (response, method, length, expected) in [
            (ok(), get, Known(7), "200 OK\r\ncontent-length: 7\r\ndate: D"),
            (ok(), &Method::HEAD, Empty, "200 OK\r\ncontent-length: 7\r\ndate: D"),
            (
                ok().status(304),
                &Method::HEAD,
                Empty,
                "304 Not Modified\r\ncontent-length: 7\r\ndate: D",
            ),
            (ok().status(304), get, Empty, "304 Not Modified\r\ndate: D"),
            (ok().status(204), get, Known(7), "204 No Content\r\ndate: D"),
            (Response::builder(), get, Empty, "200 OK\r\ncontent-length: 0\r\ndate: D"),
            (Response::builder(), &Method::HEAD, Empty, "200 OK\r\ndate: D"),
            (Response::builder(), get, Unknown, "200 OK\r\ntransfer-encoding: chunked\r\ndate: D"),
            (
                Response::builder()
                    .header("date", "now")
                    .header("trailer", "a")
                    .header("trailer", "b"),
                get,
                Unknown,
                "200 OK\r\ndate: now\r\ntrailer: a, b\r\ntransfer-encoding: chunked",
            ),
        ] {
            let expected = format!("HTTP/1.1 {expected}\r\n\r\n");
            assert_eq!(response_head(response, method, length), expected);
        }
    }

    #[test]
    fn body_never_exceeds_its_length() {
        let mut bytes = Vec::new();
        let mut encoder = ResponseEncoder::Length(3);
        encoder.push(&mut bytes, b"he");
        assert!(!encoder.end(&mut Vec::new()));
        encoder.push(&mut bytes, b"llo");
        assert_eq!(bytes, b"hel");
        assert!(encoder.end(&mut bytes));
    }

    #[test]
    fn chunks_have_a_size_and_the_last_is_empty() {
        let (mut bytes, mut encoder) = (Vec::new(), ResponseEncoder::Chunked);
        encoder.push(&mut bytes, b"");
        encoder.push(&mut bytes, b"hello world");
        assert!(encoder.end(&mut bytes));
        assert_eq!(bytes, b"B\r\nhello world\r\n0\r\n\r\n");
    }
}
