//! Reads the HTTP/1 responses of upstreams from bytes, without I/O.
//!
//! A response with an ambiguous framing is an error: a guess would assign bytes of one response to the next request.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes};
use httparse::{Header, ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use hyper::{Method, Response, StatusCode, Version};

/// Longest response head in bytes.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Largest number of headers of a response. hyper has the same.
const MAX_HEADERS: usize = 100;
/// Headers that the gateway adds on the way to the client.
const ADDED_HEADERS: usize = 5;
/// Longest line of a chunk size in bytes, extensions included.
const MAX_SIZE_LINE_BYTES: usize = 1024;
/// Most digits of a chunk size: the number then fits 64 bits.
const MAX_SIZE_DIGITS: usize = 15;
/// Most bytes of all trailer lines.
const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// The reason why a response is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidResponse(pub(crate) &'static str);

impl std::fmt::Display for InvalidResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidResponse {}

/// The head of a response, and what follows it.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) head: Response<()>,
    pub(crate) body: BodyReader,
    /// Set if the connection may carry another request after the body.
    pub(crate) is_reusable: bool,
}

impl ResponseHead {
    /// Removes the head of the response to a request of this method. Interim responses before it are skipped. `None` if
    /// a part of the head is missing.
    ///
    /// # Errors
    /// The head is malformed or too long, or the end of its body is ambiguous.
    pub(crate) fn take(
        received: &mut Bytes,
        method: &Method,
    ) -> Result<Option<Self>, InvalidResponse> {
        loop {
            let Some(head) = take_head(received)? else { return Ok(None) };
            let status = head.status();
            if status == StatusCode::SWITCHING_PROTOCOLS || !status.is_informational() {
                return Self::with_body(head, method).map(Some);
            }
        }
    }

    fn with_body(mut head: Response<()>, method: &Method) -> Result<Self, InvalidResponse> {
        let is_http11 = head.version() == Version::HTTP_11;
        let length = reduce_length(head.headers_mut())?;
        let is_chunked = is_chunked(head.headers())?;
        if is_chunked && !is_http11 {
            return Err(InvalidResponse("transfer-encoding of HTTP/1.0"));
        }
        let status = head.status();
        let switches = status == StatusCode::SWITCHING_PROTOCOLS;
        let has_body = *method != Method::HEAD
            && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            && !switches;
        let body = match (has_body, is_chunked, length) {
            (false, ..) => BodyReader::Length(0),
            (true, true, _) => BodyReader::Chunked(ChunkState::Size),
            (true, false, Some(length)) => BodyReader::Length(length),
            (true, false, None) => BodyReader::UntilClose,
        };
        let is_ambiguous = is_chunked && length.is_some();
        let is_reusable = is_http11
            && !switches
            && !is_ambiguous
            && !matches!(body, BodyReader::UntilClose)
            && !closes(head.headers());
        Ok(Self { head, body, is_reusable })
    }
}

/// Removes one head, also that of an interim response.
fn take_head(received: &mut Bytes) -> Result<Option<Response<()>>, InvalidResponse> {
    let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = ParserConfig::default();
    let end = match config.parse_response_with_uninit_headers(&mut parsed, received, &mut headers) {
        Ok(Status::Complete(end)) if end <= MAX_HEAD_BYTES => end,
        Ok(Status::Partial) if received.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(_) => return Err(InvalidResponse("head too long")),
        Err(_) => return Err(InvalidResponse("malformed head")),
    };
    let mut response = Response::new(());
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    *response.status_mut() = status.ok_or(InvalidResponse("malformed status"))?;
    *response.version_mut() = match parsed.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    let reason =
        parsed.reason.filter(|reason| Some(*reason) != response.status().canonical_reason());
    if let Some(reason) = reason.and_then(|reason| ReasonPhrase::try_from(reason.as_bytes()).ok()) {
        response.extensions_mut().insert(reason);
    }
    *response.headers_mut() = header_map(parsed.headers, received)?;
    received.advance(end);
    Ok(Some(response))
}

