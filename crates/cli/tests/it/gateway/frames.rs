//! HTTP/2 frame by frame, for what no client library lets one send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use tidegate_testkit::WAIT_TIMEOUT;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// The stream that everything is said on: each connection has one request.
const STREAM: u32 = 1;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was answered, with this status.
    Answered(u16),
    /// The stream was reset, or the connection ended.
    Refused,
}

/// A connection for one request.
pub(crate) struct Frames {
    stream: TcpStream,
}

impl Frames {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let mut frames = Self { stream };
        let _ = frames.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frames.write(SETTINGS, 0, 0, b"");
        frames
    }

    /// Fields as they are, each told in full.
    pub(crate) fn headers(&mut self, fields: &[(&str, &str)], end: bool) {
        let mut block = Vec::new();
        for (name, value) in fields {
            // A literal that nobody is to remember, with a name of its own.
            block.push(0);
            for text in [name, value] {
                number(&mut block, text.len());
                block.extend_from_slice(text.as_bytes());
            }
        }
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.write(HEADERS, flags, STREAM, &block);
    }

    pub(crate) fn data(&mut self, bytes: &str, end: bool) {
        self.write(DATA, if end { END_STREAM } else { 0 }, STREAM, bytes.as_bytes());
    }

    /// Whoever refuses what was sent may have hung up already.
    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        let _ = self.stream.write_all(&frame);
    }

    /// Reads until the request has come to something.
    pub(crate) fn outcome(&mut self) -> Outcome {
        loop {
            let mut head = [0; 9];
            if self.stream.read_exact(&mut head).is_err() {
                return Outcome::Refused;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            if self.stream.read_exact(&mut payload).is_err() {
                return Outcome::Refused;
            }
            match (head[3], head[4]) {
                (HEADERS, _) => return Outcome::Answered(status(&payload)),
                (RESET | GO_AWAY, _) => return Outcome::Refused,
                (SETTINGS, 0) => self.write(SETTINGS, ACK, 0, b""),
                (PING, 0) => self.write(PING, ACK, 0, &payload),
                _ => {}
            }
        }
    }
}

/// A number that has seven bits of its first byte.
fn number(block: &mut Vec<u8>, value: usize) {
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

/// The status at the beginning of the first block of a connection.
fn status(block: &[u8]) -> u16 {
    // The peer may begin by saying how large its table is.
    let start = block.iter().position(|byte| byte & 0xe0 != 0x20).unwrap();
    let block = &block[start..];
    if block[0] & 0x80 != 0 {
        let known = [200, 204, 206, 304, 400, 404, 500];
        return known[usize::from(block[0] & 0x7f) - 8];
    }
    let (length, text) = (usize::from(block[1] & 0x7f), &block[2..]);
    let digits = match block[1] & 0x80 {
        0 => String::from_utf8(text[..length].to_vec()).unwrap(),
        _ => digits(&text[..length]),
    };
    digits.parse().unwrap()
}

/// Three digits in the Huffman code of HPACK: 0 to 2 have five bits, the others six.
fn digits(bytes: &[u8]) -> String {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    // Ones fill up the last byte; one more, so that there are always six bits to look at.
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
fn statuses_are_read_in_every_form() {
    for (block, expected) in [
        (&[0x88][..], 200),
        (&[0x3f, 0x20, 0x8c], 400),
        (&[0x48, 0x03, b'4', b'2', b'9'], 429),
        // 011010 00010 011111: the same in code, padded with ones.
        (&[0x48, 0x83, 0b0110_1000, 0b0100_1111, 0b1111_1111], 429),
    ] {
        assert_eq!(status(block), expected, "{block:?}");
    }
}
