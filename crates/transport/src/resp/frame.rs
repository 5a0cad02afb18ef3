//! RESP frames: bytes to the arguments of one command, and nothing else.
//!
//! A frame is an array of bulk strings, or a line of words as people type it. Arguments are slices of
//! the input. What a frame may hold is bounded, and a frame that breaks the bounds is refused as soon
//! as its beginning says so, before the rest of it has come.

mod inline;

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;

/// Most arguments of one command, its name included.
pub(crate) const MAX_ARGUMENTS: usize = 64;
/// Longest argument in bytes.
pub(crate) const MAX_BULK: usize = 16 * 1024;
/// Longest command in bytes.
pub(crate) const MAX_COMMAND: usize = 64 * 1024;
/// Longest line that is a command, in bytes.
pub(crate) const MAX_INLINE: usize = 16 * 1024;
/// Longest number with the line end after it, in bytes.
const MAX_NUMBER: usize = 24;

/// The arguments of a command, its name first.
pub(crate) type Arguments<'b> = SmallVec<[Cow<'b, [u8]>; 8]>;

/// A command at the beginning of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'b> {
    /// Without any, nothing is asked.
    pub(crate) arguments: Arguments<'b>,
    /// How many bytes of the input it takes.
    pub(crate) length: usize,
}

impl<'b> Frame<'b> {
    /// Reads the frame at the beginning of the input; nothing while not all of it has come.
    ///
    /// Whatever follows the frame changes nothing about it, so it does not matter in which pieces the
    /// input came.
    ///
    /// # Errors
    /// The input can't be the beginning of a frame, whatever comes next.
    pub(crate) fn read(input: &'b [u8]) -> Result<Option<Self>, Malformed> {
        match input.first() {
            None => Ok(None),
            Some(b'*') => Self::array(input),
            Some(_) => inline::read(input),
        }
    }

    fn array(input: &'b [u8]) -> Result<Option<Self>, Malformed> {
        let Some((count, mut at)) = number(input, 1, Malformed::Count)? else {
            return Ok(None);
        };
        // As with Redis, fewer than none is none.
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        if count > MAX_ARGUMENTS {
            return Err(Malformed::Count);
        }
        let mut arguments = Arguments::new();
        for _ in 0..count {
            match input.get(at) {
                None => return Ok(None),
                Some(b'$') => {}
                Some(found) => return Err(Malformed::Expected { found: *found }),
            }
            let Some((length, start)) = number(input, at + 1, Malformed::Length)? else {
                return Ok(None);
            };
            let length = usize::try_from(length).ok().filter(|length| *length <= MAX_BULK);
            let end = start + length.ok_or(Malformed::Length)?;
            at = end + LINE_END.len();
            if at > MAX_COMMAND {
                return Err(Malformed::TooLong);
            }
            match input.get(end..at) {
                None => return Ok(None),
                Some(LINE_END) => arguments.push(Cow::Borrowed(&input[start..end])),
                Some(_) => return Err(Malformed::Unended),
            }
        }
        Ok(Some(Self { arguments, length: at }))
    }
}

const LINE_END: &[u8] = b"\r\n";

/// The number at `at`, and where the next line begins; nothing while its line has no end.
fn number(input: &[u8], at: usize, wrong: Malformed) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = &input[at..];
    let line = &rest[..rest.len().min(MAX_NUMBER)];
    let Some(end) = line.iter().position(|byte| *byte == b'\r') else {
        return if line.len() == MAX_NUMBER { Err(wrong) } else { Ok(None) };
    };
    match rest.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => {
            let number = integer(&line[..end]).ok_or(wrong)?;
            Ok(Some((number, at + end + LINE_END.len())))
        }
        Some(_) => Err(wrong),
    }
}

