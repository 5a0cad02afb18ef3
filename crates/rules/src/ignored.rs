//! Differences between values that a condition ignores.

use std::borrow::Cow;
use std::fmt;

use crate::condition::ValuePattern;

/// The differences between two values that a condition ignores: the case of ASCII letters, and slashes at the end.
///
/// Patterns are folded once, values at each match. A folded value has lower-case letters and no slash at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IgnoredDifferences {
    /// `/Login` is `/login`. Only ASCII letters are folded.
    pub case: bool,
    /// `/login/` is `/login`.
    pub trailing_slash: bool,
}

impl IgnoredDifferences {
    /// No difference is ignored.
    pub const NONE: Self = Self { case: false, trailing_slash: false };

    /// The names in a rules document.
    pub(crate) const NAMES: [&str; 2] = ["case", "trailing_slash"];

    /// Returns whether no difference is ignored.
    #[must_use]
    pub const fn is_none(self) -> bool {
        !self.case && !self.trailing_slash
    }

    /// Returns a value without the ignored differences. Values that differ only in them have the same result.
    #[must_use]
    pub fn fold(self, value: &str) -> Cow<'_, str> {
        let value = if self.trailing_slash { value.trim_end_matches('/') } else { value };
        match self.case && value.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => value.to_ascii_lowercase().into(),
            false => value.into(),
        }
    }

    /// Adds the patterns that match the folded values of all values that `pattern` matches.
    ///
    /// A star at the end also matches nothing: `/a/*` matches `/a/`, which is folded to `/a`. So `/a` is added too.
    pub(crate) fn fold_pattern(self, pattern: &ValuePattern, folded: &mut Vec<ValuePattern>) {
        let text = match pattern {
            ValuePattern::Exact(text) => {
                folded.push(ValuePattern::Exact(self.fold(text).into()));
                return;
            }
            ValuePattern::Glob(glob) => glob.to_string(),
        };
        let mut rest = self.fold(&text).into_owned();
        loop {
            folded.push(ValuePattern::like(&rest));
            let before_star = rest.trim_end_matches('*');
            if !self.trailing_slash
                || before_star.len() == rest.len()
                || !before_star.ends_with('/')
            {
                return;
            }
            rest.truncate(before_star.trim_end_matches('/').len());
        }
    }
}

/// The end of a wanted value: ` in any case with or without a slash at the end`.
impl fmt::Display for IgnoredDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.case {
            f.write_str(" in any case")?;
        }
        if self.trailing_slash {
            f.write_str(" with or without a slash at the end")?;
        }
        Ok(())
    }
}
