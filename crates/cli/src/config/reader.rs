//! Reads the values of `tidegate.yaml`, and collects their errors.

use std::path::Path;
use std::str::FromStr;

use serde_saphyr::{Location, Spanned};
use tidegate_core::Span;
use tidegate_core::quota::window_of;
use tidegate_rules::did_you_mean;
use tidegate_service::config_error::{InvalidEntry, source_range};

/// Returns the folder that paths in a file are relative to, independent of the working directory.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Reads values of a configuration file. Invalid values are collected, so that all errors are reported at once.
pub(crate) struct FieldReader<'s> {
    source: &'s str,
    errors: Vec<InvalidEntry>,
}

impl<'s> FieldReader<'s> {
    pub(crate) fn new(source: &'s str) -> Self {
        Self { source, errors: Vec::new() }
    }

    /// Returns the errors that were found.
    pub(crate) fn into_errors(self) -> Vec<InvalidEntry> {
        self.errors
    }

    /// Adds an error at a place of the file.
    pub(crate) fn add(&mut self, at: Location, message: String) {
        self.errors.push(InvalidEntry::new(self.source, Some(source_range(at)), message));
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

    /// Returns the value of one of these words; the default if the key is missing.
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

    /// Returns a time, which may be `0s`.
    pub(crate) fn span(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        default: Span,
    ) -> Span {
        let Some(text) = text else { return default };
        match text.value.trim() {
            "0" | "0s" | "0ms" => Span::ZERO,
            value => window_of(value).unwrap_or_else(|_| {
                let message = format!("{name} must be a time like 5s or 0s, found {value:?}");
                self.add(text.referenced, message);
                default
            }),
        }
    }

    /// Returns a time within a range. The last element of the range is its text in the error.
    pub(crate) fn span_within(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        default: Span,
        (min, max, range): (Span, Span, &str),
    ) -> Span {
        let Some(text) = text else { return default };
        let at = text.referenced;
        let found = self.span(name, Some(text), default);
        if !(min..=max).contains(&found) {
            self.add(at, format!("{name} must be from {range}, found {found}"));
            return default;
        }
        found
    }

    /// Returns a whole number from 1 to `max`. Digits may be grouped by `_`.
    pub(crate) fn whole(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        max: usize,
    ) -> Option<usize> {
        let text = text?;
        let number = text.value.replace('_', "").parse().ok();
        let number = number.filter(|number| (1..=max).contains(number));
        if number.is_none() {
            let found = &text.value;
            let wanted = format!("must be a whole number from 1 to {max}, found {found:?}");
            self.add(text.referenced, format!("{name} {wanted}"));
        }
        number
    }
}
