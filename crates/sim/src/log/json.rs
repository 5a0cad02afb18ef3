//! Lines of JSON: wanted values are read, all others skipped.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::log::field_names::{FieldNames, FieldSlot};
use crate::log::{LineError, LineFields, present, time};

/// Reads an object by the names of its fields.
pub(crate) fn read<'l>(line: &'l str, names: &FieldNames) -> Result<LineFields<'l>, LineError> {
    let mut found = FoundFields(SmallVec::new());
    let mut json = serde_json::Deserializer::from_str(line);
    let walked = FieldVisitor { names, found: &mut found }.deserialize(&mut json);
    walked.and_then(|()| json.end()).map_err(|error| {
        // The position: a line has columns only.
        let (at, why) = (error.column(), error.to_string());
        let why = why.split(" at line ").next().unwrap_or_default();
        let near = line.get(at.saturating_sub(1)..).filter(|near| !near.is_empty());
        match near {
            Some(near) => LineError::new(near, format!("JSON at column {at}: {why}")),
            None => LineError::nothing(format!("JSON at column {at}: {why}")),
        }
    })?;
    found.fields()
}

/// A value that may be used.
#[derive(Debug)]
enum JsonValue<'l> {
    Text(Cow<'l, str>),
    Number(f64),
}

impl<'l> JsonValue<'l> {
    fn text(self) -> Cow<'l, str> {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string().into(),
        }
    }
}

/// The values found so far, each by the best of its names.
struct FoundFields<'l>(SmallVec<[(FieldSlot, usize, JsonValue<'l>); 10]>);

impl<'l> FoundFields<'l> {
    fn add(&mut self, (slot, rank): (FieldSlot, usize), value: JsonValue<'l>) {
        match self.0.iter_mut().find(|(known, ..)| *known == slot) {
            None => self.0.push((slot, rank, value)),
            Some(known) if rank < known.1 => *known = (slot, rank, value),
            Some(_) => {}
        }
    }

    fn fields(self) -> Result<LineFields<'l>, LineError> {
        let mut fields = LineFields::default();
        let mut request_line = None;
        for (slot, _, value) in self.0 {
            if slot == FieldSlot::Time {
                let at = match &value {
                    JsonValue::Number(number) => time::unix(*number),
                    JsonValue::Text(text) => time::read(text),
                };
                let wrong = || LineError::new(&value.text(), time::WANTED);
                fields.at = Some(at.ok_or_else(wrong)?);
                continue;
            }
            let text = value.text();
            if present(&text).is_none() {
                continue;
            }
            match slot {
                FieldSlot::Time => {}
                FieldSlot::Address => fields.address = Some(text),
                FieldSlot::User => fields.user = Some(text),
                FieldSlot::Method => fields.method = Some(text),
                FieldSlot::Target => fields.target = Some(text),
                FieldSlot::Host => fields.host = Some(text),
                FieldSlot::RequestLine => request_line = Some(text),
                FieldSlot::Header(index) => fields.headers.push((index, text)),
                FieldSlot::Given(index) => fields.given.push((index, text)),
            }
        }
        if let Some(line) = request_line.filter(|_| fields.target.is_none()) {
            fields.request_line(line)?;
        }
        match fields.at {
            Some(_) => Ok(fields),
            None => {
                Err(LineError::nothing("a time: time, ts, timestamp, msec, or --field time=NAME"))
            }
        }
    }
}

/// A value, and the fields inside it.
struct FieldVisitor<'n, 'f, 'l> {
    names: &'n FieldNames,
    found: &'f mut FoundFields<'l>,
}

impl<'l> DeserializeSeed<'l> for FieldVisitor<'_, '_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'l> FieldVisitor<'_, '_, 'l> {
    fn take<E>(self, value: JsonValue<'l>) -> Result<(), E> {
        if let Some(slot) = self.names.slot {
            self.found.add(slot, value);
        }
        Ok(())
    }
}

impl<'l> Visitor<'l> for FieldVisitor<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_borrowed_str<E>(self, text: &'l str) -> Result<(), E> {
        self.take(JsonValue::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.take(JsonValue::Text(text.to_owned().into()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.take(JsonValue::Text(if value { "true" } else { "false" }.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        match self.names.slot {
            Some((FieldSlot::Time, _)) => self.take(JsonValue::Number(number as f64)),
            Some(_) => self.take(JsonValue::Text(number.to_string().into())),
            None => Ok(()),
        }
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.take(JsonValue::Text(number.to_string().into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.take(JsonValue::Number(number))
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    /// Reads the first of several values, as Caddy writes headers.
    fn visit_seq<A: SeqAccess<'l>>(self, mut seq: A) -> Result<(), A::Error> {
        seq.next_element_seed(self)?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(under) = map.next_key_seed(KeyVisitor(self.names))? {
            match under.filter(|names| names.slot.is_some() || names.is_deep()) {
                Some(names) => {
                    map.next_value_seed(FieldVisitor { names, found: &mut *self.found })?;
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A name, and the fields under it.
struct KeyVisitor<'n>(&'n FieldNames);

impl<'l, 'n> DeserializeSeed<'l> for KeyVisitor<'n> {
    type Value = Option<&'n FieldNames>;

    fn deserialize<D: Deserializer<'l>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'n> Visitor<'_> for KeyVisitor<'n> {
    type Value = Option<&'n FieldNames>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.under(name))
    }
}
