//! The Common Log Format, and the combined one.

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr2};
use tidegate_core::escape_bytes;

use crate::log::{LineError, LineFields, LogFormat, present, time};

/// The wanted headers of a combined line, by their index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CombinedHeaders {
    pub(crate) referer: Option<usize>,
    pub(crate) user_agent: Option<usize>,
}

/// Reads `192.0.2.7 - alice [10/Oct/2026:13:55:36 +0000] "GET /v1 HTTP/1.1" 200 512 "referer" "agent"`, perhaps
/// with the name of a virtual host before it, and anything behind it.
pub(crate) fn read(
    line: &str,
    format: LogFormat,
    headers: CombinedHeaders,
) -> Result<LineFields<'_>, LineError> {
    let open = memchr(b'[', line.as_bytes());
    let (client, rest) = open.map(|open| (&line[..open], &line[open + 1..])).ok_or_else(|| {
        LineError::new(line, "an address, a user, a time in brackets and a request in quotes")
    })?;
    let mut fields = LineFields::default();
    caller(client, &mut fields)?;
    let close = memchr(b']', rest.as_bytes()).ok_or_else(|| LineError::new(rest, time::WANTED))?;
    let when = &rest[..close];
    let at = time::common(when.as_bytes()).or_else(|| time::read(when));
    fields.at = Some(at.ok_or_else(|| LineError::new(when, time::WANTED))?);
    let (request, rest) = quoted(&rest[close + 1..], "a request in quotes")?;
    fields.request_line(request)?;
    let wants = headers.referer.is_some() || headers.user_agent.is_some();
    if format == LogFormat::Combined || (wants && format != LogFormat::Common) {
        let (referer, rest) = match quoted(rest, "a referer in quotes") {
            // A common line has none.
            Err(_) if format == LogFormat::Auto => return Ok(fields),
            referer => referer?,
        };
        let (user_agent, _) = quoted(rest, "a user agent in quotes")?;
        for (place, value) in [(headers.referer, referer), (headers.user_agent, user_agent)] {
            if let (Some(place), Some(_)) = (place, present(&value)) {
                fields.headers.push((place, value));
            }
        }
    }
    Ok(fields)
}

/// Reads `192.0.2.7 - alice`, or `shop.example:443 192.0.2.7 - alice`.
fn caller<'l>(client: &'l str, fields: &mut LineFields<'l>) -> Result<(), LineError> {
    let wanted = "an address, an identity and a user";
    let client = client.trim_end();
    let (first, rest) = client.split_once(' ').ok_or_else(|| LineError::new(client, wanted))?;
    let (second, rest) = rest.split_once(' ').ok_or_else(|| LineError::new(client, wanted))?;
    let (address, user) = match rest.split_once(' ') {
        Some((_, user)) if second.parse::<IpAddr>().is_ok() => {
            fields.host = present(first).map(Cow::from);
            (second, user)
        }
        // A user may have spaces in its name.
        _ => (first, rest),
    };
    fields.address = present(address).map(Cow::from);
    fields.user = present(user).map(Cow::from);
    Ok(())
}

/// Returns the next text in quotes, and the rest after it.
fn quoted<'l>(text: &'l str, wanted: &'static str) -> Result<(Cow<'l, str>, &'l str), LineError> {
    let wrong = || match text.trim() {
        "" => LineError::nothing(wanted),
        found => LineError::new(found, wanted),
    };
    let start = memchr(b'"', text.as_bytes()).ok_or_else(wrong)? + 1;
    let (mut at, mut escaped) = (start, false);
    loop {
        let rest = text.as_bytes().get(at..).ok_or_else(wrong)?;
        let found = at + memchr2(b'"', b'\\', rest).ok_or_else(wrong)?;
        if text.as_bytes()[found] == b'"' {
            let inside = &text[start..found];
            let inside = if escaped { unescaped(inside).into() } else { inside.into() };
            return Ok((inside, &text[found + 1..]));
        }
        // A character after a backslash does not end the text.
        (at, escaped) = (found + 2, true);
    }
}

