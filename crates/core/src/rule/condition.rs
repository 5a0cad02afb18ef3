//! One line of a rule's `match`: an attribute and what its value must be.

use std::fmt;

use ipnet::IpNet;

use super::error::quoted;
use super::glob::Glob;
use super::network::Networks;
use super::rollout::Rollout;
use crate::request::Request;

/// What an attribute must be for a rule to apply.
///
/// An attribute whose value is empty counts as absent everywhere in a rule: a client that sends
/// an empty `X-API-Key` has no key, and gets no bucket of its own for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    attribute: Box<str>,
    test: Test,
}

impl Condition {
    /// The attribute passes the test.
    #[must_use]
    pub fn new(attribute: &str, test: Test) -> Self {
        Self { attribute: attribute.into(), test }
    }

    /// The attribute it looks at.
    #[must_use]
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// What it wants.
    #[must_use]
    pub fn test(&self) -> &Test {
        &self.test
    }

    /// Whether it wants nothing but one of some texts.
    pub(super) fn is_exact(&self) -> bool {
        matches!(&self.test, Test::OneOf(patterns) if patterns.globs().len() == 0)
    }

    /// Whether the request satisfies it.
    #[must_use]
    pub fn holds(&self, request: &Request<'_>) -> bool {
        self.test.passes(present(request, &self.attribute))
    }
}

/// The value of an attribute that the request has and that is not empty.
pub(super) fn present<'q>(request: &'q Request<'_>, attribute: &str) -> Option<&'q str> {
    request.get(attribute).filter(|value| !value.is_empty())
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// Equal to one of some texts, or described by one of some patterns.
    OneOf(Patterns),
    /// An IP address in one of some networks.
    In(Networks),
    /// There, and not empty.
    Present,
    /// Not there, or empty.
    Absent,
}

impl Test {
    /// Equal to the text, or described by it if it has stars: `GET`, `/v1/**`.
    #[must_use]
    pub fn like(pattern: &str) -> Self {
        Self::OneOf(Patterns::new([Pattern::like(pattern)]))
    }

    /// Equal to the text, stars and all.
    #[must_use]
    pub fn is(text: &str) -> Self {
        Self::OneOf(Patterns::new([Pattern::Exact(text.into())]))
    }

    /// An address in one of the networks.
    #[must_use]
    pub fn within(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self::In(Networks::new(networks))
    }

    /// Whether a value passes; `None` is an attribute that is absent or empty.
    #[must_use]
    pub fn passes(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Absent, value) => value.is_none(),
            (_, None) => false,
            (Self::Present, Some(_)) => true,
            (Self::OneOf(patterns), Some(value)) => patterns.describe(value),
            (Self::In(networks), Some(value)) => networks.contain(value),
        }
    }
}

/// A text that a value may be equal to, or a pattern that may describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The value itself.
    Exact(Box<str>),
    /// Stars in it.
    Glob(Glob),
}

impl Pattern {
    /// A glob if the text has stars in it, else the text itself.
    #[must_use]
    pub fn like(text: &str) -> Self {
        Glob::new(text).map_or_else(|| Self::Exact(text.into()), Self::Glob)
    }
}

/// Some texts and patterns, of which one must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns {
    /// Sorted: a list may name ten thousand customers.
    exact: Box<[Box<str>]>,
    globs: Box<[Glob]>,
}

impl Patterns {
    /// Any of these.
    #[must_use]
    pub fn new(patterns: impl IntoIterator<Item = Pattern>) -> Self {
        let (mut exact, mut globs) = (Vec::new(), Vec::new());
        for pattern in patterns {
            match pattern {
                Pattern::Exact(text) => exact.push(text),
                Pattern::Glob(glob) => globs.push(glob),
            }
        }
        exact.sort_unstable();
        exact.dedup();
        Self { exact: exact.into(), globs: globs.into() }
    }

    fn describe(&self, value: &str) -> bool {
        self.exact.binary_search_by(|text| (**text).cmp(value)).is_ok()
            || self.globs.iter().any(|glob| glob.matches(value))
    }

    /// The texts, sorted.
    pub fn exact(&self) -> impl ExactSizeIterator<Item = &str> {
        self.exact.iter().map(|text| &**text)
    }

    /// The patterns with stars.
    pub fn globs(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.globs.iter()
    }
}

/// Most alternatives that are spelled out.
const SPELLED: usize = 5;

/// What is wanted, as a phrase: `"GET" or "POST"`, `an address in 10.0.0.0/8`.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(patterns) => {
                let exact = patterns.exact().map(quoted);
                let globs = patterns.globs().map(|glob| quoted(&glob.to_string()));
                either(f, exact.len() + globs.len(), exact.chain(globs))
            }
            Self::In(networks) => {
                f.write_str("an address in ")?;
                either(f, networks.iter().len(), networks.iter())
            }
            Self::Present => f.write_str("any value"),
            Self::Absent => f.write_str("none"),
        }
    }
}

fn either<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    count: usize,
    items: impl Iterator<Item = T>,
) -> fmt::Result {
    let spelled = if count > SPELLED { SPELLED - 1 } else { count };
    for (index, item) in items.take(spelled).enumerate() {
        match index {
            0 => write!(f, "{item}")?,
            _ if index + 1 == count => write!(f, " or {item}")?,
            _ => write!(f, ", {item}")?,
        }
    }
    match count - spelled {
        0 => Ok(()),
        more => write!(f, " or {more} others"),
    }
}

/// Why a rule does not apply to a request.
///
/// Prints what the request said: for the operator who asks, not for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch<'a> {
    /// The rule is switched off.
    Off,
    /// The first condition that does not hold.
    Condition {
        /// The attribute it looks at.
        attribute: &'a str,
        /// What the request says; `None` when it says nothing.
        found: Option<&'a str>,
        /// What the rule wants.
        wanted: &'a Test,
    },
    /// The client is outside the share that the rule is for.
    Rollout(Rollout),
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("the rule is off"),
            Self::Condition { attribute, found, wanted } => {
                let found = found.map_or_else(|| "absent".to_owned(), quoted);
                write!(f, "{attribute} is {found}, wanted {wanted}")
            }
            Self::Rollout(share) => {
                write!(f, "the client is not among the {share} that the rule is rolled out to")
            }
        }
    }
}
