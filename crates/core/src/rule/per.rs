//! Whom a rule counts: the attributes whose values name the client.

use std::fmt;

use smallvec::SmallVec;

use super::condition::present;
use crate::key::Part;
use crate::request::Request;

/// The attributes of which the first present one names the client: `user | api_key | ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    attributes: SmallVec<[Box<str>; 1]>,
    text: Box<str>,
}

impl Chain {
    /// Most attributes of one chain.
    pub const MAX_ALTERNATIVES: usize = 16;

    pub(super) fn new(attributes: SmallVec<[Box<str>; 1]>) -> Self {
        let text = attributes.join(" | ").into();
        Self { attributes, text }
    }

    /// The attributes, most wanted first.
    pub fn attributes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.attributes.iter().map(|attribute| &**attribute)
    }

    /// The chain as a rule spells it, the same for every way to space it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first attribute that the request has, and that is not empty.
    #[must_use]
    pub fn pick<'a>(&'a self, request: &'a Request<'_>) -> Option<Picked<'a>> {
        (0..).zip(&self.attributes).find_map(|(alternative, attribute)| {
            present(request, attribute).map(|value| Picked { alternative, attribute, value })
        })
    }

    /// The request's part of the key: the first value present, or [`Part::Absent`].
    #[inline]
    pub(super) fn part<'q>(&self, request: &'q Request<'_>) -> Part<'q> {
        for (alternative, attribute) in (0..).zip(&self.attributes) {
            if let Some(value) = present(request, attribute) {
                return Part::Value { alternative, value: value.as_bytes() };
            }
        }
        Part::Absent
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The attribute that a chain settled on for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked<'a> {
    /// Its place in the chain.
    pub alternative: u16,
    /// Its name.
    pub attribute: &'a str,
    /// What the request says; may be a secret.
    pub value: &'a str,
}
