//! Errors of a configuration.

use std::borrow::Cow;
use std::fmt;

/// The reason why a configuration can't be used: the setting, the wanted value and the found one.
///
/// Prints as `timeout must be from 1 ms to 60 s, found 0 s`. It never shows a password, nor text
/// that might be a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfigError {
    setting: &'static str,
    wanted: Cow<'static, str>,
    found: Option<String>,
}

impl RedisConfigError {
    /// The setting must be as wanted; what was found is not shown, it may be secret.
    pub(crate) fn new(setting: &'static str, wanted: impl Into<Cow<'static, str>>) -> Self {
        Self { setting, wanted: wanted.into(), found: None }
    }

    /// Shows what was found, cut if it is long.
    pub(crate) fn found(mut self, found: impl fmt::Display) -> Self {
        const ECHO: usize = 64;
        let found = found.to_string();
        let mut cut: String = found.chars().take(ECHO).collect();
        if cut.len() < found.len() {
            cut.push('…');
        }
        self.found = Some(cut);
        self
    }

    /// No longer shows what was found: it may be secret after all.
    pub(crate) fn hidden(self) -> Self {
        Self { found: None, ..self }
    }

    /// Returns the setting: `timeout`, `port`, `scheme`.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        self.setting
    }
}

impl fmt::Display for RedisConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.setting, self.wanted)?;
        match &self.found {
            Some(found) => write!(f, ", found {found}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RedisConfigError {}