/// Returns the headers as a map, which shares the received bytes.
fn header_map(headers: &[Header<'_>], received: &Bytes) -> Result<HeaderMap, InvalidResponse> {
    let mut map = HeaderMap::with_capacity(headers.len() + ADDED_HEADERS);
    for header in headers {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_maybe_shared(received.slice_ref(header.value));
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(InvalidResponse("malformed header"));
        };
        map.append(name, value);
    }
    Ok(map)
}

/// Returns the value of `Content-Length`, and leaves one line of it.
fn reduce_length(headers: &mut HeaderMap) -> Result<Option<u64>, InvalidResponse> {
    let (mut length, mut values) = (None, 0);
    for value in headers.get_all(CONTENT_LENGTH).iter().flat_map(list_items) {
        values += 1;
        let parsed = parse_length(value).ok_or(InvalidResponse("malformed content-length"))?;
        if length.is_some_and(|length| length != parsed) {
            return Err(InvalidResponse("different values of content-length"));
        }
        length = Some(parsed);
    }
    if let Some(length) = length
        && values > 1
    {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(length)
}

fn parse_length(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Returns whether the body is chunked. Another transfer coding is rejected.
fn is_chunked(headers: &HeaderMap) -> Result<bool, InvalidResponse> {
    let mut values = headers.get_all(TRANSFER_ENCODING).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(true),
        _ => Err(InvalidResponse("transfer-encoding other than chunked")),
    }
}

fn closes(headers: &HeaderMap) -> bool {
    let options = headers.get_all(CONNECTION).iter().flat_map(list_items);
    options.into_iter().any(|option| option.eq_ignore_ascii_case(b"close"))
}

/// Returns all items of a list, also empty ones.
fn list_items(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Finds the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyReader {
    /// Bytes that are missing.
    Length(u64),
    Chunked(ChunkState),
    /// The body ends when the server closes the connection.
    UntilClose,
}

/// The next part of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkState {
    /// The line with the size of the next chunk.
    Size,
    /// Bytes of the chunk that are missing.
    Data(u64),
    /// The end of line after the data.
    DataEnd,
    /// Lines of trailers, of which so many bytes were read.
    Trailers(usize),
    End,
}

/// The next part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BodyPart {
    Data(Bytes),
    /// More bytes are needed.
    Missing,
    End,
}

impl BodyReader {
    /// Returns whether the whole body was read.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(ChunkState::End))
    }

    /// Returns the number of bytes that are missing, if it is known.
    pub(crate) fn missing(&self) -> Option<u64> {
        match self {
            Self::Length(missing) => Some(*missing),
            Self::Chunked(ChunkState::End) => Some(0),
            Self::Chunked(_) | Self::UntilClose => None,
        }
    }

    /// Removes the next part of the body. Trailers are dropped: a client of a common request has not asked for them.
    ///
    /// # Errors
    /// A chunk is malformed.
    pub(crate) fn take(&mut self, received: &mut Bytes) -> Result<BodyPart, InvalidResponse> {
        loop {
            let state = match self {
                Self::Length(missing) => return Ok(take_data(missing, received)),
                Self::UntilClose if received.is_empty() => return Ok(BodyPart::Missing),
                Self::UntilClose => return Ok(BodyPart::Data(std::mem::take(received))),
                Self::Chunked(state) => state,
            };
            *state = match state {
                ChunkState::End => return Ok(BodyPart::End),
                ChunkState::Data(0) => ChunkState::DataEnd,
                ChunkState::Data(missing) => return Ok(take_data(missing, received)),
                ChunkState::DataEnd => match received.get(..2) {
                    None => return Ok(BodyPart::Missing),
                    Some(b"\r\n") => {
                        received.advance(2);
                        ChunkState::Size
                    }
                    Some(_) => return Err(InvalidResponse("chunk longer than its size")),
                },
                ChunkState::Size => match take_line(received, MAX_SIZE_LINE_BYTES)? {
                    None => return Ok(BodyPart::Missing),
                    Some(line) => match parse_size(&line)? {
                        0 => ChunkState::Trailers(0),
                        size => ChunkState::Data(size),
                    },
                },
                ChunkState::Trailers(before) => {
                    match take_line(received, MAX_TRAILER_BYTES.saturating_sub(*before))? {
                        None => return Ok(BodyPart::Missing),
                        Some(line) if line.is_empty() => ChunkState::End,
                        Some(line) => {
                            check_trailer(&line)?;
                            ChunkState::Trailers(*before + line.len() + 2)
                        }
                    }
                }
            };
        }
    }

    /// Records the end of the connection.
    ///
    /// # Errors
    /// A part of the body is missing.
    pub(crate) fn on_close(&mut self) -> Result<(), InvalidResponse> {
        match self {
            Self::UntilClose => {
                *self = Self::Length(0);
                Ok(())
            }
            reader if reader.is_end() => Ok(()),
            _ => Err(InvalidResponse("closed before the end of the body")),
        }
    }
}

