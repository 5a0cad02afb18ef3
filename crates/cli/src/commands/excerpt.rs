//! Errors with the lines that they are about, as they stand in their files.
//!
//! What is shown ends up on screens and in the logs of builds. Of a configuration a line is shown only
//! if nothing in it or above it is about a secret, and only up to what is wrong: the value of a
//! misspelt `pasword` stays where it is. Of rules the values of API keys, sessions, cookies and
//! headers are crossed out.

mod secrecy;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};

use crate::config::{self, Kind};
use tidegate_rules::{RuleSet, SourceRange};
use tidegate_service::config_error::{ConfigError, read_file};

/// How much of a line is shown, in cells of a terminal.
const WIDTH: usize = 100;
/// How many characters are shown before what is wrong, in a line that is longer.
const BEFORE: usize = 30;

/// The texts that errors point into, by what errors call them.
#[derive(Default)]
pub(crate) struct Sources(HashMap<String, Option<Source>>);

struct Source {
    text: String,
    path: PathBuf,
    /// Looked at only when something is wrong: a large file takes a while.
    kind: OnceCell<Kind>,
}

impl Sources {
    /// Keeps a text that was read already.
    pub(crate) fn keep(&mut self, name: &str, text: &str) {
        let (text, path) = (text.to_owned(), PathBuf::from(name));
        self.0.insert(name.to_owned(), Some(Source { text, path, kind: OnceCell::new() }));
    }

    /// Every error on its line, and below it the line of the file; `None` for an error without lines.
    pub(crate) fn told(&mut self, error: &ConfigError) -> Option<String> {
        let mut told = String::new();
        match error {
            ConfigError::Invalid(wrong) => {
                wrong.iter().for_each(|wrong| self.add(&mut told, wrong, &wrong.source, wrong.at));
            }
            ConfigError::Rules(errors) => {
                errors.iter().for_each(|error| self.add(&mut told, error, &error.source, error.at));
                if let more @ 1.. = errors.unlisted() {
                    let _ = writeln!(told, "and {more} more");
                }
            }
            ConfigError::Unreadable { .. } | ConfigError::NotInFile { .. } => return None,
        }
        Some(told.trim_end_matches('\n').to_owned())
    }

    fn add(
        &mut self,
        told: &mut String,
        error: impl Display,
        source: &str,
        at: Option<SourceRange>,
    ) {
        let excerpt = at.and_then(|at| self.source(source)?.excerpt(at)).unwrap_or_default();
        let _ = write!(told, "{error}\n{excerpt}");
    }

    /// A text that was kept, else that of a file; a pipe can't be read a second time.
    fn source(&mut self, name: &str) -> Option<&Source> {
        if !self.0.contains_key(name) {
            let path = Path::new(name);
            let text = path.is_file().then(|| read_file(path, RuleSet::MAX_DOCUMENT_BYTES));
            match text {
                Some(Ok(text)) => self.keep(name, &text),
                _ => {
                    self.0.insert(name.to_owned(), None);
                }
            }
        }
        self.0.get(name)?.as_ref()
    }
}

impl Source {
    /// The line, and a caret under each character that is wrong; `None` if it must not be shown.
    fn excerpt(&self, at: SourceRange) -> Option<String> {
        let column = usize::try_from(at.column()?).ok()?;
        let place = usize::try_from(at.line()).ok()?.checked_sub(1)?;
        let line = lines(&self.text).nth(place)?;
        let width = usize::try_from(at.width()).unwrap_or(usize::MAX).max(1);
        let shown = match self.kind.get_or_init(|| config::kind(&self.path, &self.text)) {
            Kind::Config => secrecy::of_config(&self.text, place, column - 1 + width)?,
            Kind::Rules | Kind::Envoy => secrecy::of_rules(line),
        };
        Some(drawn(at.line(), &shown, column - 1, width))
    }
}

/// The lines of a text, ended by whatever YAML takes for the end of one.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

/// Draws a line with carets under `width` characters after the first `start`.
fn drawn(number: u64, line: &str, start: usize, width: usize) -> String {
    // The reader does not count a mark of byte order.
    let line = line.trim_start_matches('\u{feff}');
    let first = if start <= WIDTH * 3 / 4 { 0 } else { start - BEFORE };
    let (mut text, mut carets) = (String::new(), String::new());
    let mut room = WIDTH;
    if first > 0 {
        (text, carets, room) = ("…".to_owned(), " ".to_owned(), WIDTH - 1);
    }
    let mut characters = line.chars().enumerate().skip(first);
    for (place, character) in characters.by_ref() {
        let (shown, cells) = shown(character);
        if cells > room {
            text.push('…');
            break;
        }
        room -= cells;
        text.push_str(shown.unwrap_or(character.encode_utf8(&mut [0; 4])));
        if place < start {
            carets.push_str(&" ".repeat(cells));
        } else if place < start.saturating_add(width) {
            carets.push_str(&"^".repeat(cells));
        }
    }
    // What is missing at the end of a line stands behind it.
    if !carets.contains('^') {
        carets.push('^');
    }
    let gutter = " ".repeat(number.to_string().len());
    let text = text.trim_end();
    format!("{gutter} |\n{number} | {text}\n{gutter} | {carets}\n", carets = carets.trim_end())
}

/// What stands for a character that a terminal would not just show, and how many cells it takes.
fn shown(character: char) -> (Option<&'static str>, usize) {
    match character {
        '\t' => (Some("    "), 4),
        // Whatever turns text around or hides in it would show another line than the one that is there.
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
