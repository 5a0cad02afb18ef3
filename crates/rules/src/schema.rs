//! JSON Schemas (draft 2020-12) of rules and configurations, for editors and for the reference.
//!
//! Keys keep the order in which they were added.

mod rules;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

pub use rules::parts;

/// The schema of a value, with its description.
///
/// ```
/// use tidegate_rules::schema::Schema;
///
/// let limit = Schema::text("The amount and the time").example("5 per minute");
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
    default_value: Option<Value>,
    examples: Vec<Value>,
    parts: Vec<(&'static str, Schema)>,
}

impl Schema {
    /// The dialect of JSON Schema.
    pub const DIALECT: &'static str = "https://json-schema.org/draft/2020-12/schema";

    /// Creates the schema of any value.
    #[must_use]
    pub fn any(about: &str) -> Self {
        Self { about: about.to_owned(), ..Self::default() }
    }

    /// Creates the schema of a text.
    #[must_use]
    pub fn text(about: &str) -> Self {
        Self::any(about).with("type", "string")
    }

    /// Creates the schema of a text, a number or a boolean, each read with its spelling.
    #[must_use]
    pub fn scalar(about: &str) -> Self {
        Self::any(about).with("type", vec!["string", "number", "boolean"])
    }

    /// Creates the schema of a whole number with optional groups of digits: `1_000_000`.
    #[must_use]
    pub fn whole(about: &str, least: u64, most: u64) -> Self {
        let digits = "^[0-9][0-9_]*$";
        Self::any(about)
            .with("type", vec!["integer", "string"])
            .with("minimum", least)
            .with("maximum", most)
            .with("pattern", digits)
    }

    /// Creates the schema of a word from a list; the first one is the default.
    #[must_use]
    pub fn word<'w>(about: &str, words: impl IntoIterator<Item = &'w str>) -> Self {
        let words: Vec<&str> = words.into_iter().collect();
        let default_value = words.first().map(|word| Value::from(*word));
        Self { default_value, ..Self::any(about).with("enum", words) }
    }

    /// Creates the schema of a list.
    #[must_use]
    pub fn list(about: &str, items: Self) -> Self {
        Self { items: Some(Box::new(items)), ..Self::any(about).with("type", "array") }
    }

    /// Creates the schema of a map with no other keys than those added to it.
    #[must_use]
    pub fn map(about: &str) -> Self {
        Self { is_map: true, ..Self::any(about).with("type", "object") }
    }

    /// Creates the schema of a value with several possible shapes.
    #[must_use]
    pub fn one_of(about: &str, choices: impl IntoIterator<Item = Self>) -> Self {
        Self { choices: choices.into_iter().collect(), ..Self::any(about) }
    }

    /// Creates a reference to a named part of the document.
    #[must_use]
    pub fn part(about: &str, name: &str) -> Self {
        Self::any(about).with("$ref", format!("#/$defs/{name}"))
    }

    /// Returns the schema with one more keyword of JSON Schema.
    #[must_use]
    pub fn with(mut self, keyword: &'static str, value: impl Into<Value>) -> Self {
        self.constraints.push((keyword, value.into()));
        self
    }

    /// Adds a key to the schema of a map.
    #[must_use]
    pub fn key(mut self, name: &str, value: Self) -> Self {
        self.keys.push((name.to_owned(), value));
        self
    }

    /// Adds a key to the schema of a map, which is required.
    #[must_use]
    pub fn required(mut self, name: &str, value: Self) -> Self {
        self.required.push(name.to_owned());
        self.key(name, value)
    }

    /// Allows other keys in the schema of a map, with values of this schema.
    #[must_use]
    pub fn open(mut self, values: Self) -> Self {
        self.others = Some(Box::new(values));
        self
    }

    /// Returns the schema with a default.
    #[must_use]
    pub fn with_default(mut self, value: impl Into<Value>) -> Self {
        self.default_value = Some(value.into());
        self
    }

    /// Returns the schema without a default.
    #[must_use]
    pub fn without_default(mut self) -> Self {
        self.default_value = None;
        self
    }

    /// Returns the schema with one more example.
    #[must_use]
    pub fn example(mut self, value: impl Into<Value>) -> Self {
        self.examples.push(value.into());
        self
    }

    /// Returns the schema with a part that [`part`](Self::part) refers to.
    #[must_use]
    pub fn define(mut self, name: &'static str, part: Self) -> Self {
        self.parts.push((name, part));
        self
    }

    /// Returns the description.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Returns a keyword of JSON Schema.
    #[must_use]
    pub fn keyword(&self, name: &str) -> Option<&Value> {
        self.constraints.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns the keys of a map, in their order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.keys.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns whether a key of a map is required.
    #[must_use]
    pub fn requires(&self, name: &str) -> bool {
        self.required.iter().any(|known| known == name)
    }

    /// Returns the schema of the values of all other keys of a map.
    #[must_use]
    pub fn others(&self) -> Option<&Self> {
        self.others.as_deref()
    }

    /// Returns the schema of the items of a list.
    #[must_use]
    pub fn items(&self) -> Option<&Self> {
        self.items.as_deref()
    }

    /// Returns the alternatives.
    #[must_use]
    pub fn choices(&self) -> &[Self] {
        &self.choices
    }

    /// Returns the default.
    #[must_use]
    pub fn default_value(&self) -> Option<&Value> {
        self.default_value.as_ref()
    }

    /// Returns example values.
    #[must_use]
    pub fn examples(&self) -> &[Value] {
        &self.examples
    }

    /// Returns the named parts.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.parts.iter().map(|(name, part)| (*name, part))
    }

    /// Returns the schema as indented JSON, with a new line at its end.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Serialisation can't fail: all keys are texts.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Pairs as a map in their order.
struct OrderedSchemas<'s>(Vec<(&'s str, &'s Schema)>);

impl Serialize for OrderedSchemas<'_> {
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
            map.serialize_entry("properties", &OrderedSchemas(self.keys().collect()))?;
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
        if let Some(default_value) = &self.default_value {
            map.serialize_entry("default", default_value)?;
        }
        if !self.examples.is_empty() {
            map.serialize_entry("examples", &self.examples)?;
        }
        if !self.parts.is_empty() {
            map.serialize_entry("$defs", &OrderedSchemas(self.parts().collect()))?;
        }
        map.end()
    }
}

/// Returns whether a keyword describes the schema and not the value.
fn is_heading(keyword: &str) -> bool {
    matches!(keyword, "$schema" | "$id" | "title")
}
