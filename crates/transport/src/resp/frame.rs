//! Parses RESP frames: bytes to the arguments of one command.
//!
//! A frame is an array of bulk strings, or a line of words (an inline command). Arguments are slices of
//! the input. The size of a frame is bounded. A frame that exceeds a bound is rejected as soon as its
//! length is known, before the rest of it arrives.

mod inline;

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::InvalidReason;

/// Largest number of arguments of one command, including its name.
pub(crate) const MAX_ARGUMENTS: usize = 64;
/// Longest argument, in bytes.
pub(crate) const MAX_ARGUMENT_BYTES: usize = 16 * 1024;
/// Longest command, in bytes.
pub(crate) const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// Longest inline command, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024;
/// Longest number with its line end, in bytes.
const MAX_NUMBER_BYTES: usize = 24;

/// The arguments of a command, its name first.
pub(crate) type Arguments<'b> = SmallVec<[Cow<'b, [u8]>; 8]>;

/// A command at the beginning of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'b> {
    /// Empty for an empty array or line, which needs no reply.
    pub(crate) arguments: Arguments<'b>,
    /// Length of the frame in the input, in bytes.
    pub(crate) length: usize,
}

impl<'b> Frame<'b> {
    /// Parses the frame at the start of the input. Returns `None` while the frame is incomplete.
    ///
    /// Bytes after the frame do not change the result, so it does not depend on the pieces in which the
    /// input arrives.
    ///
    /// # Errors
    /// The input is not the start of a valid frame.
    pub(crate) fn read(input: &'b [u8]) -> Result<Option<Self>, FrameError> {
        match input.first() {
            None => Ok(None),
            Some(b'*') => Self::array(input),
            Some(_) => inline::read(input),
        }
    }

    fn array(input: &'b [u8]) -> Result<Option<Self>, FrameError> {
        let Some((count, mut at)) = number(input, 1, FrameError::Count)? else {
            return Ok(None);
        };
        // A negative count is an empty array, as in Redis.
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        if count > MAX_ARGUMENTS {
            return Err(FrameError::Count);
        }
        let mut arguments = Arguments::new();
        for _ in 0..count {
            match input.get(at) {
                None => return Ok(None),
                Some(b'$') => {}
                Some(found) => return Err(FrameError::Expected { found: *found }),
            }
            let Some((length, start)) = number(input, at + 1, FrameError::Length)? else {
                return Ok(None);
            };
            let length =
                usize::try_from(length).ok().filter(|length| *length <= MAX_ARGUMENT_BYTES);
            let end = start + length.ok_or(FrameError::Length)?;
            at = end + LINE_END.len();
            if at > MAX_COMMAND_BYTES {
                return Err(FrameError::TooLong);
            }
            match input.get(end..at) {
                None => return Ok(None),
                Some(LINE_END) => arguments.push(Cow::Borrowed(&input[start..end])),
                Some(_) => return Err(FrameError::MissingLineEnd),
            }
        }
        Ok(Some(Self { arguments, length: at }))
    }
}

const LINE_END: &[u8] = b"\r\n";

/// Parses the number at `at` and returns it with the start of the next line. Returns `None` while the line
/// is incomplete.
fn number(input: &[u8], at: usize, error: FrameError) -> Result<Option<(i64, usize)>, FrameError> {
    let rest = &input[at..];
    let line = &rest[..rest.len().min(MAX_NUMBER_BYTES)];
    let Some(end) = line.iter().position(|byte| *byte == b'\r') else {
        return if line.len() == MAX_NUMBER_BYTES { Err(error) } else { Ok(None) };
    };
    match rest.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => {
            let number = integer(&line[..end]).ok_or(error)?;
            Ok(Some((number, at + end + LINE_END.len())))
        }
        Some(_) => Err(error),
    }
}

