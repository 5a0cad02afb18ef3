//! Renders errors of files together with the source lines.
//!
//! The output may end up in build logs, so that secrets must not appear. A line of a configuration is shown only if
//! neither the line nor its parents mention a secret, and only up to the end of the error. So the value of a misspelt
//! `pasword` is hidden. In rules, the values of API keys, sessions, cookies and headers are masked.

mod redact;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};

use crate::config::{self, FileKind};
use tidegate_rules::{RuleError, RuleSet, RuleWarnings, SourceRange};
use tidegate_service::config_error::{ConfigError, read_file};

/// Longest shown part of a line, in terminal cells.
const MAX_WIDTH: usize = 100;
/// Characters shown before the error in a longer line.
const CONTEXT_BEFORE: usize = 30;

/// The texts that errors refer to, by their names in the errors. `None` marks an unreadable file.
#[derive(Default)]
pub(crate) struct SourceTexts(HashMap<String, Option<SourceText>>);

/// The text of one file.
struct SourceText {
    text: String,
    path: PathBuf,
    /// Detected on the first error, because it is slow for a large file.
    kind: OnceCell<FileKind>,
}

impl SourceTexts {
    /// Adds a text that was read already.
    pub(crate) fn insert(&mut self, name: &str, text: &str) {
        let (text, path) = (text.to_owned(), PathBuf::from(name));
        self.0.insert(name.to_owned(), Some(SourceText { text, path, kind: OnceCell::new() }));
    }

    /// Renders every error with its source line below it. Returns `None` for an error without a line.
    pub(crate) fn render(&mut self, error: &ConfigError) -> Option<String> {
        let mut rendered = String::new();
        match error {
            ConfigError::Invalid(entries) => {
                entries
                    .iter()
                    .for_each(|entry| self.add(&mut rendered, entry, &entry.source, entry.at));
            }
            ConfigError::Rules(errors) => {
                errors
                    .iter()
                    .for_each(|error| self.add(&mut rendered, error, &error.source, error.at));
                if let more @ 1.. = errors.unlisted() {
                    let _ = writeln!(rendered, "and {more} more");
                }
            }
            ConfigError::Unreadable { .. } | ConfigError::NotInFile { .. } => return None,
        }
        Some(rendered.trim_end_matches('\n').to_owned())
    }

    /// Renders every warning with its source line below it.
    pub(crate) fn render_warnings(&mut self, warnings: &RuleWarnings) -> String {
        let mut rendered = String::new();
        for warning in warnings {
            let RuleError { source, at, .. } = warning.as_error();
            self.add(&mut rendered, warning, source, *at);
        }
        if let more @ 1.. = warnings.unlisted() {
            let _ = writeln!(rendered, "and {more} more warnings");
        }
        rendered.trim_end_matches('\n').to_owned()
    }

    /// Appends an error and its snippet.
    fn add(
        &mut self,
        rendered: &mut String,
        error: impl Display,
        source: &str,
        at: Option<SourceRange>,
    ) {
        let snippet = at.and_then(|at| self.source(source)?.snippet(at)).unwrap_or_default();
        let _ = write!(rendered, "{error}\n{snippet}");
    }

    /// Returns a text that was added, else the text of a file. A pipe can't be read twice, so that it is not tried.
    fn source(&mut self, name: &str) -> Option<&SourceText> {
        if !self.0.contains_key(name) {
            let path = Path::new(name);
            let text = path.is_file().then(|| read_file(path, RuleSet::MAX_DOCUMENT_BYTES));
            match text {
                Some(Ok(text)) => self.insert(name, &text),
                _ => {
                    self.0.insert(name.to_owned(), None);
                }
            }
        }
        self.0.get(name)?.as_ref()
    }
}

impl SourceText {
    /// Returns the line with carets under the error; `None` if the line must not be shown.
    fn snippet(&self, at: SourceRange) -> Option<String> {
        let column = usize::try_from(at.column()?).ok()?;
        let index = usize::try_from(at.line()).ok()?.checked_sub(1)?;
        let line = lines(&self.text).nth(index)?;
        let width = usize::try_from(at.width()).unwrap_or(usize::MAX).max(1);
        let redacted = match self.kind.get_or_init(|| config::detect_kind(&self.path, &self.text)) {
            FileKind::Config => redact::config_line(&self.text, index, column - 1 + width)?,
            FileKind::Rules | FileKind::Envoy => redact::rules_line(line),
        };
        Some(draw_line(at.line(), &redacted, column - 1, width))
    }
}

/// Splits a text at the line breaks of YAML: LF, CRLF and CR.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

/// Draws a line with carets under `width` characters after the first `start`.
fn draw_line(number: u64, line: &str, start: usize, width: usize) -> String {
    // The YAML reader does not count a byte order mark as a column.
    let line = line.trim_start_matches('\u{feff}');
    let first = if start <= MAX_WIDTH * 3 / 4 { 0 } else { start - CONTEXT_BEFORE };
    let (mut text, mut carets) = (String::new(), String::new());
    let mut room = MAX_WIDTH;
    if first > 0 {
        (text, carets, room) = ("…".to_owned(), " ".to_owned(), MAX_WIDTH - 1);
    }
    let mut characters = line.chars().enumerate().skip(first);
    for (index, character) in characters.by_ref() {
        let (replacement, cells) = terminal_cells(character);
        if cells > room {
            text.push('…');
            break;
        }
        room -= cells;
        text.push_str(replacement.unwrap_or(character.encode_utf8(&mut [0; 4])));
        if index < start {
            carets.push_str(&" ".repeat(cells));
        } else if index < start.saturating_add(width) {
            carets.push_str(&"^".repeat(cells));
        }
    }
    // The error can be behind the end of the line, for example a missing value.
    if !carets.contains('^') {
        carets.push('^');
    }
    let gutter = " ".repeat(number.to_string().len());
    let text = text.trim_end();
    format!("{gutter} |\n{number} | {text}\n{gutter} | {carets}\n", carets = carets.trim_end())
}

/// Returns the replacement of a character that a terminal does not display as it is, and the width in cells.
fn terminal_cells(character: char) -> (Option<&'static str>, usize) {
    match character {
        '\t' => (Some("    "), 4),
        // Invisible characters and changes of text direction would display a misleading line.
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => (Some("\u{fffd}"), 1),
        other if other.is_control() => (Some("\u{fffd}"), 1),
        '\u{300}'..='\u{36f}' | '\u{fe00}'..='\u{fe0f}' => (None, 0),
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => (None, 2),
        _ => (None, 1),
    }
}

#[cfg(test)]
mod tests;
