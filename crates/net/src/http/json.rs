//! A JSON tree that borrows from the request body, with limited depth.
//!
//! Calls are parsed from this tree and not directly into structs, so that every error has the path, the found and the
//! wanted value.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tidegate_core::{CallError, InvalidReason, quote, truncate};

/// Deepest level of a call: Envoy's has descriptors, each with entries, in lists and objects.
const MAX_DEPTH: usize = 5;

/// One JSON value.
#[derive(Debug)]
pub enum Json<'a> {
    Null,
    Bool(bool),
    /// A whole number that is not negative.
    Whole(u64),
    /// Any other number, as text.
    Number(String),
    Text(Cow<'a, str>),
    /// Empty beyond the deepest level.
    List(Vec<Json<'a>>),
    /// Empty beyond the deepest level.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// Parses a whole body.
    ///
    /// # Errors
    /// The body is empty or not JSON.
    pub fn read(body: &'a [u8]) -> Result<Self, CallError> {
        let mut reader = serde_json::Deserializer::from_slice(body);
        let read =
            ValueSeed(0).deserialize(&mut reader).and_then(|json| reader.end().map(|()| json));
        read.map_err(|error| {
            let found = match body {
                [] => "nothing".to_owned(),
                _ => format!("bytes that are no JSON ({error})"),
            };
            CallError::invalid("body", found, "a JSON object").because(InvalidReason::Undecodable)
        })
    }

    /// Returns the value as an error shows it: `-1`, `"abc"`, `a list`.
    pub fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Whole(number) => number.to_string(),
            Self::Number(text) => text.clone(),
            Self::Text(text) => quote(text),
            Self::List(_) => "a list".to_owned(),
            Self::Object(_) => "an object".to_owned(),
        }
    }
}

/// Returns the values of the known fields of an object. A null field counts as absent.
///
/// # Errors
/// The value is not an object, or has an unknown or repeated field.
pub fn fields<'a, const N: usize>(
    json: Json<'a>,
    known: [&str; N],
    wanted: &str,
) -> Result<[Option<Json<'a>>; N], CallError> {
    let Json::Object(entries) = json else {
        return Err(CallError::invalid("body", json.shown(), format!("an object of {wanted}")));
    };
    let mut values = [const { None }; N];
    let mut seen = [false; N];
    for (name, value) in entries {
        let Some(index) = known.iter().position(|known| *known == name) else {
            let path = if name.is_empty() { "body".into() } else { truncate(&name) };
            return Err(CallError::invalid(path, "an unknown field", wanted));
        };
        if std::mem::replace(&mut seen[index], true) {
            return Err(CallError::invalid(truncate(&name), "it twice", "it once"));
        }
        values[index] = match value {
            Json::Null => None,
            value => Some(value),
        };
    }
    Ok(values)
}

/// Returns the text of a string value. `path` names it in the error.
///
/// # Errors
/// The value is not a string; numbers are not converted.
pub fn text<'a>(path: &str, json: Json<'a>) -> Result<Cow<'a, str>, CallError> {
    match json {
        Json::Text(text) => Ok(text),
        other => Err(CallError::invalid(path, other.shown(), "a text")),
    }
}

/// Returns a whole number that is not negative. `path` names it in the error.
///
/// # Errors
/// The value is not such a number, or is larger than `u64::MAX`.
pub fn whole_number(path: &str, json: &Json<'_>) -> Result<u64, CallError> {
    match json {
        Json::Whole(number) => Ok(*number),
        other => {
            let wanted = format!("a whole number from 0 to {}", u64::MAX);
            Err(CallError::invalid(path, other.shown(), wanted))
        }
    }
}

/// Pairs of a name and its value.
pub type TextPairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// Returns the names and values of an object in which every value is a string. `path` names it in the error.
///
/// # Errors
/// The value is not an object, or one of its values is not a string.
pub fn text_pairs<'a>(path: &str, json: Json<'a>) -> Result<TextPairs<'a>, CallError> {
    let Json::Object(entries) = json else {
        return Err(CallError::invalid(path, json.shown(), "an object of texts"));
    };
    let pairs = entries.into_iter().map(|(name, value)| match value {
        Json::Text(value) => Ok((name, value)),
        other => {
            Err(CallError::invalid(format!("{path}.{}", truncate(&name)), other.shown(), "a text"))
        }
    });
    pairs.collect()
}

/// Parses a value at this depth of the tree.
struct ValueSeed(usize);

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Whole(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json<'de>, E> {
        Ok(Json::Number(format!("{number:?}")))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(text.to_owned().into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json<'de>, A::Error> {
        let mut items = Vec::new();
        if self.0 < MAX_DEPTH {
            while let Some(item) = list.next_element_seed(ValueSeed(self.0 + 1))? {
                items.push(item);
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json<'de>, A::Error> {
        let mut entries = Vec::new();
        if self.0 < MAX_DEPTH {
            entries.reserve(4);
            while let Some(name) = map.next_key_seed(TextSeed)? {
                entries.push((name, map.next_value_seed(ValueSeed(self.0 + 1))?));
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Json::Object(entries))
    }
}

/// Parses a text, borrowed unless it has escapes.
#[derive(Clone, Copy, Debug)]
pub struct TextSeed;

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for TextSeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(text.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(text.to_owned().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_beyond_the_maximum_depth_are_parsed_and_dropped() {
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        let mut json = &Json::read(deep.as_bytes()).unwrap();
        let mut levels = 0;
        while let Json::List(items) = json
            && let [item] = items.as_slice()
        {
            (json, levels) = (item, levels + 1);
        }
        assert_eq!(levels, MAX_DEPTH);
        assert_eq!(json.shown(), "a list");
    }

    #[test]
    fn invalid_json_and_an_empty_body_have_different_errors() {
        let shown = |body: &[u8]| Json::read(body).unwrap_err().to_string();
        assert_eq!(shown(b""), "body: found nothing, wanted a JSON object");
        assert_eq!(
            shown(b"{\"rule\": api}"),
            "body: found bytes that are no JSON (expected value at line 1 column 10), wanted a JSON object"
        );
        for body in [b"{} {}".as_slice(), b"\"\xff\"", &[b'['; 200]] {
            assert!(shown(body).starts_with("body: found bytes that are no JSON"));
        }
    }
}
