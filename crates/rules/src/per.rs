//! The attributes that name the client of a rule.

use std::fmt;

use smallvec::SmallVec;
use tidegate_core::{Part, Request};

use crate::condition::present;
use crate::error::quote;

/// A chain of attributes, the first present one of which names the client: `user | api_key | ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeChain {
    attributes: SmallVec<[Box<str>; 1]>,
    text: Box<str>,
}

impl AttributeChain {
    /// Maximum number of attributes in one chain.
    pub const MAX_ALTERNATIVES: usize = 16;

    /// Reads `user | api_key | ip`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let attributes = text.split('|').map(|name| {
            let name = name.trim();
            check_attribute(name).map(|()| Box::from(name))
        });
        let attributes: SmallVec<[Box<str>; 1]> = attributes.collect::<Result<_, String>>()?;
        if attributes.len() > Self::MAX_ALTERNATIVES {
            let (most, found) = (Self::MAX_ALTERNATIVES, attributes.len());
            return Err(format!(
                "per must name at most {most} attributes in one chain, found {found}"
            ));
        }
        let text = attributes.join(" | ").into();
        Ok(Self { attributes, text })
    }

    /// Returns the attributes, the preferred one first.
    pub fn attributes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.attributes.iter().map(|attribute| &**attribute)
    }

    /// Returns the chain as text, with normalised spaces.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the first attribute that the request has and that is not empty.
    #[must_use]
    pub fn pick<'a>(&'a self, request: &'a Request<'_>) -> Option<PickedAttribute<'a>> {
        (0..).zip(&self.attributes).find_map(|(alternative, attribute)| {
            present(request, attribute).map(|value| PickedAttribute {
                alternative,
                attribute,
                value,
            })
        })
    }

    /// Returns the request's part of the key: the first value present, or [`Part::Absent`].
    #[inline]
    pub(crate) fn part<'q>(&self, request: &'q Request<'_>) -> Part<'q> {
        for (alternative, attribute) in (0..).zip(&self.attributes) {
            if let Some(value) = present(request, attribute) {
                return Part::Value { alternative, value: value.as_bytes() };
            }
        }
        Part::Absent
    }
}

impl fmt::Display for AttributeChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The attribute of a chain that names the client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickedAttribute<'a> {
    /// Its position in the chain.
    pub alternative: u16,
    /// Its name.
    pub attribute: &'a str,
    /// Its value in the request; may be a secret.
    pub value: &'a str,
}

/// Checks the name of an attribute: any text that can be part of a chain.
pub(crate) fn check_attribute(name: &str) -> Result<(), String> {
    let fits = (1..=Request::MAX_NAME).contains(&name.len());
    if fits && name.trim() == name && !name.contains(|c: char| c == '|' || c.is_control()) {
        return Ok(());
    }
    Err(format!(
        "attribute must be 1 to {} bytes without '|', found {}",
        Request::MAX_NAME,
        quote(name)
    ))
}
