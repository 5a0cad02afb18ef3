//! Patterns with stars: `/v1/**`, `*.example.com`, `/users/*/orders`.

use std::fmt;

use memchr::{memchr, memmem, memrchr};

/// A pattern in which `*` stands for any run without `/` and `**` for any run at all.
///
/// Both match the empty run. Every other character stands for itself. There is no escape: a rule with
/// a literal star uses `{is: "…"}`. The matching time is linear in the length of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    /// Length of the text before the first star.
    prefix: usize,
    /// Length of the text after the last star.
    suffix: usize,
    /// The stars before the last one, each with the text after it. Most patterns have none.
    steps: Box<[GlobStep]>,
    last_star: StarKind,
}

/// A star and the literal after it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GlobStep {
    star: StarKind,
    /// Never empty.
    literal: Box<str>,
}

/// The kind of a star.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StarKind {
    /// `*`
    WithinSegment,
    /// `**`
    Anywhere,
}

impl Glob {
    /// Returns the pattern, if the text has a star in it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let prefix = text.find('*')?;
        let suffix = text.len() - text.rfind('*')? - 1;
        let mut rest = text.get(prefix..text.len() - suffix)?;
        let mut steps = Vec::new();
        let last_star = loop {
            let literal_and_rest = rest.trim_start_matches('*');
            let star = match rest.len() - literal_and_rest.len() {
                1 => StarKind::WithinSegment,
                _ => StarKind::Anywhere,
            };
            // The text ends with a star, so that a literal has one after it.
            let Some(end) = literal_and_rest.find('*') else { break star };
            let (literal, after) = literal_and_rest.split_at_checked(end)?;
            steps.push(GlobStep { star, literal: literal.into() });
            rest = after;
        };
        Some(Self { text: text.into(), prefix, suffix, steps: steps.into(), last_star })
    }

    /// Returns whether the pattern matches the whole value.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let value = value.as_bytes();
        value
            .strip_prefix(self.prefix().as_bytes())
            .and_then(|rest| rest.strip_suffix(self.suffix().as_bytes()))
            .is_some_and(|rest| match (&*self.steps, self.last_star) {
                ([], StarKind::Anywhere) => true,
                ([], StarKind::WithinSegment) => !rest.contains(&b'/'),
                (steps, last_star) => matches_steps(steps, last_star, rest),
            })
    }

    /// Returns the start of every matching value; may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.text.get(..self.prefix).unwrap_or_default()
    }

    /// Returns the end of every matching value; may be empty.
    #[must_use]
    pub fn suffix(&self) -> &str {
        self.text.get(self.text.len() - self.suffix..).unwrap_or_default()
    }

    /// Returns the texts between stars, which every matching value contains; none is empty.
    pub(crate) fn inner_texts(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| &*step.literal)
    }

    /// Returns the stars before the last one, each with the text after it.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (StarKind, &str)> {
        self.steps.iter().map(|step| (step.star, &*step.literal))
    }

    pub(crate) fn last_star(&self) -> StarKind {
        self.last_star
    }

    pub(crate) fn has_inner_texts(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Returns whether any text may be between prefix and suffix.
    pub(crate) fn has_any_middle(&self) -> bool {
        self.steps.is_empty() && self.last_star == StarKind::Anywhere
    }

    /// Returns start and end of the part of a value between prefix and suffix; `None` if it has not both.
    pub(crate) fn middle(&self, value: &str) -> Option<(usize, usize)> {
        let end = value.len().checked_sub(self.suffix).filter(|end| *end >= self.prefix)?;
        let has_ends = value.starts_with(self.prefix()) && value.ends_with(self.suffix());
        has_ends.then_some((self.prefix, end))
    }

    /// Returns whether the pattern is `**text**`, which matches every value that contains the text.
    pub(crate) fn is_contained_text(&self) -> bool {
        matches!(&*self.steps, [GlobStep { star: StarKind::Anywhere, .. }])
            && self.last_star == StarKind::Anywhere
            && self.prefix == 0
            && self.suffix == 0
    }

    /// Returns the pattern as it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// The pattern as it was written.
impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Matches the value between prefix and suffix: steps, then a last star up to the end of the value.
///
/// Each literal is searched once from left to right, and its first occurrence is taken:
///
/// - After `**` the first occurrence leaves the most of the value for the rest of the pattern.
/// - After `*` a literal starts at or before the next slash. The first occurrence is the best one if the literal has no
///   slash. It is the only one if the literal has a slash, because the slashes must coincide.
/// - If a step after `*` fails, the literal after the latest `**` is searched again. An occurrence that ends in the same
///   segment would fail too, since it allows fewer starts of the next literal. So the search continues behind the
///   segment, and no part of the value is searched again for the same step.
fn matches_steps(steps: &[GlobStep], last_star: StarKind, value: &[u8]) -> bool {
    let after = |position: usize| value.get(position..).unwrap_or_default();
    let next_slash = |position: usize| memchr(b'/', after(position)).map(|slash| position + slash);
    // The earliest end of the last literal, if the last star must not contain a slash.
    let earliest_end = match last_star {
        StarKind::Anywhere => 0,
        StarKind::WithinSegment => memrchr(b'/', value).map_or(0, |slash| slash + 1),
    };
    let (mut index, mut position) = (0, 0);
    // The step of the latest `**`, the start of its literal, and its end.
    let mut retry: Option<(usize, usize, usize)> = None;
    loop {
        let matched = match steps.get(index) {
            None if position >= earliest_end => return true,
            None => None,
            Some(GlobStep { star: StarKind::Anywhere, literal }) => {
                if index + 1 == steps.len() {
                    position = position.max(earliest_end.saturating_sub(literal.len()));
                }
                let Some(start) = memmem::find(after(position), literal.as_bytes()) else {
                    return false;
                };
                let (start, end) = (position + start, position + start + literal.len());
                retry = Some((index, start, end));
                Some(end)
            }
            Some(GlobStep { star: StarKind::WithinSegment, literal }) => {
                let last_start = next_slash(position).unwrap_or(value.len());
                let last_end = value.len().min(last_start + literal.len());
                let window = value.get(position..last_end).unwrap_or_default();
                memmem::find(window, literal.as_bytes())
                    .map(|start| position + start + literal.len())
            }
        };
        (index, position) = match (matched, retry) {
            (Some(end), _) => (index + 1, end),
            (None, None) => return false,
            (None, Some((step, start, end))) => {
                let Some(slash) = next_slash(end) else { return false };
                (step, (start + 1).max(slash + 1 - (end - start)))
            }
        };
    }
}
