//! Patterns with stars: `/v1/**`, `*.example.com`, `/users/*/orders`.

use std::fmt;

use smallvec::SmallVec;

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
    middle: GlobMiddle,
}

/// The part between the literal ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobMiddle {
    /// One star, as in most patterns.
    Star(StarKind),
    /// Several stars with text between them.
    Steps(Box<[GlobStep]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StarKind {
    /// `*`
    WithinSegment,
    /// `**`
    Anywhere,
}

impl StarKind {
    fn covers(self, byte: u8) -> bool {
        self == Self::Anywhere || byte != b'/'
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GlobStep {
    Byte(u8),
    Run(StarKind),
}

impl Glob {
    /// Returns the pattern, if the text has a star in it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let prefix = text.find('*')?;
        let suffix = text.len() - text.rfind('*')? - 1;
        let steps = parse_steps(text.get(prefix..text.len() - suffix)?);
        let middle = match steps.as_slice() {
            [GlobStep::Run(star)] => GlobMiddle::Star(*star),
            _ => GlobMiddle::Steps(steps.into_boxed_slice()),
        };
        Some(Self { text: text.into(), prefix, suffix, middle })
    }

    /// Returns whether the pattern matches the whole value.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let value = value.as_bytes();
        value
            .strip_prefix(self.prefix().as_bytes())
            .and_then(|rest| rest.strip_suffix(self.suffix().as_bytes()))
            .is_some_and(|rest| match &self.middle {
                GlobMiddle::Star(star) => rest.iter().all(|&byte| star.covers(byte)),
                GlobMiddle::Steps(steps) => matches_steps(steps, rest),
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
}

/// The pattern as it was written.
impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse_steps(text: &str) -> Vec<GlobStep> {
    let mut steps = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        match (byte, steps.last_mut()) {
            (b'*', Some(GlobStep::Run(star))) => *star = StarKind::Anywhere,
            (b'*', _) => steps.push(GlobStep::Run(StarKind::WithinSegment)),
            _ => steps.push(GlobStep::Byte(byte)),
        }
    }
    steps
}

/// Matches a value by following all paths through the steps at once, so that no value causes backtracking.
fn matches_steps(steps: &[GlobStep], value: &[u8]) -> bool {
    // `open` contains, in order, the steps that may match the next byte. A star is always followed
    // by the step after it, because its run may end at any byte.
    let mut open: SmallVec<[usize; 32]> = SmallVec::new();
    let mut next: SmallVec<[usize; 32]> = SmallVec::new();
    open_step(steps, 0, &mut open);
    for &byte in value {
        if open.is_empty() {
            return false;
        }
        next.clear();
        for &at in &open {
            match steps.get(at) {
                Some(GlobStep::Byte(wanted)) if *wanted == byte => {
                    open_step(steps, at + 1, &mut next);
                }
                Some(GlobStep::Run(star)) if star.covers(byte) => open_step(steps, at, &mut next),
                _ => {}
            }
        }
        std::mem::swap(&mut open, &mut next);
    }
    open.last() == Some(&steps.len())
}

/// Opens a step, and the next one if the step is a star. Two stars are never adjacent.
fn open_step(steps: &[GlobStep], at: usize, open: &mut SmallVec<[usize; 32]>) {
    let after_star = matches!(steps.get(at), Some(GlobStep::Run(_))).then_some(at + 1);
    for at in std::iter::once(at).chain(after_star) {
        if open.last().is_none_or(|&last| last < at) {
            open.push(at);
        }
    }
}
