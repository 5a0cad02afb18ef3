//! A request to be limited: its attributes and its cost.

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;

/// One request to be limited: named attributes and a cost.
///
/// Any name is allowed; a rule reads the attributes that it mentions. If a name is given twice, the first value counts.
/// Borrowed values cost no allocation for up to six attributes.
///
/// ```
/// use tidegate_core::Request;
///
/// let request = Request::new().with("ip", "192.0.2.7")?.with("path", "/v1/orders")?.cost(3);
/// assert_eq!(request.get("ip"), Some("192.0.2.7"));
/// assert_eq!(request.get("user"), None);
/// # Ok::<(), tidegate_core::RequestError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Six inline: enough for most requests, and small enough to move cheaply.
    attributes: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 6]>,
    cost: u64,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Request<'a> {
    /// Most attributes of one request.
    pub const MAX_ATTRIBUTES: usize = 64;
    /// Longest attribute name in bytes.
    pub const MAX_NAME: usize = 128;
    /// Longest attribute value in bytes.
    pub const MAX_VALUE: usize = 8 * 1024;

    /// Returns a request without attributes and with a cost of 1.
    #[must_use]
    pub fn new() -> Self {
        Self { attributes: SmallVec::new(), cost: 1 }
    }

    /// Returns the same request with another cost; 0 peeks, which changes no state.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Returns the same request with one more attribute.
    ///
    /// # Errors
    /// The name or value is too long, or there are too many attributes.
    pub fn with(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<Self, RequestError> {
        self.insert(name, value)?;
        Ok(self)
    }

    /// Adds an attribute.
    ///
    /// # Errors
    /// The name or value is too long, or there are too many attributes.
    pub fn insert(
        &mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<(), RequestError> {
        let (name, value) = (name.into(), value.into());
        if name.is_empty() || name.len() > Self::MAX_NAME {
            return Err(RequestError::Name { found: name.len() });
        }
        if value.len() > Self::MAX_VALUE {
            return Err(RequestError::Value { name: name.into_owned(), found: value.len() });
        }
        if self.attributes.len() == Self::MAX_ATTRIBUTES {
            return Err(RequestError::TooMany);
        }
        self.attributes.push((name, value));
        Ok(())
    }

    /// Returns the value of an attribute, if the request has it.
    #[inline]
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_ref())
    }

    /// Returns the cost.
    #[must_use]
    pub fn costs(&self) -> u64 {
        self.cost
    }

    /// Returns the same request with a shorter lifetime, so that more attributes can be borrowed from shorter-lived
    /// values. Only the list is copied.
    #[must_use]
    pub fn within<'b>(self) -> Request<'b>
    where
        'a: 'b,
    {
        // The list can't be used as one of a shorter lifetime by itself: its type is invariant.
        let mut attributes = SmallVec::with_capacity(self.attributes.len());
        for attribute in self.attributes {
            attributes.push(attribute);
        }
        Request { attributes, cost: self.cost }
    }

    /// Returns the attributes in the order of insertion.
    #[inline]
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }
}

/// The error of a rejected attribute.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The name is empty or too long.
    #[error("attribute name must be 1 to {} bytes long, found {found}", Request::MAX_NAME)]
    Name {
        /// Its length in bytes.
        found: usize,
    },
    /// The value is too long.
    #[error("attribute {name:?} must be at most {} bytes long, found {found}", Request::MAX_VALUE)]
    Value {
        /// The attribute.
        name: String,
        /// Its value's length in bytes.
        found: usize,
    },
    /// There are too many attributes.
    #[error("a request has at most {} attributes", Request::MAX_ATTRIBUTES)]
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_an_oversized_attribute_has_its_name_and_size() {
        let long = "x".repeat(Request::MAX_VALUE + 1);
        let error = Request::new().with("path", long.as_str()).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"attribute "path" must be at most 8192 bytes long, found 8193"#
        );
        let error = Request::new().with("", "x").unwrap_err();
        assert_eq!(error.to_string(), "attribute name must be 1 to 128 bytes long, found 0");
        let mut full = Request::new();
        for index in 0..Request::MAX_ATTRIBUTES {
            full.insert(format!("a{index}"), "x").unwrap();
        }
        assert_eq!(full.insert("one", "more"), Err(RequestError::TooMany));
    }

    #[test]
    fn the_first_value_of_a_name_counts() {
        let request = Request::new().with("ip", "a").unwrap().with("ip", "b").unwrap();
        assert_eq!(request.get("ip"), Some("a"));
    }
}
