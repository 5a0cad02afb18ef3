//! Parsing of paths and queries, with percent-decoding.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use tidegate_core::{CallError, quote, truncate};

/// Most pairs of one query.
const MAX_PAIRS: usize = 64;

type QueryPair<'q> = (Cow<'q, str>, Cow<'q, str>);

/// Parses the pairs of a query, in their order.
///
/// # Errors
/// A name occurs twice, there are too many pairs, or a text is no UTF-8.
pub(crate) fn pairs(query: Option<&str>) -> Result<Vec<QueryPair<'_>>, CallError> {
    let mut pairs: Vec<QueryPair<'_>> = Vec::new();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode_form("query", name)?, decode_form("query", value)?);
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(CallError::invalid(truncate(&name), "it twice", "it once"));
        }
        if pairs.len() == MAX_PAIRS {
            return Err(CallError::invalid("query", "more", format!("at most {MAX_PAIRS} pairs")));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// Returns the values of `names` in a query.
///
/// # Errors
/// As [`pairs`], or the query has another name.
pub(crate) fn known<'q, const N: usize>(
    query: Option<&'q str>,
    names: [&str; N],
    wanted: &str,
) -> Result<[Option<Cow<'q, str>>; N], CallError> {
    let mut values = [const { None }; N];
    for (name, value) in pairs(query)? {
        let Some(index) = names.iter().position(|known| *known == name) else {
            return Err(CallError::invalid("query", quote(&name), wanted));
        };
        values[index] = Some(value);
    }
    Ok(values)
}

/// Parses a whole number from 1 to `max`. Without a value it is `default`.
pub(crate) fn number(
    name: &str,
    value: Option<&str>,
    default: usize,
    max: usize,
) -> Result<usize, CallError> {
    let Some(value) = value else { return Ok(default) };
    let number = value.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| {
        CallError::invalid(name, quote(value), format!("a whole number from 1 to {max}"))
    })
}

/// Decodes a segment of a path. A plus is not an escape there.
pub(crate) fn decode_segment<'p>(path: &str, text: &'p str) -> Result<Cow<'p, str>, CallError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| CallError::invalid(path, "bytes that are no text", "text in UTF-8"))
}

/// Decodes a name or value of a query, where a plus is a space.
fn decode_form<'p>(path: &str, text: &'p str) -> Result<Cow<'p, str>, CallError> {
    if !text.contains('+') {
        return decode_segment(path, text);
    }
    let spaced = text.replace('+', " ");
    Ok(decode_segment(path, &spaced)?.into_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_once() {
        let read = pairs(Some("a=1&path=%2Fv1%2F%3Fx%3D1%26&b+c=d+e%2B&empty&")).unwrap();
        let read: Vec<(&str, &str)> =
            read.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(read, [("a", "1"), ("path", "/v1/?x=1&"), ("b c", "d e+"), ("empty", "")]);
        assert_eq!(decode_segment("client", "a+b%2Fc%252F").unwrap(), "a+b/c%2F");
        assert_eq!(pairs(None).unwrap(), []);
    }

    #[test]
    fn invalid_queries_are_rejected_with_the_cause() {
        let error = |query| pairs(Some(query)).unwrap_err().to_string();
        assert_eq!(error("a=1&a=2"), "a: found it twice, wanted it once");
        assert_eq!(error("a=%ff"), "query: found bytes that are no text, wanted text in UTF-8");
        let many: Vec<String> = (0..65).map(|index| format!("a{index}")).collect();
        assert_eq!(error(&many.join("&")), "query: found more, wanted at most 64 pairs");
        let unknown = known(Some("b=1"), ["a"], "a").unwrap_err().to_string();
        assert_eq!(unknown, r#"query: found "b", wanted a"#);
        for value in ["0", "-1", "x", "", "101"] {
            assert!(number("limit", Some(value), 20, 100).is_err(), "{value}");
        }
        assert_eq!(number("limit", None, 20, 100), Ok(20));
    }
}
