//! What is wrong with a set of rules: all of it at once, each with its file and line.

use std::fmt;
use std::sync::Arc;

use super::mark::Mark;

/// One thing that is wrong with a rule.
///
/// Prints as `rules.yaml:12: rule "login": …`. What the author wrote is echoed, cut to 64
/// characters; nothing else is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Where the rules came from, a file name for example; empty for rules made in code.
    pub source: Arc<str>,
    /// Where it stands there, when that is known.
    pub at: Option<Mark>,
    /// The rule, when it is known which.
    pub rule: Option<String>,
    /// What was found and what is wanted.
    pub message: String,
}

impl RuleError {
    /// An error in a rule that was made in code.
    pub(super) fn in_code(rule: &str, message: impl Into<String>) -> Self {
        Self { source: Arc::from(""), at: None, rule: Some(cut(rule)), message: message.into() }
    }

    /// The line, counted from 1, when there is one.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.at.map(Mark::line)
    }

    /// What is wrong, for who knows where: `rule "login": limit is missing`.
    #[must_use]
    pub fn without_place(&self) -> String {
        match &self.rule {
            Some(rule) => format!("rule {rule:?}: {}", self.message),
            None => self.message.clone(),
        }
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.source.is_empty() {
            write!(f, "{}:", self.source)?;
            match self.line() {
                Some(line) => write!(f, "{line}: ")?,
                None => f.write_str(" ")?,
            }
        }
        f.write_str(&self.without_place())
    }
}

impl std::error::Error for RuleError {}

/// Everything that is wrong with a set of rules, in the order of the lines; never empty.
///
/// After [`RuleErrors::MAX_LISTED`] errors the rest is only counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleErrors {
    listed: Vec<RuleError>,
    unlisted: usize,
}

impl RuleErrors {
    /// Most errors that are kept with their text.
    pub const MAX_LISTED: usize = 100;

    /// The errors that are kept.
    pub fn iter(&self) -> std::slice::Iter<'_, RuleError> {
        self.listed.iter()
    }

    /// How many more errors there were.
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

/// Collects errors while a document is read.
pub(super) struct Report {
    source: Arc<str>,
    rule: Option<String>,
    listed: Vec<RuleError>,
    unlisted: usize,
}

impl Report {
    pub(super) fn new(source: &str) -> Self {
        Self { source: Arc::from(source), rule: None, listed: Vec::new(), unlisted: 0 }
    }

    /// Names the rule that the following errors belong to.
    pub(super) fn enter(&mut self, rule: Option<&str>) {
        self.rule = rule.map(cut);
    }

    pub(super) fn add(&mut self, at: impl Into<Option<Mark>>, message: impl Into<String>) {
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

    /// The errors, if there were any.
    pub(super) fn finish(mut self) -> Result<(), RuleErrors> {
        if self.listed.is_empty() {
            return Ok(());
        }
        self.listed.sort_by_key(RuleError::line);
        Err(RuleErrors { listed: self.listed, unlisted: self.unlisted })
    }
}

/// Longest text that is echoed back in an error, in characters.
const ECHO: usize = 64;

fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(ECHO).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

/// What an author wrote, in quotes, cut if it is long.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}

/// The words as a choice: `a`, `a or b`, `a, b or c`.
pub(super) fn choice<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
