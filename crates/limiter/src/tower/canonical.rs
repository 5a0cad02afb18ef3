//! The canonical form of HTTP request heads.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Uri};
use tidegate_core::{CanonicalError, EncodedSlashes, canonical_host, canonical_path, check_method};

/// Rewrites the path of a request to its canonical form, and checks its method and host.
///
/// Returns the original target if the path was rewritten. The query stays as it is. [`Lookup`](super::Lookup) reads a
/// head as it is, so servers call this before they read attributes.
///
/// ```
/// use tidegate::tower::canonicalize;
/// use tidegate::EncodedSlashes;
///
/// let (mut head, ()) = http::Request::get("//x/../log%69n?next=%2F").body(())?.into_parts();
/// let original = canonicalize(&mut head, EncodedSlashes::Reject).unwrap();
/// assert_eq!(head.uri, "/login?next=%2F");
/// assert_eq!(original.unwrap().path(), "//x/../log%69n");
/// # Ok::<(), http::Error>(())
/// ```
///
/// # Errors
/// Method, host or path have no canonical form. A request without a host passes.
pub fn canonicalize(
    head: &mut Parts,
    slashes: EncodedSlashes,
) -> Result<Option<PathAndQuery>, CanonicalError> {
    check_method(head.method.as_str())?;
    if let Some(host) = host_text(head)? {
        canonical_host(host)?;
    }
    canonicalize_path(head, slashes)
}

/// Rewrites the path of a request to its canonical form. Returns the original target if the path was rewritten.
///
/// # Errors
/// The path has no canonical form.
pub fn canonicalize_path(
    head: &mut Parts,
    slashes: EncodedSlashes,
) -> Result<Option<PathAndQuery>, CanonicalError> {
    let path = match path(head, slashes)? {
        Cow::Borrowed(_) => return Ok(None),
        Cow::Owned(path) if path == head.uri.path() => return Ok(None),
        Cow::Owned(path) => path,
    };
    let target = match head.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    // A canonical path has only characters that a target may have.
    let target = PathAndQuery::from_maybe_shared(Bytes::from(target))
        .map_err(|_| CanonicalError::InvalidEscape)?;
    let original = head.uri.path_and_query().cloned();
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.path_and_query = Some(target);
    // Only the path changed, so the parts still fit together.
    head.uri = Uri::from_parts(parts).map_err(|_| CanonicalError::InvalidEscape)?;
    Ok(original)
}

/// Returns the canonical path of a request. `OPTIONS *` has the path `*`, and CONNECT to an authority has none.
///
/// # Errors
/// See [`canonical_path`].
pub(crate) fn path(head: &Parts, slashes: EncodedSlashes) -> Result<Cow<'_, str>, CanonicalError> {
    match (head.uri.path(), &head.method) {
        (path @ "*", &Method::OPTIONS) | (path @ "", &Method::CONNECT) => Ok(path.into()),
        (path, _) => canonical_path(path, slashes),
    }
}

/// Returns the host in lower case, without port and final dot.
///
/// # Errors
/// See [`canonical_host`].
pub(crate) fn host(head: &Parts) -> Result<Option<Cow<'_, str>>, CanonicalError> {
    let Some(host) = host_text(head)? else { return Ok(None) };
    Ok(Some(canonical_host(host)?.name))
}

/// Returns the method, if it is in upper case.
///
/// # Errors
/// See [`check_method`].
pub(crate) fn method(head: &Parts) -> Result<&str, CanonicalError> {
    let method = head.method.as_str();
    check_method(method).map(|()| method)
}

/// Returns the authority of the target without user information, or else the `Host` header.
fn host_text(head: &Parts) -> Result<Option<&str>, CanonicalError> {
    if let Some(authority) = head.uri.authority() {
        let text = authority.as_str();
        return Ok(Some(text.rsplit_once('@').map_or(text, |(_, host)| host)));
    }
    let Some(host) = head.headers.get(HOST) else { return Ok(None) };
    host.to_str().map(Some).map_err(|_| CanonicalError::InvalidHost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(method: &str, target: &str, host: Option<&str>) -> Result<String, CanonicalError> {
        let request = http::Request::builder().method(method).uri(target);
        let request = host.into_iter().fold(request, |request, host| request.header(HOST, host));
        let mut head = request.body(()).unwrap().into_parts().0;
        canonicalize(&mut head, EncodedSlashes::Reject)?;
        Ok(head.uri.to_string())
    }

    #[test]
    fn path_is_rewritten_and_the_query_stays() {
        for (target, expected) in [
            ("/login", "/login"),
            ("//login?a=//b/../%zz", "/login?a=//b/../%zz"),
            ("/%2e/login?", "/login?"),
            ("http://shop.example//login", "http://shop.example/login"),
            ("http://shop.example", "http://shop.example/"),
            ("/.well-known/x", "/.well-known/x"),
        ] {
            assert_eq!(canonical("GET", target, None).as_deref(), Ok(expected), "{target}");
        }
    }

    #[test]
    fn asterisk_and_authority_targets_keep_their_meaning() {
        assert_eq!(canonical("OPTIONS", "*", Some("a")).as_deref(), Ok("*"));
        assert_eq!(canonical("GET", "*", Some("a")), Err(CanonicalError::NoLeadingSlash));
        assert_eq!(canonical("CONNECT", "a.example:443", None).as_deref(), Ok("a.example:443"));
    }

    #[test]
    fn method_and_host_are_checked() {
        assert_eq!(canonical("post", "/", None), Err(CanonicalError::InvalidMethod));
        for host in ["shop.example:x", "shop.example..", ":80:80", ""] {
            assert_eq!(
                canonical("GET", "/", Some(host)),
                Err(CanonicalError::InvalidHost),
                "{host}"
            );
        }
        assert_eq!(canonical("GET", "http://a:x/", None), Err(CanonicalError::InvalidHost));
    }

    #[test]
    fn original_target_is_returned_only_if_the_path_changed() {
        for (target, is_rewritten) in
            [("/a", false), ("/caf%C3%A9", false), ("/.a", false), ("/%61", true), ("//a", true)]
        {
            let mut head = http::Request::get(target).body(()).unwrap().into_parts().0;
            let original = canonicalize(&mut head, EncodedSlashes::Reject).unwrap();
            assert_eq!(original.map(|line| line.to_string()), is_rewritten.then(|| target.into()));
        }
    }
}
