//! Commands as people type them into a raw connection: words on a line, quotes around what has spaces.

use std::borrow::Cow;

use super::{Arguments, Frame, MAX_ARGUMENTS, MAX_INLINE, Malformed};

pub(super) fn read(input: &[u8]) -> Result<Option<Frame<'_>>, Malformed> {
    let within = &input[..input.len().min(MAX_INLINE + 1)];
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        return if within.len() > MAX_INLINE { Err(Malformed::Inline) } else { Ok(None) };
    };
    let line = &input[..end];
    let arguments = words(line.strip_suffix(b"\r").unwrap_or(line))?;
    Ok(Some(Frame { arguments, length: end + 1 }))
}

fn words(line: &[u8]) -> Result<Arguments<'_>, Malformed> {
    let mut words = Arguments::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        if words.len() == MAX_ARGUMENTS {
            return Err(Malformed::Inline);
        }
        let plain = rest.iter().position(|byte| is_space(*byte) || matches!(byte, b'"' | b'\''));
        let plain = plain.unwrap_or(rest.len());
        let quoted = rest.get(plain).is_some_and(|byte| !is_space(*byte));
        let (word, after) = if quoted {
            let (word, after) = unquoted(rest)?;
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

/// A word with quotes in it, without them, and what follows it.
///
/// A quote that closes also ends the word. Redis takes one that opens anywhere in a word, and so does
/// this.
fn unquoted(line: &[u8]) -> Result<(Vec<u8>, &[u8]), Malformed> {
    let mut word = Vec::new();
    let mut at = 0;
    while let Some(byte) = line.get(at) {
        match byte {
            b'"' | b'\'' => {
                let end = quotation(line, at, &mut word)?;
                return match line.get(end) {
                    None => Ok((word, &[])),
                    Some(next) if is_space(*next) => Ok((word, &line[end..])),
                    Some(_) => Err(Malformed::Quotes),
                };
            }
            other if is_space(*other) => break,
            other => word.push(*other),
        }
        at += 1;
    }
    Ok((word, &line[at..]))
}

/// Adds what stands between quotes, of which the first is at `open`; where the line goes on after them.
fn quotation(line: &[u8], open: usize, word: &mut Vec<u8>) -> Result<usize, Malformed> {
    let quote = line[open];
    let mut at = open + 1;
    loop {
        match &line[at..] {
            [] => return Err(Malformed::Quotes),
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

    fn words_of(line: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        let arguments = words(line)?;
        Ok(arguments.into_iter().map(Cow::into_owned).collect())
    }

    #[test]
    fn a_line_is_split_as_redis_splits_it() {
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
    fn quotes_that_do_not_match_are_refused() {
        for line in [&br#"ECHO "a"#[..], br"ECHO 'a", br#"ECHO "a"b"#, br"ECHO 'a''b'", b"\""] {
            assert_eq!(words_of(line), Err(Malformed::Quotes), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_line_ends_with_or_without_a_carriage_return() {
        for line in [&b"PING\r\n"[..], b"PING\n"] {
            let Ok(Some(Frame { arguments, length })) = read(line) else { panic!("no command") };
            assert_eq!(
                (arguments.as_slice(), length),
                (&[Cow::Borrowed(&b"PING"[..])][..], line.len())
            );
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_with_and_without_its_end() {
        let mut line = vec![b'x'; MAX_INLINE];
        assert_eq!(read(&line), Ok(None));
        line.push(b'x');
        assert_eq!(read(&line), Err(Malformed::Inline));
        line.push(b'\n');
        assert_eq!(read(&line), Err(Malformed::Inline));
        let many = b"x ".repeat(MAX_ARGUMENTS + 1);
        assert_eq!(words(&many), Err(Malformed::Inline));
    }
}
