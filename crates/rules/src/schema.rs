//! JSON Schemas (draft 2020-12) of rules and configurations, for editors and for the reference.
//!
//! Keys stay in the order in which they were added, for readers.

mod rules;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

pub use rules::parts;

/// The schema of a value, with its description.
///
/// ```
/// use tidegate_rules::schema::Schema;
///
/// let limit = Schema::text("How much, and for how long").example("5 per minute");
/// let rule = Schema::map("One rule").required("limit", limit);
/// assert!(rule.to_json().contains(r#""required": ["#));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Schema {
    about: String,
    /// Everything but the description, the keys and the examples.
    constraints: Vec<(&'static str, Value)>,
    keys: Vec<(String, Schema)>,
    required: Vec<String>,
    /// Schema of the values of all other keys; without it no other keys are allowed.
    others: Option<Box<Schema>>,
    is_map: bool,
    items: Option<Box<Schema>>,
    choices: Vec<Schema>,
    usual: Option<Value>,
    examples: Vec<Value>,
    parts: Vec<(&'static str, Schema)>,
}

impl Schema {
    /// The dialect of JSON Schema.
    pub const DIALECT: &'static str = "https://json-schema.org/draft/2020-12/schema";

    /// Any value.
    #[must_use]
    pub fn any(about: &str) -> Self {
        Self { about: about.to_owned(), ..Self::default() }
    }

    /// A text.
    #[must_use]
    pub fn text(about: &str) -> Self {
        Self::any(about).with("type", "string")
    }

    /// A text, a number or a boolean, each read as it is spelled.
    #[must_use]
    pub fn scalar(about: &str) -> Self {
        Self::any(about).with("type", vec!["string", "number", "boolean"])
    }

    /// A whole number, which may have its digits grouped: `1_000_000`.
    #[must_use]
    pub fn whole(about: &str, least: u64, most: u64) -> Self {
        let digits = "^[0-9][0-9_]*$";
        Self::any(about)
            .with("type", vec!["integer", "string"])
            .with("minimum", least)
            .with("maximum", most)
            .with("pattern", digits)
    }

    /// One of some words; the first is the default.
    #[must_use]
    pub fn word<'w>(about: &str, words: impl IntoIterator<Item = &'w str>) -> Self {
        let words: Vec<&str> = words.into_iter().collect();
        let usual = words.first().map(|word| Value::from(*word));
        Self { usual, ..Self::any(about).with("enum", words) }
    }

    /// A list.
    #[must_use]
    pub fn list(about: &str, items: Self) -> Self {
        Self { items: Some(Box::new(items)), ..Self::any(about).with("type", "array") }
    }

    /// A map with the keys that are added to it, and no others.
    #[must_use]
    pub fn map(about: &str) -> Self {
        Self { is_map: true, ..Self::any(about).with("type", "object") }
    }

    /// One of several shapes.
    #[must_use]
    pub fn one_of(about: &str, choices: impl IntoIterator<Item = Self>) -> Self {
        Self { choices: choices.into_iter().collect(), ..Self::any(about) }
    }

    /// A reference to a named part of the document.
    #[must_use]
    pub fn part(about: &str, name: &str) -> Self {
        Self::any(about).with("$ref", format!("#/$defs/{name}"))
    }

    /// The same with one more keyword of JSON Schema.
    #[must_use]
    pub fn with(mut self, keyword: &'static str, value: impl Into<Value>) -> Self {
        self.constraints.push((keyword, value.into()));
        self
    }

    /// A map with one more key.
    #[must_use]
    pub fn key(mut self, name: &str, value: Self) -> Self {
        self.keys.push((name.to_owned(), value));
        self
    }

    /// A map with one more key, which is required.
    #[must_use]
    pub fn required(mut self, name: &str, value: Self) -> Self {
        self.required.push(name.to_owned());
        self.key(name, value)
    }

    /// A map with any other keys.
    #[must_use]
    pub fn open(mut self, values: Self) -> Self {
        self.others = Some(Box::new(values));
        self
    }

    /// The same with a default.
    #[must_use]
    pub fn usually(mut self, value: impl Into<Value>) -> Self {
        self.usual = Some(value.into());
        self
    }

    /// The same without a default.
    #[must_use]
    pub fn without_usual(mut self) -> Self {
        self.usual = None;
        self
    }

    /// The same with one more example.
    #[must_use]
    pub fn example(mut self, value: impl Into<Value>) -> Self {
        self.examples.push(value.into());
        self
    }

    /// The same with a part that [`part`](Self::part) refers to.
    #[must_use]
    pub fn define(mut self, name: &'static str, part: Self) -> Self {
        self.parts.push((name, part));
        self
    }

    /// The description.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// A keyword of JSON Schema.
    #[must_use]
    pub fn keyword(&self, name: &str) -> Option<&Value> {
        self.constraints.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The keys of a map, in their order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.keys.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Whether a key of a map is required.
    #[must_use]
    pub fn requires(&self, name: &str) -> bool {
        self.required.iter().any(|known| known == name)
    }

    /// The schema of the values of all other keys of a map.
    #[must_use]
    pub fn others(&self) -> Option<&Self> {
        self.others.as_deref()
    }

    /// The schema of the items of a list.
    #[must_use]
    pub fn items(&self) -> Option<&Self> {
        self.items.as_deref()
    }

    /// The alternatives.
    #[must_use]
    pub fn choices(&self) -> &[Self] {
        &self.choices
    }

    /// The default.
    #[must_use]
    pub fn usual(&self) -> Option<&Value> {
        self.usual.as_ref()
    }

    /// Example values.
    #[must_use]
    pub fn examples(&self) -> &[Value] {
        &self.examples
    }

    /// The named parts.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.parts.iter().map(|(name, part)| (*name, part))
    }

    /// The schema as indented JSON, with a new line at its end.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Serialisation can't fail: all keys are texts.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Pairs as a map in their order.
struct Pairs<'s>(Vec<(&'s str, &'s Schema)>);

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

impl Serialize for Schema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (keyword, value) in self.constraints.iter().filter(|(name, _)| is_heading(name)) {
            map.serialize_entry(keyword, value)?;
        }
        if !self.about.is_empty() {
            map.serialize_entry("description", &self.about)?;
        }
        for (keyword, value) in self.constraints.iter().filter(|(name, _)| !is_heading(name)) {
            map.serialize_entry(keyword, value)?;
        }
        if !self.keys.is_empty() {
            map.serialize_entry("properties", &Pairs(self.keys().collect()))?;
        }
        if !self.required.is_empty() {
            map.serialize_entry("required", &self.required)?;
        }
        match &self.others {
            Some(others) => map.serialize_entry("additionalProperties", others)?,
            None if self.is_map => map.serialize_entry("additionalProperties", &false)?,
            None => {}
        }
        if let Some(items) = &self.items {
            map.serialize_entry("items", items)?;
        }
        if !self.choices.is_empty() {
            map.serialize_entry("anyOf", &self.choices)?;
        }
        if let Some(usual) = &self.usual {
            map.serialize_entry("default", usual)?;
        }
        if !self.examples.is_empty() {
            map.serialize_entry("examples", &self.examples)?;
        }
        if !self.parts.is_empty() {
            map.serialize_entry("$defs", &Pairs(self.parts().collect()))?;
        }
        map.end()
    }
}

/// Whether a keyword describes the schema and not the value.
fn is_heading(keyword: &str) -> bool {
    matches!(keyword, "$schema" | "$id" | "title")
}
