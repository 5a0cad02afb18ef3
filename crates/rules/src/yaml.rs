//! A YAML document as a tree that keeps the line of each node and the spelling of each scalar.
//!
//! Rules are read from this tree and not directly into structs, for two reasons: one wrong field
//! must not hide the next error, and `country: NO` or `version: 1.10` must keep their spelling
//! instead of becoming `false` and `1.1`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Error, Location, MessageFormatter, Spanned, UserMessageFormatter};

use crate::error::quote;
use crate::source_range::SourceRange;

/// Maximum number of nodes in one document. Ten thousand rules with a hundred thousand overrides use a third of it.
const MAX_NODES: usize = 4_000_000;
/// Maximum number of nodes that aliases may add: nested aliases can expand a small document to a huge one.
const MAX_ALIASED_NODES: usize = 1_000_000;
/// Maximum nesting depth. A network in an override of a rule is at depth eight.
const MAX_DEPTH: usize = 16;

/// One value of the document.
#[derive(Debug)]
pub(crate) struct YamlNode<'y> {
    /// Position of the use: for an alias, that of the alias.
    pub(crate) at: SourceRange,
    pub(crate) value: YamlValue<'y>,
}

/// The value of a node.
#[derive(Debug)]
pub(crate) enum YamlValue<'y> {
    /// `~`, `null`, or nothing at all.
    Nothing,
    /// Any other scalar, as it was written.
    Text(Cow<'y, str>),
    List(Vec<YamlNode<'y>>),
    Map(Vec<(YamlKey<'y>, YamlNode<'y>)>),
}

/// A key of a map.
#[derive(Debug)]
pub(crate) struct YamlKey<'y> {
    pub(crate) at: SourceRange,
    pub(crate) text: Cow<'y, str>,
}

/// The reason why a text was not read as YAML.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) at: Option<SourceRange>,
    pub(crate) message: String,
}

/// Reads a document; the caller checks its size first.
pub(crate) fn read(yaml: &str) -> Result<YamlNode<'_>, SyntaxError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_NODES * 3,
            max_nodes: MAX_NODES,
            max_depth: MAX_DEPTH,
            max_total_scalar_bytes: usize::MAX,
            max_recorded_anchor_events: MAX_NODES,
            // Many rules may legitimately share one anchor.
            enforce_alias_anchor_ratio: false,
            max_aliases: MAX_ALIASED_NODES,
            max_merge_keys: MAX_ALIASED_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_NODES,
            max_replay_stack_depth: MAX_DEPTH,
        },
        with_snippet: false,
        reject_unsupported_tags: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let node: ParsedNode<'_> =
        serde_saphyr::from_str_with_options(yaml, options).map_err(|error| SyntaxError {
            at: error.location().map(mark),
            message: message(&error),
        })?;
    Ok(node.with_spelling(yaml))
}

/// Returns the message of the YAML reader, except where it would name the reader's settings instead of our bounds.
fn message(error: &Error) -> String {
    match error {
        Error::AliasError { error, .. } => message(error),
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().map_or_else(|| "a key".to_owned(), quote);
            format!("keys must be unique, found {key} twice")
        }
        Error::MultipleDocuments { .. } => "one document is wanted, found another".to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias must not stand inside its own anchor".to_owned()
        }
        Error::UnknownAnchor { .. } => "alias without an anchor".to_owned(),
        Error::NullIntoString { .. } => "a key must be a text, found nothing".to_owned(),
        Error::AliasReplayLimitExceeded { .. } => {
            format!("aliases must add at most {MAX_ALIASED_NODES} values")
        }
        Error::Budget { breach, .. } => match breach {
            BudgetBreach::Depth { .. } => {
                format!("values must be nested at most {MAX_DEPTH} deep")
            }
            BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
                format!("document must have at most {MAX_NODES} values")
            }
            _ => "document has too many anchors, aliases or merge keys".to_owned(),
        },
        other => UserMessageFormatter.format_message(other).into_owned(),
    }
}

impl YamlNode<'_> {
    /// Returns the node as an error shows it: `"0s"`, `a list`, `nothing`.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            YamlValue::Nothing => "nothing".to_owned(),
            YamlValue::Text(text) => quote(text),
            YamlValue::List(_) => "a list".to_owned(),
            YamlValue::Map(_) => "a map".to_owned(),
        }
    }

    /// Returns the text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Text(text) => Some(text),
            YamlValue::Nothing | YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }
}

/// A node from the YAML reader, in which numbers and booleans have lost their spelling.
struct ParsedNode<'y> {
    at: SourceRange,
    /// First byte and length of its text in the source.
    spelled: (u32, u32),
    shape: ParsedValue<'y>,
}