/// Digits without a plus sign or leading zeros, as Redis reads them.
fn integer(digits: &[u8]) -> Option<i64> {
    let positive = digits.strip_prefix(b"-").unwrap_or(digits);
    match positive {
        b"0" if positive.len() == digits.len() => Some(0),
        [b'1'..=b'9', ..] => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// Why input is no command. The connection can't go on: where the next command begins is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Malformed {
    #[error("invalid multibulk length, wanted at most {MAX_ARGUMENTS}")]
    Count,
    #[error("invalid bulk length, wanted 0 to {MAX_BULK}")]
    Length,
    #[error("expected '$', got '{}'", found.escape_ascii())]
    Expected { found: u8 },
    #[error("expected a line end after a bulk")]
    Unended,
    #[error("too big request, wanted at most {MAX_COMMAND} bytes")]
    TooLong,
    #[error("too big inline request, wanted at most {MAX_INLINE} bytes and {MAX_ARGUMENTS} words")]
    Inline,
    #[error("unbalanced quotes in request")]
    Quotes,
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A command as client libraries write it.
    fn encoded(arguments: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    type Command = Vec<Vec<u8>>;

    /// Every command of input that comes in pieces, and what is left of it or why it ended.
    fn commands(pieces: &[&[u8]]) -> (Vec<Command>, Result<Vec<u8>, Malformed>) {
        let (mut found, mut buffer) = (Vec::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                let taken = match Frame::read(&buffer) {
                    Ok(None) => break,
                    Ok(Some(Frame { arguments, length })) => {
                        found.push(arguments.into_iter().map(Cow::into_owned).collect());
                        length
                    }
                    Err(malformed) => return (found, Err(malformed)),
                };
                buffer.drain(..taken);
            }
        }
        (found, Ok(buffer))
    }

    fn refused(input: &[u8]) -> String {
        let (_, ended) = commands(&[input]);
        ended.unwrap_err().to_string()
    }

    /// Bytes that are often frames, nearly frames or ends of lines.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => vec(vec(any::<u8>(), 0..40), 0..6).prop_map(|arguments| encoded(&arguments)),
            2 => "[ -~]{0,40}(\r\n|\n)".prop_map(String::into_bytes),
            1 => "[*$]-?[0-9]{0,6}(\r\n)?".prop_map(String::into_bytes),
            1 => vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'\''), Just(b'\n'), any::<u8>()], 0..20),
        ];
        vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn what_a_client_library_writes_is_read_back(
            all in vec(vec(vec(any::<u8>(), 0..300), 1..MAX_ARGUMENTS), 0..8),
        ) {
            let bytes: Vec<u8> = all.iter().flat_map(|arguments| encoded(arguments)).collect();
            prop_assert_eq!(commands(&[&bytes]), (all, Ok(Vec::new())));
        }

        #[test]
        fn pieces_of_any_size_give_the_same_commands(
            bytes in stream(),
            cuts in vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let whole = commands(&[&bytes]);
            prop_assert_eq!(commands(&pieces), whole.clone());
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(commands(&single), whole);
        }
    }

    #[test]
    fn what_breaks_the_bounds_is_refused_before_it_has_come() {
        assert_eq!(refused(b"*65\r\n"), "invalid multibulk length, wanted at most 64");
        assert_eq!(refused(b"*9223372036854775808\r\n"), refused(b"*65\r\n"));
        assert_eq!(refused(b"*111111111111111111111111"), refused(b"*65\r\n"));
        assert_eq!(refused(b"*1\r\n$16385\r\n"), "invalid bulk length, wanted 0 to 16384");
        assert_eq!(refused(b"*1\r\n$-1\r\n"), refused(b"*1\r\n$16385\r\n"));
        let mut long = b"*5\r\n".to_vec();
        for _ in 0..4 {
            long.extend_from_slice(b"$16000\r\n");
            long.extend_from_slice(&[b'x'; 16_000]);
            long.extend_from_slice(b"\r\n");
        }
        long.extend_from_slice(b"$2000\r\n");
        assert_eq!(refused(&long), "too big request, wanted at most 65536 bytes");
    }

    #[test]
    fn what_is_no_frame_is_refused_as_redis_does() {
        assert_eq!(refused(b"*1\r\nfoo\r\n"), "expected '$', got 'f'");
        assert_eq!(refused(b"*1\r\n\x00"), "expected '$', got '\\x00'");
        for count in ["", "+1", "01", " 1", "1 ", "-0", "x", "1\rx"] {
            let input = format!("*{count}\r\n");
            assert!(refused(input.as_bytes()).starts_with("invalid multibulk length"), "{count}");
        }
        assert_eq!(refused(b"*1\r\n$4\r\nPING!!"), "expected a line end after a bulk");
    }

    #[test]
    fn an_empty_array_asks_nothing() {
        for input in [&b"*0\r\n"[..], b"*-1\r\n", b"*-10\r\n"] {
            let (found, ended) = commands(&[input]);
            assert_eq!((found, ended), (vec![Command::new()], Ok(Vec::new())));
        }
    }
}
