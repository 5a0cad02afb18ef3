//! A node as it comes out of the parser, before its spelling is restored.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::{Name, Node, Value};
use crate::rule::mark::Mark;

/// A node of which numbers and booleans have lost their spelling.
pub(super) struct Found<'y> {
    at: Mark,
    /// Where in the source its text is: first byte and length.
    spelled: (u32, u32),
    shape: Shape<'y>,
}

enum Shape<'y> {
    Nothing,
    Text(Cow<'y, str>),
    /// A number or a boolean: the source still has its text.
    Inferred,
    List(Vec<Found<'y>>),
    Map(Vec<(Name<'y>, Found<'y>)>),
}

impl<'y> Found<'y> {
    /// The node with every spelling restored from the source.
    pub(super) fn settle(self, source: &'y str) -> Node<'y> {
        let value = match self.shape {
            Shape::Nothing => Value::Nothing,
            Shape::Text(text) => Value::Text(text),
            Shape::Inferred => Value::Text(spelling(source, self.spelled).into()),
            Shape::List(items) => {
                Value::List(items.into_iter().map(|item| item.settle(source)).collect())
            }
            Shape::Map(entries) => Value::Map(
                entries.into_iter().map(|(name, item)| (name, item.settle(source))).collect(),
            ),
        };
        Node { at: self.at, value }
    }
}

fn spelling(source: &str, (start, length): (u32, u32)) -> &str {
    let range = || {
        let start = usize::try_from(start).ok()?;
        let length = usize::try_from(length).ok()?;
        source.get(start..start.checked_add(length)?)
    };
    // Only a tag makes a number of a quoted text: `!!int "5"`.
    range().unwrap_or_default().trim_matches(['"', '\''])
}

/// What a location says about lines and columns.
pub(super) fn mark(location: Location) -> Mark {
    Mark::new(location.line(), location.column(), location.span().len())
}

/// What a location says about bytes; the text of a document fits the numbers with room to spare.
fn bytes(location: Location) -> Option<(u32, u32)> {
    let span = location.span();
    let start = u32::try_from(span.byte_offset()?).ok()?;
    Some((start, u32::try_from(span.byte_len()?).ok()?))
}

impl<'de> Deserialize<'de> for Found<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = Spanned::<Shape<'de>>::deserialize(deserializer)?;
        Ok(Self {
            at: mark(found.referenced),
            spelled: bytes(found.defined).unwrap_or_default(),
            shape: found.value,
        })
    }
}

impl<'de> Deserialize<'de> for Shape<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Shape::Nothing)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Shape::Inferred)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Shape::Inferred)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Shape::Inferred)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Shape::Inferred)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Shape::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Shape::Text(text.to_owned().into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Shape::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Shape::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            let name = Name { at: mark(name.referenced), text: name.value.into() };
            entries.push((name, map.next_value()?));
        }
        Ok(Shape::Map(entries))
    }
}
