//! Patterns with stars: `/v1/**`, `*.example.com`, `/users/*/orders`.

use std::fmt;

use smallvec::SmallVec;

/// A pattern in which `*` stands for any run without `/` and `**` for any run at all.
///
/// Both match the empty run. Every other character stands for itself; there is no escape, a literal
/// star is written as `{is: "…"}` in a rule. Matching takes time in proportion to the length of
/// the value, whatever its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    /// Length of the text before the first star.
    prefix: usize,
    /// Length of the text after the last star.
    suffix: usize,
    middle: Middle,
}

/// The part between the literal ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Middle {
    /// One star, as in most patterns.
    Star(Star),
    /// Stars at both ends and something in between.
    Steps(Box<[Step]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Star {
    /// `*`
    WithinSegment,
    /// `**`
    Anywhere,
}

impl Star {
    fn covers(self, byte: u8) -> bool {
        self == Self::Anywhere || byte != b'/'
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Byte(u8),
    Run(Star),
}

impl Glob {
    /// The pattern, if the text has a star in it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let prefix = text.find('*')?;
        let suffix = text.len() - text.rfind('*')? - 1;
        let steps = steps(text.get(prefix..text.len() - suffix)?);
        let middle = match steps.as_slice() {
            [Step::Run(star)] => Middle::Star(*star),
            _ => Middle::Steps(steps.into_boxed_slice()),
        };
        Some(Self { text: text.into(), prefix, suffix, middle })
    }

    /// Whether the pattern matches the whole value.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let value = value.as_bytes();
        value
            .strip_prefix(self.prefix().as_bytes())
            .and_then(|rest| rest.strip_suffix(self.suffix().as_bytes()))
            .is_some_and(|rest| match &self.middle {
                Middle::Star(star) => rest.iter().all(|&byte| star.covers(byte)),
                Middle::Steps(steps) => walk(steps, rest),
            })
    }

    /// The start of every matching value; may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.text.get(..self.prefix).unwrap_or_default()
    }

    /// The end of every matching value; may be empty.
    #[must_use]
    pub fn suffix(&self) -> &str {
        self.text.get(self.text.len() - self.suffix..).unwrap_or_default()
    }
}

/// The pattern as it was written.
impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        match (byte, steps.last_mut()) {
            (b'*', Some(Step::Run(star))) => *star = Star::Anywhere,
            (b'*', _) => steps.push(Step::Run(Star::WithinSegment)),
            _ => steps.push(Step::Byte(byte)),
        }
    }
    steps
}

/// Follows all paths through the steps at once, so that no value causes backtracking.
fn walk(steps: &[Step], value: &[u8]) -> bool {
    // `open` holds, in order, the steps that may come next; a star is always followed by its
    // successor, because the star may be over.
    let mut open: SmallVec<[usize; 32]> = SmallVec::new();
    let mut next: SmallVec<[usize; 32]> = SmallVec::new();
    reach(steps, 0, &mut open);
    for &byte in value {
        if open.is_empty() {
            return false;
        }
        next.clear();
        for &at in &open {
            match steps.get(at) {
                Some(Step::Byte(wanted)) if *wanted == byte => reach(steps, at + 1, &mut next),
                Some(Step::Run(star)) if star.covers(byte) => reach(steps, at, &mut next),
                _ => {}
            }
        }
        std::mem::swap(&mut open, &mut next);
    }
    open.last() == Some(&steps.len())
}

/// Opens a step, and the one after it if the step is a star. Two stars never touch.
fn reach(steps: &[Step], at: usize, open: &mut SmallVec<[usize; 32]>) {
    let after_star = matches!(steps.get(at), Some(Step::Run(_))).then_some(at + 1);
    for at in std::iter::once(at).chain(after_star) {
        if open.last().is_none_or(|&last| last < at) {
            open.push(at);
        }
    }
}
