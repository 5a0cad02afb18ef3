//! Entry points of the fuzz targets: parsers of this crate that read bytes of clients and upstreams.

use bytes::Bytes;
use hyper::header::{CONNECTION, CONTENT_LENGTH};
use hyper::{Method, Response};

use crate::common_request::CommonRequest;
use crate::head;
use crate::http1_encoder::{self, BodyLength, ResponseContext, ResponseEncoder};
use crate::response_reader::{BodyPart, BodyReader, InvalidResponse, ResponseHead};

/// Most headers of a response that is read again: the encoder adds some, and the reader has a maximum.
const MAX_ENCODED_HEADERS: usize = 90;

/// A request that follows another one.
const NEXT_REQUEST: &[u8] = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n";
/// A response that follows another one.
const NEXT_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// Reads any bytes as a common request and as a response, and reads them again after they were encoded.
///
/// # Panics
/// The encoded message has another meaning, or a response depends on how its bytes are split.
pub fn gateway_exchange(bytes: &[u8]) {
    check_request(bytes);
    for method in [Method::GET, Method::HEAD] {
        check_response(bytes, &method);
    }
}

/// Checks that the upstream reads the request that was read here, and nothing else.
fn check_request(bytes: &[u8]) {
    let mut received = Bytes::copy_from_slice(bytes);
    let Some(request) = CommonRequest::take(&mut received) else { return };
    let CommonRequest { mut head, body, is_last } = request;
    assert!(bytes.ends_with(&received), "the rest of the bytes changed");
    head.headers.remove(CONTENT_LENGTH);
    let encoded = [&http1_encoder::request(&head, &body), NEXT_REQUEST].concat();
    let mut received = Bytes::from(encoded);
    let mut again = CommonRequest::take(&mut received).expect("an encoded request is common");
    again.head.headers.remove(CONTENT_LENGTH);
    assert_eq!((again.head.method, again.head.uri), (head.method, head.uri));
    assert_eq!((again.head.headers, again.body), (head.headers, body));
    assert_eq!((again.is_last, received.as_ref()), (is_last, NEXT_REQUEST));
}

/// A response that was read.
#[derive(Debug, PartialEq, Eq)]
struct ReadResponse {
    text: String,
    body: Vec<u8>,
    is_end: bool,
    is_reusable: bool,
    rest: Bytes,
}

/// Checks that the client reads the response that was read here, and nothing else.
fn check_response(bytes: &[u8], method: &Method) {
    let whole = read_response([bytes], method);
    let single = read_response(bytes.chunks(1), method);
    match (whole, single) {
        (Ok(Some((head, read))), Ok(Some((_, single)))) => {
            assert_eq!(read, single, "the response depends on how it is split");
            check_encoded(head, &read, method);
        }
        (Ok(None), Ok(None)) | (Err(_), Err(_)) => {}
        (whole, single) => panic!("whole: {whole:?}, by bytes: {single:?}"),
    }
}

fn check_encoded(head: Response<()>, read: &ReadResponse, method: &Method) {
    let is_final = read.is_end && !head.status().is_informational();
    if !is_final || head.headers().len() > MAX_ENCODED_HEADERS {
        return;
    }
    let (mut head, ()) = head.into_parts();
    head::clean_response(&mut head.headers, false);
    let length = match read.body.len() {
        0 => BodyLength::Empty,
        length if head.headers.contains_key(CONTENT_LENGTH) => BodyLength::Known(length as u64),
        _ => BodyLength::Unknown,
    };
    let (mut encoded, closes) = (Vec::new(), false);
    let context = ResponseContext { method, closes, length };
    let mut encoder =
        ResponseEncoder::start(&mut encoded, &head, context, |bytes| bytes.extend_from_slice(b"x"));
    encoder.push(&mut encoded, &read.body);
    assert!(encoder.end(&mut encoded), "a part of the body is missing");
    encoded.extend_from_slice(NEXT_RESPONSE);
    let again = read_response([encoded.as_slice()], method).expect("an encoded response is valid");
    let (again_head, again) = again.expect("an encoded response is complete");
    assert_eq!((again_head.status(), &again.body), (head.status, &read.body));
    assert_eq!((again.is_end, again.rest.as_ref()), (true, NEXT_RESPONSE));
    assert!(!again_head.headers().contains_key(CONNECTION));
}

/// Reads a response that arrives in pieces. `None` if its head is incomplete.
fn read_response<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    method: &Method,
) -> Result<Option<(Response<()>, ReadResponse)>, InvalidResponse> {
    let (mut received, mut head, mut body) = (Bytes::new(), None, Vec::new());
    for piece in pieces {
        received = [&received, piece].concat().into();
        if head.is_none() {
            head = ResponseHead::take(&mut received, method)?;
        }
        if let Some(head) = &mut head {
            while let BodyPart::Data(data) = head.body.take(&mut received)? {
                body.extend_from_slice(&data);
            }
        }
    }
    let Some(mut head) = head else { return Ok(None) };
    if head.body == BodyReader::UntilClose {
        head.body.on_close()?;
    }
    let text = format!("{} {:?}", head.head.status(), head.head.headers());
    let (is_end, is_reusable) = (head.body.is_end(), head.is_reusable);
    Ok(Some((head.head, ReadResponse { text, body, is_end, is_reusable, rest: received })))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn response_with_the_most_headers_is_read_once() {
        let headers: String = (0..100).map(|number| format!("x-{number}: 1\r\n")).collect();
        gateway_exchange(format!("HTTP/1.1 200 OK\r\n{headers}\r\n").as_bytes());
    }

    #[test]
    fn messages_have_the_same_meaning_after_they_were_encoded() {
        let words = prop::sample::select(vec![
            "GET / HTTP/1.1\r\n",
            "POST /a?b HTTP/1.1\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 204 x\r\n",
            "HTTP/1.0 304 \r\n",
            "HTTP/1.1 103 x\r\n\r\n",
            "Host: a\r\n",
            "Content-Length: 5\r\n",
            "Content-Length: 0\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Connection: close\r\n",
            "Connection: x-a\r\n",
            "Trailer: x\r\n",
            "X-A: b\r\n",
            "x-a:\r\n",
            "\r\n",
            "hello",
            "5\r\nhello\r\n",
            "0\r\n\r\n",
            "0\r\nx: y\r\n\r\n",
            "\n",
            "\r",
            ",",
            " ",
            "\u{e9}",
        ]);
        proptest!(|(words in prop::collection::vec(words, 0..12))| {
            gateway_exchange(words.concat().as_bytes());
        });
    }
}
