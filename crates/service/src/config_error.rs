//! Errors of configuration files, and reading them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_saphyr::{Error as YamlError, Location, MessageFormatter, UserMessageFormatter};
use thiserror::Error;
use tidegate_core::truncate;
use tidegate_rules::{RuleError, RuleErrors, SourceRange, did_you_mean};

/// Reads a text file of at most `max_bytes`.
///
/// # Errors
/// The file can't be read, is longer, or is not UTF-8.
pub fn read_file(path: &Path, max_bytes: usize) -> Result<String, ConfigError> {
    use std::io::Read;
    let unreadable = |reason: String| ConfigError::Unreadable { path: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(unreadable("a file is wanted, found a directory".to_owned()));
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > max_bytes {
        return Err(unreadable(format!("at most {max_bytes} bytes are wanted, found more")));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("text in UTF-8 is wanted".to_owned()))
}

/// The reason why a configuration, or a file that it names, can't be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file can't be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system, or the exceeded limit.
        reason: String,
    },
    /// An error outside of a file, so without a line: a flag, a variable, or the system.
    #[error("{place}: {reason}")]
    NotInFile {
        /// The name of the flag or variable.
        place: &'static str,
        /// The found and the wanted value.
        reason: String,
    },
    /// Invalid entries of a configuration file.
    #[error("{}", join_lines(.0))]
    Invalid(Vec<InvalidEntry>),
    /// Errors of rules.
    #[error(transparent)]
    Rules(#[from] RuleErrors),
}

impl From<RuleError> for ConfigError {
    fn from(error: RuleError) -> Self {
        Self::Rules(error.into())
    }
}

/// One error of a configuration file.
#[derive(Debug)]
pub struct InvalidEntry {
    /// The name of the file.
    pub source: String,
    /// The part of the file, if it is known.
    pub at: Option<SourceRange>,
    message: String,
}

impl InvalidEntry {
    /// Returns an error at a part of a file.
    pub fn new(source: &str, at: Option<SourceRange>, message: String) -> Self {
        Self { source: source.to_owned(), at, message }
    }
}

/// Returns the part of a line at a location of the YAML reader.
pub fn source_range(location: Location) -> SourceRange {
    SourceRange::new(location.line(), location.column(), location.span().len())
}

impl fmt::Display for InvalidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at.map(SourceRange::line) {
            Some(line) => write!(f, "{}:{line}: {}", self.source, self.message),
            None => write!(f, "{}: {}", self.source, self.message),
        }
    }
}

fn join_lines(errors: &[InvalidEntry]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Describes an error of the YAML reader, with the found and the wanted value.
pub fn describe_yaml_error(error: &YamlError, text: &str) -> String {
    match error {
        YamlError::SerdeUnknownField { field, expected, .. } => {
            let (found, wanted) = (quote_unless_secret(field), expected.join(", "));
            let meant = did_you_mean(field, expected.iter().copied());
            format!("there is no key {found}, wanted {wanted}{meant}")
        }
        YamlError::DuplicateMappingKey { key: Some(key), .. } => {
            format!("keys must be unique, found {} twice", quote_unless_secret(key))
        }
        YamlError::Unexpected { expected, location } => {
            let offset = location.span().byte_offset().and_then(|at| usize::try_from(at).ok());
            let (before, after) = text.split_at_checked(offset.unwrap_or(0)).unwrap_or(("", text));
            let key = before.trim_end().strip_suffix(':').and_then(|before| {
                before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
            });
            let key = key.filter(|key| !key.is_empty()).unwrap_or("the document");
            let wanted = match *expected {
                "mapping start" => "a map",
                "string scalar" => "a text",
                "sequence start" => "a list",
                other => other,
            };
            let found = match after.split([',', '}', ']', '#', '\n']).next().unwrap_or("").trim() {
                list if list.starts_with(['[', '-']) => "a list".to_owned(),
                map if map.starts_with('{') || *expected == "string scalar" => "a map".to_owned(),
                "" => "nothing".to_owned(),
                scalar => quote_unless_secret(scalar),
            };
            format!("{key} must be {wanted}, found {found}")
        }
        other => {
            let line = other.location().map_or(0, |location| location.line());
            let line =
                usize::try_from(line).ok().and_then(|line| text.lines().nth(line.max(1) - 1));
            if line.is_some_and(|line| SECRET_MARKS.iter().any(|word| line.contains(word))) {
                return "this is no YAML, a secret with special characters needs quotes".to_owned();
            }
            UserMessageFormatter.format_message(other).into_owned()
        }
    }
}

/// A line with one of these may contain a secret.
pub const SECRET_MARKS: [&str; 5] = ["password", "secret", "token", "://", "@"];

/// Quotes a text, unless it may contain a password.
fn quote_unless_secret(text: &str) -> String {
    if text.contains('@') || text.contains("://") {
        "a URL".to_owned()
    } else {
        format!("{:?}", truncate(text))
    }
}
