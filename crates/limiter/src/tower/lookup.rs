//! Reading of single attributes, for servers that set others themselves.

use std::borrow::Cow;

use http::request::Parts;

use super::source::AttributeSource;

/// The location of an attribute in HTTP requests: resolved once by name, then read from any request.
///
/// Values are normalized as in [`RateLimitLayer`](super::RateLimitLayer): every spelling of one host, path
/// or parameter is the same value.
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
}
