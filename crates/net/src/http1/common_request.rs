//! The common request of a listener, parsed in place: a POST to one path with a short body, whole in the read buffer.
//!
//! hyper serves every other request. So a request passes here only if hyper would read the same method, path and body from the
//! same bytes, and if no header changes how it has to be answered.

use std::mem::MaybeUninit;
use std::ops::Range;

use httparse::{Header, Request, Status};

/// Longest body in bytes.
pub const MAX_COMMON_BODY_BYTES: usize = 4 * 1024;
/// Longest head in bytes.
const MAX_COMMON_HEAD_BYTES: usize = 4 * 1024;
/// Largest number of headers. Clients of an API send about ten.
const MAX_HEADERS: usize = 32;

/// The result of a parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedRequest {
    /// A common request. The range is its body, and the next request begins at its end.
    Complete(Range<usize>),
    /// The head of a common request is complete, and its body is not.
    Incomplete,
    /// Anything else, also a part of a head: a client could make repeated parses expensive.
    Unusual,
}

/// Parses the request at the start of a buffer. It is common if it is a POST to `path`.
#[must_use]
pub fn parse(buffer: &[u8], path: &str) -> ParsedRequest {
    let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; MAX_HEADERS];
    let mut request = Request::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let parsed = parser.parse_request_with_uninit_headers(&mut request, buffer, &mut headers);
    let Ok(Status::Complete(head)) = parsed else { return ParsedRequest::Unusual };
    // A minor version of 1 is HTTP/1.1.
    let is_common = request.method == Some("POST")
        && request.path == Some(path)
        && request.version == Some(1)
        && head <= MAX_COMMON_HEAD_BYTES;
    let Some(length) = is_common.then(|| body_length(request.headers)).flatten() else {
        return ParsedRequest::Unusual;
    };
    match head + length {
        end if end <= buffer.len() => ParsedRequest::Complete(head..end),
        _ => ParsedRequest::Incomplete,
    }
}

/// Returns the length of the body; `None` if a header makes the request unusual.
fn body_length(headers: &[Header<'_>]) -> Option<usize> {
    let mut length = None;
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return None;
            }
            length = Some(parse_length(header.value)?);
        } else if changes_the_answer(header) {
            return None;
        }
    }
    length
}

/// Returns the value of `Content-Length`, digits only, up to [`MAX_COMMON_BODY_BYTES`].
fn parse_length(value: &[u8]) -> Option<usize> {
    if value.is_empty() || value.len() > 4 {
        return None;
    }
    let mut length = 0;
    for byte in value {
        length = length * 10 + usize::from(byte.is_ascii_digit().then(|| byte - b'0')?);
    }
    (length <= MAX_COMMON_BODY_BYTES).then_some(length)
}

/// Returns whether hyper or a handler reads this header: it frames the body, ends or upgrades the connection, or was sent by a
/// web page.
fn changes_the_answer(header: &Header<'_>) -> bool {
    const NAMES: [&str; 7] = [
        "connection",
        "content-encoding",
        "expect",
        "http2-settings",
        "origin",
        "transfer-encoding",
        "upgrade",
    ];
    let is_keep_alive = || {
        header.name.eq_ignore_ascii_case("connection")
            && header.value.eq_ignore_ascii_case(b"keep-alive")
    };
    NAMES.iter().any(|name| header.name.eq_ignore_ascii_case(name)) && !is_keep_alive()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/v1/check";

    fn request(headers: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!(
            "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .into_bytes()
    }

    #[test]
    fn body_and_end_of_a_common_request_are_found() {
        for headers in ["", "Connection: Keep-Alive\r\n", "accept: */*\r\nx-Trace: 1\r\n"] {
            let mut bytes = request(headers, "{\"rule\":1}");
            let end = bytes.len();
            bytes.extend(b"POST");
            assert_eq!(parse(&bytes, PATH), ParsedRequest::Complete(end - 10..end), "{headers}");
            assert_eq!(parse(&bytes[..end - 1], PATH), ParsedRequest::Incomplete, "{headers}");
            assert_eq!(parse(&bytes[..end - 11], PATH), ParsedRequest::Unusual, "{headers}");
        }
    }

    #[test]
    fn header_that_changes_the_answer_makes_a_request_unusual() {
        for headers in [
            "connection: close\r\n",
            "Connection: keep-alive, upgrade\r\n",
            "content-length: 2\r\n",
            "Transfer-Encoding: chunked\r\n",
            "EXPECT: 100-continue\r\n",
            "origin: http://a\r\n",
            "content-encoding: gzip\r\n",
            "upgrade: h2c\r\n",
        ] {
            assert_eq!(parse(&request(headers, "{}"), PATH), ParsedRequest::Unusual, "{headers}");
        }
    }

    #[test]
    fn other_request_lines_and_lengths_are_unusual() {
        for line in [
            "GET /v1/check HTTP/1.1",
            "POST /v1/check HTTP/1.0",
            "POST /v1/check?a HTTP/1.1",
            "POST //v1/check HTTP/1.1",
            "POST http://a/v1/check HTTP/1.1",
        ] {
            let bytes = format!("{line}\r\ncontent-length: 2\r\n\r\n{{}}");
            assert_eq!(parse(bytes.as_bytes(), PATH), ParsedRequest::Unusual, "{line}");
        }
        for length in ["", "+2", "4097", "00002", "2 2", "2,2", "0x2", "-1"] {
            let bytes = format!("POST /v1/check HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{{}}");
            assert_eq!(parse(bytes.as_bytes(), PATH), ParsedRequest::Unusual, "{length}");
        }
        assert_eq!(parse(b"POST /v1/check HTTP/1.1\r\n\r\n", PATH), ParsedRequest::Unusual);
        assert_eq!(parse(b"", PATH), ParsedRequest::Unusual);
    }
}
