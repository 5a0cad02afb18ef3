//! A strict parser of request framing.

/// A parsed value with its length in bytes, `None` while bytes are missing, or the reason of a rejection.
pub(crate) type FramedResult<T> = Result<Option<(T, usize)>, &'static str>;

/// The framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyLength {
    None,
    Sized(usize),
    Chunked,
}

/// Returns a request line and its fields.
pub(crate) fn head(bytes: &[u8]) -> FramedResult<(String, BodyLength)> {
    let Some(end) = position(bytes, b"\r\n\r\n") else {
        return match lone_line_end(bytes) {
            true => Err("a line that ends in LF or CR alone"),
            false => Ok(None),
        };
    };
    if lone_line_end(&bytes[..end]) {
        return Err("a line that ends in LF or CR alone");
    }
    let text = str::from_utf8(&bytes[..end + 2]).map_err(|_| "a head that is no text")?;
    let mut lines = text.split_terminator("\r\n");
    let parts: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [_, target, "HTTP/1.1"] = parts.as_slice() else {
        return Err("no request line of HTTP/1.1");
    };
    let (mut lengths, mut encodings, mut hosts) = (Vec::new(), Vec::new(), 0);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a field without a colon")?;
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err("a field whose name is none");
        }
        if value.bytes().any(|byte| byte < b' ' && byte != b'\t') {
            return Err("a field with a control character");
        }
        match name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(value.trim()),
            "transfer-encoding" => encodings.push(value.trim()),
            "host" => hosts += 1,
            _ => {}
        }
    }
    if hosts != 1 || target.is_empty() {
        return Err("not one host");
    }
    let length = match (lengths.as_slice(), encodings.as_slice()) {
        ([], []) => BodyLength::None,
        ([], [encoding]) if encoding.eq_ignore_ascii_case("chunked") => BodyLength::Chunked,
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            BodyLength::Sized(length.parse().map_err(|_| "a length that is none")?)
        }
        _ => return Err("not one length"),
    };
    Ok(Some(((text.to_owned(), length), end + 4)))
}

/// Returns a body of known length.
pub(crate) fn sized(bytes: &[u8], length: usize) -> FramedResult<Vec<u8>> {
    Ok(bytes.get(..length).map(|body| (body.to_vec(), length)))
}

/// Returns a body in chunks, with trailers or without.
pub(crate) fn chunked(bytes: &[u8]) -> FramedResult<Vec<u8>> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some((line, next)) = line(bytes, at)? else { return Ok(None) };
        let is_hex = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex || line.len() > 8 {
            return Err("a chunk size that is none");
        }
        let size = usize::from_str_radix(line, 16).map_err(|_| "a chunk size that is none")?;
        if size == 0 {
            at = next;
            break;
        }
        let Some(chunk) = bytes.get(next..next + size + 2) else { return Ok(None) };
        let (chunk, end) = chunk.split_at(size);
        if end != b"\r\n" {
            return Err("a chunk that is longer than it says");
        }
        body.extend_from_slice(chunk);
        at = next + size + 2;
    }
    // Trailers, and an empty line.
    loop {
        let Some((line, next)) = line(bytes, at)? else { return Ok(None) };
        if line.is_empty() {
            return Ok(Some((body, next)));
        }
        at = next;
    }
}

/// Returns the line at `at` without its end, and where the next one begins.
fn line(bytes: &[u8], at: usize) -> Result<Option<(&str, usize)>, &'static str> {
    let rest = bytes.get(at..).unwrap_or_default();
    let Some(end) = position(rest, b"\n") else { return Ok(None) };
    let line = rest[..end].strip_suffix(b"\r").ok_or("a line that ends in LF alone")?;
    let line = str::from_utf8(line).map_err(|_| "a line that is no text")?;
    Ok(Some((line, at + end + 1)))
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn lone_line_end(bytes: &[u8]) -> bool {
    let lone_lf = |(at, byte): (usize, &u8)| *byte == b'\n' && (at == 0 || bytes[at - 1] != b'\r');
    // A CR at the end may still get its LF.
    let lone_cr = |pair: &[u8]| pair[0] == b'\r' && pair[1] != b'\n';
    bytes.iter().enumerate().any(lone_lf) || bytes.windows(2).any(lone_cr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Result<Option<BodyLength>, &'static str> {
        Ok(head(text.as_bytes())?.map(|((_, length), _)| length))
    }

    #[test]
    fn head_is_parsed_when_it_is_complete() {
        assert_eq!(whole("GET / HTTP/1.1\r\nhost: a\r\n\r"), Ok(None));
        assert_eq!(whole("GET / HTTP/1.1\r\nhost: a\r\n\r\nmore"), Ok(Some(BodyLength::None)));
        let sized = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(whole(sized), Ok(Some(BodyLength::Sized(5))));
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(whole(chunked), Ok(Some(BodyLength::Chunked)));
    }

    #[test]
    fn ambiguous_framing_is_a_fault() {
        for fields in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 5, 5\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding : chunked\r\n",
            "A: b\r\n c: d\r\n",
            "A: b\nContent-Length: 5\r\n",
            "Host: b\r\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            assert!(whole(&text).is_err(), "{fields:?}");
        }
    }

    #[test]
    fn chunks_are_joined_and_trailers_skipped() {
        let bytes = b"3\r\nabc\r\n2\r\nde\r\n0\r\nx: y\r\n\r\nGET";
        assert_eq!(chunked(bytes), Ok(Some((b"abcde".to_vec(), bytes.len() - 3))));
        for length in 0..bytes.len() - 3 {
            assert_eq!(chunked(&bytes[..length]), Ok(None), "{length}");
        }
        for broken in ["3;x=y\r\nabc\r\n", "3\r\nabcd\r\n", "0x3\r\nabc\r\n", "3\nabc\r\n"] {
            assert!(chunked(broken.as_bytes()).is_err(), "{broken:?}");
        }
        assert!(chunked(b"fffffffffffffffff\r\n").is_err());
    }
}