fn take_data(missing: &mut u64, received: &mut Bytes) -> BodyPart {
    if *missing == 0 {
        return BodyPart::End;
    }
    if received.is_empty() {
        return BodyPart::Missing;
    }
    let length = usize::try_from(*missing).map_or(received.len(), |all| all.min(received.len()));
    *missing = missing.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
    BodyPart::Data(received.split_to(length))
}

/// Removes a line, and returns it without its end. `None` if a part of it is missing.
fn take_line(received: &mut Bytes, max: usize) -> Result<Option<Bytes>, InvalidResponse> {
    let Some(end) = received.iter().take(max + 1).position(|byte| *byte == b'\n') else {
        return match received.len() > max {
            true => Err(InvalidResponse("line too long")),
            false => Ok(None),
        };
    };
    let mut line = received.split_to(end + 1);
    if !line.ends_with(b"\r\n") {
        return Err(InvalidResponse("line without CR"));
    }
    line.truncate(end - 1);
    let is_text = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
    match line.iter().all(is_text) {
        true => Ok(Some(line)),
        false => Err(InvalidResponse("control character in a line")),
    }
}

/// Returns the size of a chunk. Extensions are ignored.
fn parse_size(line: &[u8]) -> Result<u64, InvalidResponse> {
    let invalid = InvalidResponse("malformed chunk size");
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, rest) = line.split_at(digits);
    let has_extension = matches!(rest.trim_ascii_start(), [] | [b';', ..]);
    if size.is_empty() || digits > MAX_SIZE_DIGITS || !has_extension {
        return Err(invalid);
    }
    let text = std::str::from_utf8(size).map_err(|_| invalid)?;
    u64::from_str_radix(text, 16).map_err(|_| invalid)
}

