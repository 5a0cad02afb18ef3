//! Reading of single attributes, for servers that set others themselves.

use std::borrow::Cow;

use http::HeaderName;
use http::request::Parts;

use super::source::{AmbiguousValue, AttributeSource};

/// The location of an attribute in HTTP requests: resolved once by name, then read from any request.
///
/// Every spelling of one host or parameter is the same value. Method and path are read as they are: call
/// [`canonicalize`](super::canonicalize) before.
///
/// ```
/// use tidegate::tower::Lookup;
///
/// let tenant = Lookup::named("query.tenant").unwrap();
/// let (head, ()) = http::Request::get("/v1/orders?tenant=acme+inc").body(())?.into_parts();
/// assert_eq!(tenant.read(&head).as_deref(), Some("acme inc"));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lookup(AttributeSource);

impl Lookup {
    /// Returns the location of `method`, `host`, `path`, `api_key`, `ip`, `query.NAME`, `header.NAME` or
    /// `cookie.NAME`. `ip` needs a [`SocketAddr`](std::net::SocketAddr) in the extensions of the request.
    ///
    /// Returns `None` for any other name: HTTP requests do not have it.
    #[must_use]
    pub fn named(attribute: &str) -> Option<Self> {
        AttributeSource::for_attribute(attribute).map(Self)
    }

    /// Returns the value in a request, if it has one.
    #[must_use]
    pub fn read<'r>(&self, head: &'r Parts) -> Option<Cow<'r, str>> {
        self.0.read(head)
    }

    /// As [`read`](Self::read), for an attribute that identifies a client and must have one value. A header must
    /// occur once; a cookie or parameter may occur again with the same value.
    ///
    /// # Errors
    /// The request has several values. Servers differ in the one that they use.
    pub fn read_unique<'r>(&self, head: &'r Parts) -> Result<Option<Cow<'r, str>>, AmbiguousValue> {
        self.0.read_unique(head)
    }

    /// Returns the name of the header, if the attribute is in one.
    #[must_use]
    pub fn header(&self) -> Option<&HeaderName> {
        match &self.0 {
            AttributeSource::Header(name) => Some(name),
            _ => None,
        }
    }
}
