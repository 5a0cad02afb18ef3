//! Encodes replies in the RESP version that the client chose.

use std::fmt;

use tidegate_core::InvalidReason;

/// Longest text of an error, in bytes.
const MAX_ERROR_BYTES: usize = 512;

/// Most bytes of an encoded integer.
const MAX_INTEGER_BYTES: usize = 24;

/// A version of the RESP protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RespVersion {
    #[default]
    Two,
    /// Adds maps and a null type.
    Three,
}

/// An error reply: a code in capitals and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RespError {
    text: String,
    /// The reason, if the command is invalid. Such errors are counted.
    pub(crate) reason: Option<InvalidReason>,
}

impl RespError {
    /// Returns an error with the generic code `ERR`.
    pub(crate) fn error(text: impl fmt::Display) -> Self {
        Self::coded("ERR", text)
    }

    /// Returns an error with a code that clients can distinguish.
    pub(crate) fn coded(code: &str, text: impl fmt::Display) -> Self {
        Self { text: format!("{code} {text}"), reason: None }
    }

    /// Returns the error of an invalid command.
    pub(crate) fn invalid(text: impl fmt::Display) -> Self {
        Self::error(text).because(InvalidReason::Malformed)
    }

    /// Returns the same error of an invalid command with this reason.
    pub(crate) fn because(mut self, reason: InvalidReason) -> Self {
        self.reason = Some(reason);
        self
    }
}

impl fmt::Display for RespError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Encoded replies that are not written to the client yet.
#[derive(Debug, Default)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    pub(crate) version: RespVersion,
}

impl ReplyBuffer {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Removes all replies. A buffer larger than `max_capacity` bytes is freed.
    pub(crate) fn clear(&mut self, max_capacity: usize) {
        self.bytes.clear();
        if self.bytes.capacity() > max_capacity {
            self.bytes = Vec::new();
        }
    }

    pub(crate) fn ok(&mut self) {
        self.simple("OK");
    }

    /// Writes a simple string, which must not contain line ends.
    pub(crate) fn simple(&mut self, text: &'static str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// Writes an error on one line. Control characters, which may come from the client, become spaces.
    pub(crate) fn error(&mut self, error: &RespError) {
        self.bytes.push(b'-');
        let text = error.text.as_bytes();
        let text = &text[..error.text.floor_char_boundary(MAX_ERROR_BYTES)];
        let line = text.iter().map(|byte| if byte.is_ascii_control() { b' ' } else { *byte });
        self.bytes.extend(line);
        self.end();
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.bytes.push(b':');
        self.number(number);
    }

    /// Writes an array of integers.
    #[inline]
    pub(crate) fn integers<const N: usize>(&mut self, numbers: [i64; N]) {
        self.bytes.reserve((N + 1) * MAX_INTEGER_BYTES);
        self.array(N);
        for number in numbers {
            match u8::try_from(number) {
                // Most numbers in replies have one digit.
                Ok(digit @ 0..=9) => {
                    self.bytes.extend_from_slice(&[b':', b'0' + digit, b'\r', b'\n']);
                }
                _ if number == -1 => self.bytes.extend_from_slice(b":-1\r\n"),
                _ => self.integer(number),
            }
        }
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.bytes.push(b'$');
        self.length(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    pub(crate) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            RespVersion::Two => b"$-1\r\n",
            RespVersion::Three => b"_\r\n",
        });
    }

    /// Writes the header of an array; its items follow.
    pub(crate) fn array(&mut self, length: usize) {
        self.bytes.push(b'*');
        self.length(length);
    }

    /// Writes the header of a map; its pairs follow. In version 2 the map is a flat array.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.version {
            RespVersion::Two => self.array(pairs * 2),
            RespVersion::Three => {
                self.bytes.push(b'%');
                self.length(pairs);
            }
        }
    }

    fn length(&mut self, length: usize) {
        self.number(i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn number(&mut self, number: i64) {
        match u8::try_from(number) {
            // Fast path: most numbers in replies have one digit.
            Ok(digit @ 0..=9) => self.bytes.push(b'0' + digit),
            _ => {
                let mut digits = itoa::Buffer::new();
                self.bytes.extend_from_slice(digits.format(number).as_bytes());
            }
        }
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(version: RespVersion, write: impl FnOnce(&mut ReplyBuffer)) -> String {
        let mut replies = ReplyBuffer { version, ..ReplyBuffer::default() };
        write(&mut replies);
        String::from_utf8(replies.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn maps_and_nulls_are_encoded_for_each_version() {
        let all = |replies: &mut ReplyBuffer| {
            replies.map(1);
            replies.bulk(b"a\r\n");
            replies.null();
            replies.array(3);
            replies.integer(-1);
            replies.integer(7);
            replies.integer(i64::MAX);
            replies.ok();
        };
        let rest = "*3\r\n:-1\r\n:7\r\n:9223372036854775807\r\n+OK\r\n";
        assert_eq!(encoded(RespVersion::Two, all), format!("*2\r\n$3\r\na\r\n\r\n$-1\r\n{rest}"));
        assert_eq!(encoded(RespVersion::Three, all), format!("%1\r\n$3\r\na\r\n\r\n_\r\n{rest}"));
    }

    #[test]
    fn error_is_one_line_of_bounded_length() {
        let line = encoded(RespVersion::Two, |replies| {
            replies.error(&RespError::error("found \"a\r\n+OK\""));
        });
        assert_eq!(line, "-ERR found \"a  +OK\"\r\n");
        let line = encoded(RespVersion::Two, |replies| {
            replies.error(&RespError::coded("NOAUTH", "é".repeat(1_000)));
        });
        assert!(line.len() <= MAX_ERROR_BYTES + 3 && line.ends_with("é\r\n"), "{}", line.len());
    }
}