/// Checks that a line is a trailer field.
fn check_trailer(line: &[u8]) -> Result<(), InvalidResponse> {
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    match line.len() > name.len() && HeaderName::from_bytes(name).is_ok() {
        true => Ok(()),
        false => Err(InvalidResponse("malformed trailer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str, method: &Method) -> Result<Option<(ResponseHead, Bytes)>, InvalidResponse> {
        let mut received = Bytes::copy_from_slice(text.as_bytes());
        let head = ResponseHead::take(&mut received, method)?;
        Ok(head.map(|head| (head, received)))
    }

    fn get(text: &str) -> (ResponseHead, Bytes) {
        take(text, &Method::GET).unwrap().unwrap()
    }

    #[test]
    fn framing_follows_the_head_and_the_method() {
        use BodyReader::{Chunked, Length, UntilClose};
        for (text, body, is_reusable) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Length(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n", Length(5), true),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n",
                Length(0),
                false,
            ),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n",
                Length(5),
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
                Chunked(ChunkState::Size),
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                Chunked(ChunkState::Size),
                false,
            ),
            ("HTTP/1.1 200\r\n\r\n", UntilClose, false),
            ("HTTP/1.1 204 No Content\r\n\r\n", Length(0), true),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Length(0), true),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Length(0), false),
        ] {
            let (head, rest) = get(text);
            assert_eq!((head.body, head.is_reusable), (body, is_reusable), "{text}");
            assert!(rest.is_empty(), "{text}");
        }
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(take(text, &Method::HEAD).unwrap().unwrap().0.body, Length(0));
    }

    #[test]
    fn ambiguous_or_malformed_heads_are_rejected() {
        for text in [
            "what?\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX : x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1,\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(take(text, &Method::GET).is_err(), "{text:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(MAX_HEAD_BYTES));
        assert!(take(&long, &Method::GET).is_err());
    }

    #[test]
    fn interim_responses_are_skipped_and_partial_heads_stay() {
        let text = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
                    HTTP/1.1 404 Gone fishing\r\nX: a\r\nx: b\r\nContent-Length: 2\r\n\r\nno";
        let (head, rest) = get(text);
        assert_eq!((head.head.status(), rest.as_ref()), (StatusCode::NOT_FOUND, b"no".as_slice()));
        assert_eq!(head.head.headers().get_all("x").iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            head.head.extensions().get::<ReasonPhrase>().unwrap().as_bytes(),
            b"Gone fishing"
        );
        for end in 0..text.len() - 2 {
            assert!(take(&text[..end], &Method::GET).unwrap().is_none(), "{end}");
        }
    }

    /// Reads a body that arrives in pieces. Returns its data, and whether it has ended.
    fn read(mut reader: BodyReader, pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), InvalidResponse> {
        let (mut received, mut data) = (Bytes::new(), Vec::new());
        for piece in pieces {
            received = [&received, *piece].concat().into();
            while let BodyPart::Data(part) = reader.take(&mut received)? {
                data.extend_from_slice(&part);
            }
        }
        Ok((data, reader.is_end()))
    }

    const CHUNKED: BodyReader = BodyReader::Chunked(ChunkState::Size);

    #[test]
    fn chunks_are_decoded_however_they_are_split() {
        let body = b"5;a=\"b;c\"\r\nhello\r\n006 \r\n world\r\n0;x\r\nX-Sum: 1\r\n\r\n";
        for cut in 0..body.len() {
            let (one, two) = body.split_at(cut);
            assert_eq!(read(CHUNKED, &[one, two]), Ok((b"hello world".to_vec(), true)), "{cut}");
            assert!(!read(CHUNKED, &[one]).unwrap().1, "{cut}");
        }
        let single: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(read(CHUNKED, &single), Ok((b"hello world".to_vec(), true)));
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        for body in [
            "\r\n",
            "x\r\n",
            "+5\r\nhello\r\n",
            "0x5\r\nhello\r\n",
            "5\nhello\r\n",
            "5 5\r\nhello\r\n",
            "5;a\nb\r\nhello\r\n",
            "5;a\rb\r\nhello\r\n",
            "3\r\nhello\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "ffffffffffffffff\r\nhello",
            "10000000000000005\r\nhello\r\n",
            "0\r\nGET / HTTP/1.1\r\n\r\n",
            "0\r\n: x\r\n\r\n",
            "0\r\nx: y\n\r\n",
        ] {
            assert!(read(CHUNKED, &[body.as_bytes()]).is_err(), "{body:?}");
        }
        let long = format!("5;{}", "x".repeat(MAX_SIZE_LINE_BYTES));
        assert!(read(CHUNKED, &[long.as_bytes()]).is_err());
        let trailers = format!("0\r\n{}", "x: y\r\n".repeat(MAX_TRAILER_BYTES / 6 + 1));
        assert!(read(CHUNKED, &[trailers.as_bytes()]).is_err());
    }

    #[test]
    fn bytes_after_the_end_stay_in_the_buffer() {
        for (mut reader, text) in
            [(BodyReader::Length(2), "okmore"), (CHUNKED, "2\r\nok\r\n0\r\n\r\nmore")]
        {
            let mut received = Bytes::copy_from_slice(text.as_bytes());
            assert_eq!(reader.take(&mut received), Ok(BodyPart::Data(Bytes::from_static(b"ok"))));
            assert_eq!(reader.take(&mut received), Ok(BodyPart::End));
            assert_eq!((received.as_ref(), reader.is_end()), (b"more".as_slice(), true));
        }
    }

    #[test]
    fn close_ends_only_a_body_without_a_length() {
        let mut until_close = BodyReader::UntilClose;
        assert_eq!(until_close.on_close(), Ok(()));
        assert!(until_close.is_end());
        assert!(BodyReader::Length(1).on_close().is_err());
        assert!(BodyReader::Chunked(ChunkState::Data(1)).on_close().is_err());
        assert!(BodyReader::Chunked(ChunkState::Trailers(0)).on_close().is_err());
        assert_eq!(BodyReader::Length(0).on_close(), Ok(()));
    }
}