/// Decodes `\"`, `\\`, `\t` and `\x22`. Bytes that are not UTF-8 are escaped as in a live request.
fn unescaped(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            plain.push(*byte);
            continue;
        }
        let hex = after.get(1..3).and_then(|digits| str::from_utf8(digits).ok());
        let hex = hex.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (letter, taken) = match (after.first(), hex) {
            (Some(b'x'), Some(byte)) => (byte, 3),
            (Some(b't'), _) => (b'\t', 1),
            (Some(b'n'), _) => (b'\n', 1),
            (Some(b'r'), _) => (b'\r', 1),
            (Some(letter), _) => (*letter, 1),
            (None, _) => (b'\\', 0),
        };
        plain.push(letter);
        rest = &after[taken..];
    }
    escape_bytes(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CombinedHeaders = CombinedHeaders { referer: Some(0), user_agent: Some(1) };

    fn shown(line: &str, format: LogFormat) -> String {
        match read(line, format, ALL) {
            Ok(fields) => {
                let headers: Vec<String> =
                    fields.headers.iter().map(|(place, text)| format!("{place}={text}")).collect();
                let text =
                    |field: &Option<Cow<'_, str>>| field.as_deref().unwrap_or("-").to_owned();
                let LineFields { address, user, method, target, host, .. } = &fields;
                let [address, user, method, target, host] =
                    [address, user, method, target, host].map(text);
                format!("{address} {user} {method} {target} {host} {}", headers.join(" "))
            }
            Err(LineError { found, wanted }) => format!("found {found}, wanted {wanted}"),
        }
    }

    #[test]
    fn lines_of_all_known_servers_are_parsed() {
        let time = "[10/Oct/2026:13:55:36 +0000]";
        let cases = [
            (r#"192.0.2.7 - - TIME "GET /v1?a=b HTTP/1.1" 200 5"#, "192.0.2.7 - GET /v1?a=b - "),
            (
                r#"192.0.2.7 - alice TIME "GET / HTTP/2.0" 200 5 "http://a/" "curl/8""#,
                "192.0.2.7 alice GET / - 0=http://a/ 1=curl/8",
            ),
            (
                r#"2001:db8::1 - - TIME "POST /a b HTTP/1.1" 200 5 "-" "a \"b\" \x5c" "10.0.0.1" rt=0.1"#,
                r#"2001:db8::1 - POST /a b - 1=a "b" \"#,
            ),
            (
                r#"shop.example:443 192.0.2.7 - bob TIME "GET / HTTP/1.1" 200 5"#,
                "192.0.2.7 bob GET / shop.example:443 ",
            ),
            (r#"192.0.2.7 - bob smith TIME "GET /" 200 5"#, "192.0.2.7 bob smith GET / - "),
        ];
        for (line, wanted) in cases {
            assert_eq!(shown(&line.replace("TIME", time), LogFormat::Auto), wanted);
        }
    }

    #[test]
    fn error_names_the_missing_part() {
        let time = "[10/Oct/2026:13:55:36 +0000]";
        let cases = [
            (
                "",
                "found \"\", wanted an address, a user, a time in brackets and a request in quotes",
            ),
            ("192.0.2.7 [x", "found \"192.0.2.7\", wanted an address, an identity and a user"),
            ("a - - [now] \"GET / HTTP/1.1\"", "found \"now\", wanted a time like"),
            ("a - - TIME", "found nothing, wanted a request in quotes"),
            ("a - - TIME \"GET / HTTP", "found \"\\\"GET / HTTP\", wanted a request in quotes"),
            (r#"a - - TIME "\x16\x03\x01" 400 0"#, "wanted a request line: a method and a target"),
            (r#"a - - TIME "-" 408 0"#, "found \"-\", wanted a request line"),
        ];
        for (line, wanted) in cases {
            let error_text = shown(&line.replace("TIME", time), LogFormat::Common);
            assert!(error_text.contains(wanted), "{error_text}");
        }
        let common = format!(r#"a - - {time} "GET / HTTP/1.1" 200 5"#);
        let error_text = shown(&common, LogFormat::Combined);
        assert_eq!(error_text, "found \"200 5\", wanted a referer in quotes");
    }
}
