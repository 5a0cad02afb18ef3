//! Paths and queries as an operator wrote them: escapes undone, everything else refused.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use tidegate_core::{CallError, quote, truncate};

/// Most pairs of one query.
const MOST: usize = 64;

type Pair<'q> = (Cow<'q, str>, Cow<'q, str>);

/// The pairs of a query, in their order; each name once.
pub(crate) fn pairs(query: Option<&str>) -> Result<Vec<Pair<'_>>, CallError> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (form("query", name)?, form("query", value)?);
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(CallError::invalid(truncate(&name), "it twice", "it once"));
        }
        if pairs.len() == MOST {
            return Err(CallError::invalid("query", "more", format!("at most {MOST} pairs")));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// The values of the known names of a query.
pub(crate) fn known<'q, const N: usize>(
    query: Option<&'q str>,
    names: [&str; N],
    wanted: &str,
) -> Result<[Option<Cow<'q, str>>; N], CallError> {
    let mut values = [const { None }; N];
    for (name, value) in pairs(query)? {
        let Some(place) = names.iter().position(|known| *known == name) else {
            return Err(CallError::invalid("query", quote(&name), wanted));
        };
        values[place] = Some(value);
    }
    Ok(values)
}

/// A whole number from 1 to `most`; without one, `usual`.
pub(crate) fn number(
    name: &str,
    value: Option<&str>,
    usual: usize,
    most: usize,
) -> Result<usize, CallError> {
    let Some(value) = value else { return Ok(usual) };
    let number = value.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| {
        CallError::invalid(name, quote(value), format!("a whole number from 1 to {most}"))
    })
}

/// A part of a path, in which a plus is a plus.
pub(crate) fn part<'p>(place: &str, part: &'p str) -> Result<Cow<'p, str>, CallError> {
    let decoded = percent_decode_str(part).decode_utf8();
    decoded.map_err(|_| CallError::invalid(place, "bytes that are no text", "text in UTF-8"))
}

/// A part of a query, in which a plus is a space.
fn form<'p>(place: &str, text: &'p str) -> Result<Cow<'p, str>, CallError> {
    if !text.contains('+') {
        return part(place, text);
    }
    let spaced = text.replace('+', " ");
    Ok(part(place, &spaced)?.into_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_once() {
        let read = pairs(Some("a=1&path=%2Fv1%2F%3Fx%3D1%26&b+c=d+e%2B&empty&")).unwrap();
        let read: Vec<(&str, &str)> =
            read.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(read, [("a", "1"), ("path", "/v1/?x=1&"), ("b c", "d e+"), ("empty", "")]);
        assert_eq!(part("client", "a+b%2Fc%252F").unwrap(), "a+b/c%2F");
        assert_eq!(pairs(None).unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let told = |query| pairs(Some(query)).unwrap_err().to_string();
        assert_eq!(told("a=1&a=2"), "a: found it twice, wanted it once");
        assert_eq!(told("a=%ff"), "query: found bytes that are no text, wanted text in UTF-8");
        let many: Vec<String> = (0..65).map(|index| format!("a{index}")).collect();
        assert_eq!(told(&many.join("&")), "query: found more, wanted at most 64 pairs");
        let unknown = known(Some("b=1"), ["a"], "a").unwrap_err().to_string();
        assert_eq!(unknown, r#"query: found "b", wanted a"#);
        for value in ["0", "-1", "x", "", "101"] {
            assert!(number("limit", Some(value), 20, 100).is_err(), "{value}");
        }
        assert_eq!(number("limit", None, 20, 100), Ok(20));
    }
}
