//! Warnings: valid parts of a set of rules that have no effect.

use std::collections::BTreeSet;
use std::fmt;

use crate::error::{ErrorReport, RuleError, RuleErrors};

/// The parts of a configuration on which warnings depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarningContext {
    /// Attributes that the configuration defines, beside those that every server knows.
    pub attributes: BTreeSet<String>,
    /// Set if `%2F` and `%5C` may be in a path, because a route has `encoded_slashes: keep`.
    pub keeps_encoded_slashes: bool,
}

impl WarningContext {
    /// Adds another configuration.
    pub fn extend(&mut self, other: Self) {
        self.attributes.extend(other.attributes);
        self.keeps_encoded_slashes |= other.keeps_encoded_slashes;
    }
}

/// A valid part of a rule that has no effect, or not the intended one.
///
/// Prints as `rules.yaml:12: warning: rule "login": …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleWarning(RuleError);

impl RuleWarning {
    /// Returns the warning with its position, as an error.
    #[must_use]
    pub fn as_error(&self) -> &RuleError {
        &self.0
    }
}

impl fmt::Display for RuleWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_position(f)?;
        write!(f, "warning: {}", self.0.without_position())
    }
}

/// The warnings of a set of rules, in the order of their lines.
///
/// After [`RuleErrors::MAX_LISTED`] warnings the rest is only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleWarnings {
    listed: Box<[RuleWarning]>,
    unlisted: usize,
}

impl RuleWarnings {
    pub(crate) fn new(report: ErrorReport) -> Self {
        let Err(errors) = report.finish() else { return Self::default() };
        Self {
            listed: errors.iter().cloned().map(RuleWarning).collect(),
            unlisted: RuleErrors::unlisted(&errors),
        }
    }

    /// Returns the stored warnings.
    pub fn iter(&self) -> std::slice::Iter<'_, RuleWarning> {
        self.listed.iter()
    }

    /// Returns the number of further warnings.
    #[must_use]
    pub fn unlisted(&self) -> usize {
        self.unlisted
    }

    /// Returns the number of all warnings.
    #[must_use]
    pub fn count(&self) -> usize {
        self.listed.len() + self.unlisted
    }
}

impl<'w> IntoIterator for &'w RuleWarnings {
    type Item = &'w RuleWarning;
    type IntoIter = std::slice::Iter<'w, RuleWarning>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
