//! Replies as bytes, in the version of the protocol that the client chose.

use std::fmt;

/// Longest text of an error in bytes.
const MAX_ERROR: usize = 512;

/// Which RESP a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    #[default]
    Two,
    /// Has maps and a null of its own.
    Three,
}

/// Why a command was not done: a code in capitals, then what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(String);

impl Refusal {
    /// The usual code.
    pub(crate) fn error(text: impl fmt::Display) -> Self {
        Self(format!("ERR {text}"))
    }

    /// Another code, which clients tell apart.
    pub(crate) fn coded(code: &str, text: impl fmt::Display) -> Self {
        Self(format!("{code} {text}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replies that wait to be written, one after another.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    pub(crate) version: Version,
}

impl Replies {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets what was written, and does not keep more than `room` bytes for what comes.
    pub(crate) fn clear(&mut self, room: usize) {
        self.bytes.clear();
        if self.bytes.capacity() > room {
            self.bytes = Vec::new();
        }
    }

    pub(crate) fn ok(&mut self) {
        self.simple("OK");
    }

    /// A text of our own, without line ends.
    pub(crate) fn simple(&mut self, text: &'static str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error on one line, whatever a client's words are in it.
    pub(crate) fn error(&mut self, refusal: &Refusal) {
        self.bytes.push(b'-');
        let text = refusal.0.as_bytes();
        let text = &text[..refusal.0.floor_char_boundary(MAX_ERROR)];
        let line = text.iter().map(|byte| if byte.is_ascii_control() { b' ' } else { *byte });
        self.bytes.extend(line);
        self.end();
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.bytes.push(b':');
        self.number(number);
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.bytes.push(b'$');
        self.length(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    pub(crate) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// Announces so many replies as one.
    pub(crate) fn array(&mut self, length: usize) {
        self.bytes.push(b'*');
        self.length(length);
    }

    /// Announces so many pairs of replies as one: an array where there are no maps.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.array(pairs * 2),
            Version::Three => {
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
            // Most numbers that a limiter says are small.
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

    fn written(version: Version, write: impl FnOnce(&mut Replies)) -> String {
        let mut replies = Replies { version, ..Replies::default() };
        write(&mut replies);
        String::from_utf8(replies.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn each_version_gets_what_it_can_read() {
        let all = |replies: &mut Replies| {
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
        assert_eq!(written(Version::Two, all), format!("*2\r\n$3\r\na\r\n\r\n$-1\r\n{rest}"));
        assert_eq!(written(Version::Three, all), format!("%1\r\n$3\r\na\r\n\r\n_\r\n{rest}"));
    }

    #[test]
    fn an_error_is_one_line_of_bounded_length() {
        let line = written(Version::Two, |replies| {
            replies.error(&Refusal::error("found \"a\r\n+OK\""));
        });
        assert_eq!(line, "-ERR found \"a  +OK\"\r\n");
        let line = written(Version::Two, |replies| {
            replies.error(&Refusal::coded("NOAUTH", "é".repeat(1_000)));
        });
        assert!(line.len() <= MAX_ERROR + 3 && line.ends_with("é\r\n"), "{}", line.len());
    }
}
