//! Parses inline commands: words on a line, with quotes around words that contain spaces.

use std::borrow::Cow;

use crate::resp::frame::{Arguments, Frame, FrameError, MAX_ARGUMENTS, MAX_LINE_BYTES};

/// Parses the line at the start of the input. Returns `None` while the line is incomplete.
///
/// # Errors
/// The line is too long, has too many words or unbalanced quotes.
pub(crate) fn read(input: &[u8]) -> Result<Option<Frame<'_>>, FrameError> {
    let bounded = &input[..input.len().min(MAX_LINE_BYTES + 1)];
    let Some(end) = bounded.iter().position(|byte| *byte == b'\n') else {
        return if bounded.len() > MAX_LINE_BYTES { Err(FrameError::Inline) } else { Ok(None) };
    };
    let line = &input[..end];
    let arguments = words(line.strip_suffix(b"\r").unwrap_or(line))?;
    Ok(Some(Frame { arguments, length: end + 1 }))
}

fn words(line: &[u8]) -> Result<Arguments<'_>, FrameError> {
    let mut words = Arguments::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        if words.len() == MAX_ARGUMENTS {
            return Err(FrameError::Inline);
        }
        let plain = rest.iter().position(|byte| is_space(*byte) || matches!(byte, b'"' | b'\''));
        let plain = plain.unwrap_or(rest.len());
        let quoted = rest.get(plain).is_some_and(|byte| !is_space(*byte));
        let (word, after) = if quoted {
            let (word, after) = unquote(rest)?;
            (Cow::Owned(word), after)
        } else {
            (Cow::Borrowed(&rest[..plain]), &rest[plain..])
        };
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Ok(words)
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace()
}

/// Returns a word without its quotes, and the rest of the line.
///
/// A quote may open anywhere in a word, and the closing quote ends the word, as in Redis.
fn unquote(line: &[u8]) -> Result<(Vec<u8>, &[u8]), FrameError> {
    let mut word = Vec::new();
    let mut at = 0;
    while let Some(byte) = line.get(at) {
        match byte {
            b'"' | b'\'' => {
                let end = read_quoted(line, at, &mut word)?;
                return match line.get(end) {
                    None => Ok((word, &[])),
                    Some(next) if is_space(*next) => Ok((word, &line[end..])),
                    Some(_) => Err(FrameError::Quotes),
                };
            }
            other if is_space(*other) => break,
            other => word.push(*other),
        }
        at += 1;
    }
    Ok((word, &line[at..]))
}

/// Appends the text between the quotes that open at `open`. Returns the index after the closing quote.
fn read_quoted(line: &[u8], open: usize, word: &mut Vec<u8>) -> Result<usize, FrameError> {
    let quote = line[open];
    let mut at = open + 1;
    loop {
        match &line[at..] {
            [] => return Err(FrameError::Quotes),
            [byte, ..] if *byte == quote => return Ok(at + 1),
            [b'\\', b'x', high, low, ..] if quote == b'"' && hex(*high, *low).is_some() => {
                word.extend(hex(*high, *low));
                at += 4;
            }
            [b'\\', escaped, ..] if quote == b'"' => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                at += 2;
            }
            [b'\\', b'\'', ..] if quote == b'\'' => {
                word.push(b'\'');
                at += 2;
            }
            [byte, ..] => {
                word.push(*byte);
                at += 1;
            }
        }
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? * 16 + digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(line: &[u8]) -> Result<Vec<Vec<u8>>, FrameError> {
        let arguments = words(line)?;
        Ok(arguments.into_iter().map(Cow::into_owned).collect())
    }

    #[test]
    fn line_is_split_into_words_like_in_redis() {
        let cases: [(&[u8], &[&[u8]]); 10] = [
            (b"PING", &[b"PING"]),
            (b"  cl.throttle\tkey  1 2 3 ", &[b"cl.throttle", b"key", b"1", b"2", b"3"]),
            (b"   ", &[]),
            (br#"ECHO "a b""#, &[b"ECHO", b"a b"]),
            (br#"ECHO 'a "b"'"#, &[b"ECHO", br#"a "b""#]),
            (br#"ECHO "\x41\n\t\"\\\z\xzz""#, &[b"ECHO", b"A\n\t\"\\zxzz"]),
            (br"ECHO 'it\'s \n'", &[b"ECHO", br"it's \n"]),
            (br#"ECHO """#, &[b"ECHO", b""]),
            (br#"ECHO pre"fix""#, &[b"ECHO", b"prefix"]),
            (b"ECHO \xff\x00", &[b"ECHO", b"\xff\x00"]),
        ];
        for (line, expected) in cases {
            assert_eq!(words_of(line).unwrap(), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn unbalanced_quotes_are_rejected() {
        for line in [&br#"ECHO "a"#[..], br"ECHO 'a", br#"ECHO "a"b"#, br"ECHO 'a''b'", b"\""] {
            assert_eq!(words_of(line), Err(FrameError::Quotes), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn carriage_return_before_the_line_end_is_optional() {
        for line in [&b"PING\r\n"[..], b"PING\n"] {
            let Ok(Some(Frame { arguments, length })) = read(line) else { panic!("no command") };
            assert_eq!(
                (arguments.as_slice(), length),
                (&[Cow::Borrowed(&b"PING"[..])][..], line.len())
            );
        }
    }

    #[test]
    fn line_above_the_bounds_is_rejected_with_and_without_its_end() {
        let mut line = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(read(&line), Ok(None));
        line.push(b'x');
        assert_eq!(read(&line), Err(FrameError::Inline));
        line.push(b'\n');
        assert_eq!(read(&line), Err(FrameError::Inline));
        let many = b"x ".repeat(MAX_ARGUMENTS + 1);
        assert_eq!(words(&many), Err(FrameError::Inline));
    }
}
