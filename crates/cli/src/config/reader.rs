//! Values of `tidegate.yaml`: words, numbers and times, with the errors in them.

use std::path::Path;
use std::str::FromStr;

use serde_saphyr::{Location, Spanned};
use tidegate_core::Span;
use tidegate_core::quota::window_of;
use tidegate_rules::did_you_mean;
use tidegate_service::config_error::{InvalidEntry, source_range};

/// Returns the folder that paths in a file are relative to. They mean the same wherever the process was started.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Reads the values of a configuration file, and collects the errors in them.
pub(crate) struct FieldReader<'s> {
    source: &'s str,
    found: Vec<InvalidEntry>,
}

impl<'s> FieldReader<'s> {
    pub(crate) fn new(source: &'s str) -> Self {
        Self { source, found: Vec::new() }
    }

    /// Returns the errors that were found.
    pub(crate) fn into_errors(self) -> Vec<InvalidEntry> {
        self.found
    }

    /// Adds an error at a place of the file.
    pub(crate) fn add(&mut self, at: Location, message: String) {
        self.found.push(InvalidEntry::new(self.source, Some(source_range(at)), message));
    }

    /// Returns a value that is parsed from text.
    pub(crate) fn parsed<T: FromStr<Err = String>>(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
    ) -> Option<T> {
        let text = text?;
        let parsed = text.value.parse();
        parsed.map_err(|error| self.add(text.referenced, format!("{name} {error}"))).ok()
    }

    /// Returns the value of one of some words; the default if there is none.
    pub(crate) fn word<T: Copy + Default, const N: usize>(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        words: [(&str, T); N],
    ) -> T {
        let Some(text) = text else { return T::default() };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return *value;
        }
        let words = words.map(|(word, _)| word);
        let (wanted, meant) = (words.join(", "), did_you_mean(&text.value, words));
        let message = format!("{name} must be one of {wanted}, found {:?}{meant}", text.value);
        self.add(text.referenced, message);
        T::default()
    }

    /// Returns a length of time, which may be none: `0s`.
    pub(crate) fn span(&mut self, name: &str, text: Option<Spanned<String>>, usual: Span) -> Span {
        let Some(text) = text else { return usual };
        match text.value.trim() {
            "0" | "0s" | "0ms" => Span::ZERO,
            value => window_of(value).unwrap_or_else(|_| {
                let message = format!("{name} must be a time like 5s or 0s, found {value:?}");
                self.add(text.referenced, message);
                usual
            }),
        }
    }

    /// Returns a length of time between a least and a most, which `words` names.
    pub(crate) fn span_within(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        usual: Span,
        (least, most, words): (Span, Span, &str),
    ) -> Span {
        let Some(text) = text else { return usual };
        let at = text.referenced;
        let found = self.span(name, Some(text), usual);
        if !(least..=most).contains(&found) {
            self.add(at, format!("{name} must be from {words}, found {found}"));
            return usual;
        }
        found
    }

    /// Returns a whole number, at least one, which may have its digits grouped.
    pub(crate) fn whole(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        most: usize,
    ) -> Option<usize> {
        let text = text?;
        let number = text.value.replace('_', "").parse().ok();
        let number = number.filter(|number| (1..=most).contains(number));
        if number.is_none() {
            let found = &text.value;
            let wanted = format!("must be a whole number from 1 to {most}, found {found:?}");
            self.add(text.referenced, format!("{name} {wanted}"));
        }
        number
    }
}
