//! One attribute at a time, for servers that know more of a client than the request says.

use std::borrow::Cow;

use http::request::Parts;

use super::source::Source;

/// Where an HTTP request has an attribute: found once by name, read from any number of requests.
///
/// Values are those that [`RateLimitLayer`](super::RateLimitLayer) sees: every spelling of one host,
/// path or parameter is the same value.
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
pub struct Lookup(Source);

impl Lookup {
    /// How to find `method`, `host`, `path`, `api_key`, `query.NAME`, `header.NAME` or `cookie.NAME`;
    /// `ip` where the server left a [`SocketAddr`](std::net::SocketAddr) among the extensions.
    ///
    /// `None` for any other name: requests do not have it by themselves.
    #[must_use]
    pub fn named(attribute: &str) -> Option<Self> {
        Source::of(attribute).map(Self)
    }

    /// The value that a request has, if it has one.
    #[must_use]
    pub fn read<'r>(&self, head: &'r Parts) -> Option<Cow<'r, str>> {
        self.0.read(head)
    }
}
