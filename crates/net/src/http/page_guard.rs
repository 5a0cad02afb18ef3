//! Rejects requests that a web page of another origin sends to a listener.
//!
//! A browser sends requests of any page to any address that it can reach, loopback included. If the host name of a page
//! resolves to the listener (DNS rebinding), the page can also read responses.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap, ORIGIN};
use hyper::{Response, StatusCode};
use tidegate_core::{CallError, InvalidReason, quote};

use crate::http::response::{self, Body};

/// The check of the headers `Origin` and `Host`.
#[derive(Debug)]
pub struct PageGuard {
    /// The configured host of the listener, in lower case.
    host: String,
}

impl PageGuard {
    /// Returns a guard. `address` is the configured address of the listener.
    pub fn new(address: &str) -> Self {
        Self { host: host_of(address).to_ascii_lowercase() }
    }

    /// Checks the origin and the host of a request that a page may have sent.
    ///
    /// A request without `Origin` passes: browsers send the header with every method except GET and HEAD.
    ///
    /// # Errors
    /// The origin is another one, or the host name may belong to another party.
    #[inline]
    pub fn check(&self, headers: &HeaderMap) -> Result<(), PageError> {
        match headers.contains_key(ORIGIN) {
            false => Ok(()),
            true => self.check_origin(headers).and_then(|()| self.check_host(headers)),
        }
    }

    /// Checks that the origin, if the request has one, is this listener.
    ///
    /// # Errors
    /// The origin is another one.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), PageError> {
        let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let page = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        match page {
            Some(page) if Some(page) == host(headers) => Ok(()),
            _ => Err(PageError::Origin(quote(origin))),
        }
    }

    /// Checks that the host is an address, `localhost` or the configured host.
    ///
    /// # Errors
    /// The host name may belong to another party and resolve to this listener.
    pub fn check_host(&self, headers: &HeaderMap) -> Result<(), PageError> {
        let host = host(headers).unwrap_or_default();
        let name = host_of(host).to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if address.is_ok() || name == "localhost" || (!name.is_empty() && name == self.host) {
            return Ok(());
        }
        Err(PageError::Host(quote(host)))
    }
}

/// The reason why a request of a page is rejected.
#[derive(Debug)]
pub enum PageError {
    Origin(String),
    Host(String),
}

impl PageError {
    /// Returns the response: 403 with the found and the wanted value.
    pub fn response(&self) -> Response<Body> {
        let (place, found, wanted) = self.parts();
        let detail = format!("{place}: found {found}, wanted {wanted}");
        response::problem(StatusCode::FORBIDDEN, &detail)
    }

    /// Returns the error as the one of a call that is not allowed, for its counter.
    pub fn call_error(&self) -> CallError {
        let (place, found, wanted) = self.parts();
        CallError::invalid(place, found, wanted).because(InvalidReason::NotAllowed)
    }

    fn parts(&self) -> (&'static str, &str, &'static str) {
        match self {
            Self::Origin(origin) => ("origin", origin, "none or this listener's own"),
            Self::Host(host) => ("host", host, "an address or localhost (with a token, any name)"),
        }
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST)?.to_str().ok()
}

/// Returns the host of an address: `localhost` of `localhost:9090`, `[::1]` of `[::1]:9090`.
fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(headers: &[(&'static str, &str)]) -> HeaderMap {
        let headers = headers.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        headers.collect()
    }

    #[test]
    fn host_name_of_another_party_is_rejected() {
        let guard = PageGuard::new("Box.internal:9090");
        for (host, expected) in [
            ("127.0.0.1:9090", true),
            ("[::1]:9090", true),
            ("localhost:9090", true),
            ("LOCALHOST", true),
            ("box.internal:9090", true),
            ("10.0.0.5", true),
            ("evil.example:9090", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
            (":9090", false),
        ] {
            assert_eq!(guard.check_host(&headers(&[("host", host)])).is_ok(), expected, "{host}");
        }
        assert!(guard.check_host(&HeaderMap::new()).is_err());
    }

    #[test]
    fn page_of_another_origin_is_rejected() {
        let guard = PageGuard::new("127.0.0.1:9090");
        for (origin, expected) in [
            ("http://127.0.0.1:9090", true),
            ("https://127.0.0.1:9090", true),
            ("http://127.0.0.1:8080", false),
            ("http://evil.example", false),
            ("null", false),
            ("", false),
        ] {
            let headers = headers(&[("host", "127.0.0.1:9090"), ("origin", origin)]);
            assert_eq!(guard.check_origin(&headers).is_ok(), expected, "{origin}");
            assert_eq!(guard.check(&headers).is_ok(), expected, "{origin}");
        }
    }

    #[test]
    fn page_whose_name_resolves_to_the_listener_is_rejected_and_a_program_is_not() {
        let guard = PageGuard::new("127.0.0.1:8080");
        let host = ("host", "evil.example:8080");
        let page = headers(&[host, ("origin", "http://evil.example:8080")]);
        assert!(matches!(guard.check(&page), Err(PageError::Host(_))));
        assert!(guard.check(&headers(&[host])).is_ok());
        assert!(guard.check(&HeaderMap::new()).is_ok());
    }
}
