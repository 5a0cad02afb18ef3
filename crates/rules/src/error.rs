//! Errors of a set of rules: all of them at once, each with its file and line.

use std::fmt;
use std::sync::Arc;

use crate::source_range::SourceRange;

/// One error of a rule.
///
/// Prints as `rules.yaml:12: rule "login": …`. Texts of the document are cut to 64 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Source of the rules, a file name for example; empty for rules made in code.
    pub source: Arc<str>,
    /// Position in the source, if it is known.
    pub at: Option<SourceRange>,
    /// The rule, if it is known.
    pub rule: Option<String>,
    /// The message, with the found and the wanted value.
    pub message: String,
}

impl RuleError {
    /// Creates an error in a rule that was made in code.
    pub(crate) fn in_code(rule: &str, message: impl Into<String>) -> Self {
        Self {
            source: Arc::from(""),
            at: None,
            rule: Some(truncate(rule)),
            message: message.into(),
        }
    }

    /// Returns the line, counted from 1, if it is known.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.at.map(SourceRange::line)
    }

    /// Returns the error without its position: `rule "login": limit is missing`.
    #[must_use]
    pub fn without_position(&self) -> String {
        match &self.rule {
            Some(rule) => format!("rule {rule:?}: {}", self.message),
            None => self.message.clone(),
        }
    }

    /// Writes the position before the message: `rules.yaml:12: `.
    pub(crate) fn write_position(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source.is_empty() {
            return Ok(());
        }
        write!(f, "{}:", self.source)?;
        match self.line() {
            Some(line) => write!(f, "{line}: "),
            None => f.write_str(" "),
        }
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_position(f)?;
        f.write_str(&self.without_position())
    }
}

impl std::error::Error for RuleError {}

/// All errors of a set of rules, in the order of their lines; never empty.
///
/// After [`RuleErrors::MAX_LISTED`] errors the rest is only counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleErrors {
    listed: Vec<RuleError>,
    unlisted: usize,
}

impl RuleErrors {
    /// Maximum number of errors that are stored with their text.
    pub const MAX_LISTED: usize = 100;

    /// Returns the stored errors.
    pub fn iter(&self) -> std::slice::Iter<'_, RuleError> {
        self.listed.iter()
    }

    /// Returns the number of further errors.
    #[must_use]
    pub fn unlisted(&self) -> usize {
        self.unlisted
    }
}

impl From<RuleError> for RuleErrors {
    fn from(error: RuleError) -> Self {
        Self { listed: vec![error], unlisted: 0 }
    }
}

impl<'e> IntoIterator for &'e RuleErrors {
    type Item = &'e RuleError;
    type IntoIter = std::slice::Iter<'e, RuleError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One error per line.
impl fmt::Display for RuleErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.listed.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        match self.unlisted {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for RuleErrors {}

/// The errors found so far while a document is read.
pub(crate) struct ErrorReport {
    source: Arc<str>,
    rule: Option<String>,
    listed: Vec<RuleError>,
    unlisted: usize,
}

impl ErrorReport {
    pub(crate) fn new(source: &str) -> Self {
        Self { source: Arc::from(source), rule: None, listed: Vec::new(), unlisted: 0 }
    }

    /// Sets the rule to which the following errors belong.
    pub(crate) fn set_rule(&mut self, rule: Option<&str>) {
        self.rule = rule.map(truncate);
    }

    /// Adds an error of the current rule.
    pub(crate) fn add(&mut self, at: impl Into<Option<SourceRange>>, message: impl Into<String>) {
        if self.listed.len() == RuleErrors::MAX_LISTED {
            self.unlisted += 1;
            return;
        }
        self.listed.push(RuleError {
            source: Arc::clone(&self.source),
            at: at.into(),
            rule: self.rule.clone(),
            message: message.into(),
        });
    }

    /// Ends the report.
    ///
    /// # Errors
    /// All errors that were added, if there are any.
    pub(crate) fn finish(mut self) -> Result<(), RuleErrors> {
        if self.listed.is_empty() {
            return Ok(());
        }
        self.listed.sort_by_key(RuleError::line);
        Err(RuleErrors { listed: self.listed, unlisted: self.unlisted })
    }
}

/// Maximum length of a document's text inside an error.
const MAX_QUOTED_CHARS: usize = 64;

fn truncate(text: &str) -> String {
    let mut kept: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    if kept.len() < text.len() {
        kept.push('…');
    }
    kept
}

/// Returns a text of the document in quotes, truncated if it is long.
pub(crate) fn quote(text: &str) -> String {
    format!("{:?}", truncate(text))
}

/// Returns the words as a choice: `a`, `a or b`, `a, b or c`.
pub(crate) fn choice<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
