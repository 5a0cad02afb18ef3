//! HTTP/2 frames written by hand, to send requests that client libraries reject.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use tidegate_testkit::WAIT_TIMEOUT;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// The id of the only stream: each connection has one request.
const STREAM_ID: u32 = 1;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamOutcome {
    /// A response with this status.
    Response(u16),
    /// The stream was reset, or the connection was closed.
    Rejected,
}

/// A connection that writes raw frames for one request.
pub(crate) struct FrameConnection {
    stream: TcpStream,
}

impl FrameConnection {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let mut connection = Self { stream };
        let _ = connection.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        connection.write_frame(SETTINGS, 0, 0, b"");
        connection
    }

    /// Sends a HEADERS frame with these fields, without compression and without validation.
    pub(crate) fn send_headers(&mut self, fields: &[(&str, &str)], end: bool) {
        let mut block = Vec::new();
        for (name, value) in fields {
            // A literal field without indexing, with a literal name (RFC 7541, section 6.2.2).
            block.push(0);
            for text in [name, value] {
                encode_length(&mut block, text.len());
                block.extend_from_slice(text.as_bytes());
            }
        }
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.write_frame(HEADERS, flags, STREAM_ID, &block);
    }

    /// Sends a DATA frame.
    pub(crate) fn send_data(&mut self, bytes: &str, end: bool) {
        self.write_frame(DATA, if end { END_STREAM } else { 0 }, STREAM_ID, bytes.as_bytes());
    }

    /// Writes one frame. Errors are ignored, because the peer may already have closed the connection.
    fn write_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        let _ = self.stream.write_all(&frame);
    }

    /// Reads frames until there is a response, a reset or the end of the connection.
    pub(crate) fn read_outcome(&mut self) -> StreamOutcome {
        loop {
            let mut head = [0; 9];
            if self.stream.read_exact(&mut head).is_err() {
                return StreamOutcome::Rejected;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            if self.stream.read_exact(&mut payload).is_err() {
                return StreamOutcome::Rejected;
            }
            match (head[3], head[4]) {
                (HEADERS, _) => return StreamOutcome::Response(decode_status(&payload)),
                (RST_STREAM | GOAWAY, _) => return StreamOutcome::Rejected,
                (SETTINGS, 0) => self.write_frame(SETTINGS, ACK, 0, b""),
                (PING, 0) => self.write_frame(PING, ACK, 0, &payload),
                _ => {}
            }
        }
    }
}

/// Encodes an HPACK integer with a prefix of seven bits (RFC 7541, section 5.1).
fn encode_length(block: &mut Vec<u8>, value: usize) {
    let Some(mut rest) = value.checked_sub(127) else {
        block.push(u8::try_from(value).unwrap());
        return;
    };
    block.push(127);
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
}

/// Decodes the status, which is the first field of the first header block of a connection.
fn decode_status(block: &[u8]) -> u16 {
    // The block may start with updates of the dynamic table size.
    let start = block.iter().position(|byte| byte & 0xe0 != 0x20).unwrap();
    let block = &block[start..];
    if block[0] & 0x80 != 0 {
        let indexed = [200, 204, 206, 304, 400, 404, 500];
        return indexed[usize::from(block[0] & 0x7f) - 8];
    }
    let (length, text) = (usize::from(block[1] & 0x7f), &block[2..]);
    let digits = match block[1] & 0x80 {
        0 => String::from_utf8(text[..length].to_vec()).unwrap(),
        _ => decode_huffman_digits(&text[..length]),
    };
    digits.parse().unwrap()
}

/// Decodes three digits in the Huffman code of HPACK: 0 to 2 have five bits, the others have six.
fn decode_huffman_digits(bytes: &[u8]) -> String {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    // The last byte is padded with ones. One more bit lets the loop always read six bits.
    let bits = bits + "1";
    let (mut digits, mut at) = (String::new(), 0);
    while digits.len() < 3 {
        let (five, six) = (&bits[at..at + 5], &bits[at..at + 6]);
        let five = u32::from_str_radix(five, 2).unwrap();
        let (digit, width) = match five {
            0..=2 => (five, 5),
            _ => (u32::from_str_radix(six, 2).unwrap() - 0b01_1001 + 3, 6),
        };
        digits.push(char::from_digit(digit, 10).unwrap());
        at += width;
    }
    digits
}

#[test]
fn status_is_decoded_from_every_hpack_form() {
    for (block, expected) in [
        (&[0x88][..], 200),
        (&[0x3f, 0x20, 0x8c], 400),
        (&[0x48, 0x03, b'4', b'2', b'9'], 429),
        // 429 in Huffman code: 011010 00010 011111, padded with ones.
        (&[0x48, 0x83, 0b0110_1000, 0b0100_1111, 0b1111_1111], 429),
    ] {
        assert_eq!(decode_status(block), expected, "{block:?}");
    }
}