enum ParsedValue<'y> {
    Nothing,
    Text(Cow<'y, str>),
    /// A number or a boolean. Its text is in the source.
    Inferred,
    List(Vec<ParsedNode<'y>>),
    Map(Vec<(YamlKey<'y>, ParsedNode<'y>)>),
}

impl<'y> ParsedNode<'y> {
    /// Returns the node with every spelling restored from the source.
    fn with_spelling(self, source: &'y str) -> YamlNode<'y> {
        let value = match self.shape {
            ParsedValue::Nothing => YamlValue::Nothing,
            ParsedValue::Text(text) => YamlValue::Text(text),
            ParsedValue::Inferred => YamlValue::Text(spelling(source, self.spelled).into()),
            ParsedValue::List(items) => {
                YamlValue::List(items.into_iter().map(|item| item.with_spelling(source)).collect())
            }
            ParsedValue::Map(entries) => YamlValue::Map(
                entries
                    .into_iter()
                    .map(|(name, item)| (name, item.with_spelling(source)))
                    .collect(),
            ),
        };
        YamlNode { at: self.at, value }
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

/// Converts a location to lines and columns.
fn mark(location: Location) -> SourceRange {
    SourceRange::new(location.line(), location.column(), location.span().len())
}

/// Returns the first byte and the length of a location.
fn bytes(location: Location) -> Option<(u32, u32)> {
    let span = location.span();
    let start = u32::try_from(span.byte_offset()?).ok()?;
    Some((start, u32::try_from(span.byte_len()?).ok()?))
}

impl<'de> Deserialize<'de> for ParsedNode<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = Spanned::<ParsedValue<'de>>::deserialize(deserializer)?;
        Ok(Self {
            at: mark(found.referenced),
            spelled: bytes(found.defined).unwrap_or_default(),
            shape: found.value,
        })
    }
}

impl<'de> Deserialize<'de> for ParsedValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParsedValueVisitor)
    }
}

struct ParsedValueVisitor;

impl<'de> Visitor<'de> for ParsedValueVisitor {
    type Value = ParsedValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(ParsedValue::Nothing)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(ParsedValue::Inferred)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(ParsedValue::Inferred)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(ParsedValue::Inferred)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(ParsedValue::Inferred)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(ParsedValue::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(ParsedValue::Text(text.to_owned().into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(ParsedValue::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(ParsedValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            let name = YamlKey { at: mark(name.referenced), text: name.value.into() };
            entries.push((name, map.next_value()?));
        }
        Ok(ParsedValue::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(node: &YamlNode<'_>) -> String {
        match &node.value {
            YamlValue::Nothing => format!("{}:nothing", node.at.line()),
            YamlValue::Text(text) => format!("{}:{text}", node.at.line()),
            YamlValue::List(items) => {
                let items: Vec<String> = items.iter().map(shown).collect();
                format!("{}:[{}]", node.at.line(), items.join(" "))
            }
            YamlValue::Map(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(name, node)| format!("{}:{}={}", name.at.line(), name.text, shown(node)))
                    .collect();
                format!("{}:{{{}}}", node.at.line(), entries.join(" "))
            }
        }
    }

    fn tree(yaml: &str) -> String {
        match read(yaml) {
            Ok(node) => shown(&node),
            Err(error) => format!("{:?}: {}", error.at.map(SourceRange::line), error.message),
        }
    }

    #[test]
    fn scalars_keep_their_spelling() {
        for text in [
            "NO",
            "off",
            "true",
            "1.10",
            "0x10",
            "007",
            "1_000",
            "-5",
            "1e3",
            ".nan",
            ".inf",
            "99999999999999999999999",
            "2027-01-01T00:00:00Z",
            "10.0.0.0/8",
            "é1",
        ] {
            assert_eq!(tree(&format!("a: {text} # comment")), format!("1:{{1:a=1:{text}}}"));
            assert_eq!(tree(&format!("é: [é, {text}]")), format!("1:{{1:é=1:[1:é 1:{text}]}}"));
            assert_eq!(tree(&format!("{text}: x")), format!("1:{{1:{text}=1:x}}"));
        }
        assert_eq!(tree("a: \"5\""), "1:{1:a=1:5}");
        assert_eq!(tree("a: ~\nb:\nc: ''"), "1:{1:a=1:nothing 2:b=2:nothing 3:c=3:}");
    }

    #[test]
    fn scalars_keep_their_spelling_after_byte_order_marks_tags_anchors_and_line_ends() {
        assert_eq!(tree("\u{feff}a: 1.10"), "1:{1:a=1:1.10}");
        assert_eq!(tree("a: 1.10\r\nb: 2.20\r\n"), "1:{1:a=1:1.10 2:b=2:2.20}");
        assert_eq!(tree("a: &x 1.10\nb: *x"), "1:{1:a=1:1.10 2:b=2:1.10}");
        assert_eq!(tree("a: !!float 1.10\nb: !!str 1.10"), "1:{1:a=1:1.10 2:b=2:1.10}");
        assert_eq!(tree("a:\n  !!int\n  5"), "1:{1:a=3:5}");
        assert_eq!(tree("a: !!int \"5\""), "1:{1:a=1:5}");
        assert_eq!(tree("a: |\n  5\n"), "1:{1:a=2:5\n}");
        assert_eq!(tree("a: 1\n  per second"), "1:{1:a=1:1 per second}");
    }

    #[test]
    fn aliases_and_merges_have_the_position_of_their_use() {
        assert_eq!(
            tree("a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2\n"),
            "1:{1:a=1:{1:x=1:1} 2:b=2:{2:x=2:1} 3:c=4:{5:y=5:2 4:x=4:1}}"
        );
    }

    #[test]
    fn alias_expansion_and_nesting_are_bounded() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let again = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{again}]\n");
        }
        assert_eq!(tree(&bomb), "Some(6): aliases must add at most 1000000 values");
        let deep = format!("a: {}{}", "[".repeat(40), "]".repeat(40));
        assert_eq!(tree(&deep), "Some(1): values must be nested at most 16 deep");
    }
}