/// Parses digits without plus sign and leading zeros, as Redis does.
fn integer(digits: &[u8]) -> Option<i64> {
    let positive = digits.strip_prefix(b"-").unwrap_or(digits);
    match positive {
        b"0" if positive.len() == digits.len() => Some(0),
        [b'1'..=b'9', ..] => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// The reason why input is not a valid frame. The connection must close: the start of the next command is
/// unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FrameError {
    #[error("invalid multibulk length, wanted at most {MAX_ARGUMENTS}")]
    Count,
    #[error("invalid bulk length, wanted 0 to {MAX_ARGUMENT_BYTES}")]
    Length,
    #[error("expected '$', got '{}'", found.escape_ascii())]
    Expected { found: u8 },
    #[error("expected a line end after a bulk")]
    MissingLineEnd,
    #[error("too big request, wanted at most {MAX_COMMAND_BYTES} bytes")]
    TooLong,
    #[error(
        "too big inline request, wanted at most {MAX_LINE_BYTES} bytes and {MAX_ARGUMENTS} words"
    )]
    Inline,
    #[error("unbalanced quotes in request")]
    Quotes,
}

impl FrameError {
    /// Returns the reason why the input is invalid.
    pub(crate) fn reason(self) -> InvalidReason {
        match self {
            Self::TooLong | Self::Inline => InvalidReason::TooLarge,
            Self::Count
            | Self::Length
            | Self::Expected { .. }
            | Self::MissingLineEnd
            | Self::Quotes => InvalidReason::Undecodable,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Encodes a command as client libraries do.
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

    /// Returns every command of input in pieces, and the remaining bytes or the error.
    fn commands(pieces: &[&[u8]]) -> (Vec<Command>, Result<Vec<u8>, FrameError>) {
        let (mut found, mut buffer) = (Vec::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                let consumed = match Frame::read(&buffer) {
                    Ok(None) => break,
                    Ok(Some(Frame { arguments, length })) => {
                        found.push(arguments.into_iter().map(Cow::into_owned).collect());
                        length
                    }
                    Err(error) => return (found, Err(error)),
                };
                buffer.drain(..consumed);
            }
        }
        (found, Ok(buffer))
    }

    fn parse_error(input: &[u8]) -> String {
        let (_, ended) = commands(&[input]);
        ended.unwrap_err().to_string()
    }

    /// Generates bytes that are often frames, almost frames or line ends.
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
        fn encoded_commands_are_parsed_back(
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
    fn frame_above_the_bounds_is_rejected_before_it_is_complete() {
        assert_eq!(parse_error(b"*65\r\n"), "invalid multibulk length, wanted at most 64");
        assert_eq!(parse_error(b"*9223372036854775808\r\n"), parse_error(b"*65\r\n"));
        assert_eq!(parse_error(b"*111111111111111111111111"), parse_error(b"*65\r\n"));
        assert_eq!(parse_error(b"*1\r\n$16385\r\n"), "invalid bulk length, wanted 0 to 16384");
        assert_eq!(parse_error(b"*1\r\n$-1\r\n"), parse_error(b"*1\r\n$16385\r\n"));
        let mut long = b"*5\r\n".to_vec();
        for _ in 0..4 {
            long.extend_from_slice(b"$16000\r\n");
            long.extend_from_slice(&[b'x'; 16_000]);
            long.extend_from_slice(b"\r\n");
        }
        long.extend_from_slice(b"$2000\r\n");
        assert_eq!(parse_error(&long), "too big request, wanted at most 65536 bytes");
    }

    #[test]
    fn invalid_frame_is_rejected_with_the_text_of_redis() {
        assert_eq!(parse_error(b"*1\r\nfoo\r\n"), "expected '$', got 'f'");
        assert_eq!(parse_error(b"*1\r\n\x00"), "expected '$', got '\\x00'");
        for count in ["", "+1", "01", " 1", "1 ", "-0", "x", "1\rx"] {
            let input = format!("*{count}\r\n");
            assert!(
                parse_error(input.as_bytes()).starts_with("invalid multibulk length"),
                "{count}"
            );
        }
        assert_eq!(parse_error(b"*1\r\n$4\r\nPING!!"), "expected a line end after a bulk");
    }

    #[test]
    fn empty_array_is_a_command_without_arguments() {
        for input in [&b"*0\r\n"[..], b"*-1\r\n", b"*-10\r\n"] {
            let (found, ended) = commands(&[input]);
            assert_eq!((found, ended), (vec![Command::new()], Ok(Vec::new())));
        }
    }
}
