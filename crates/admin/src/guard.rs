//! Access control of the admin listener.
//!
//! Without a token the listener is on loopback only. Browsers on the same machine are still a risk: a page of another
//! origin can send requests here. If its host name resolves to 127.0.0.1 (DNS rebinding), it can also read responses.

use std::net::IpAddr;

use hyper::header::{
    AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use tidegate_core::quote;
use tidegate_net::http::response::{self, Body};
use tidegate_net::token::BearerToken;

/// The access check of every request.
#[derive(Debug)]
pub struct AccessGuard {
    /// The hash of the token. Hashes are compared in constant time.
    token: Option<blake3::Hash>,
    /// The configured host of the listener, in lower case.
    host: String,
}

impl AccessGuard {
    /// Returns a guard that requires the token, if there is one. `address` is the configured address of the listener.
    pub fn new(token: Option<&BearerToken>, address: &str) -> Self {
        Self {
            token: token.map(|token| blake3::hash(token.as_str().as_bytes())),
            host: host_of(address).to_ascii_lowercase(),
        }
    }

    /// Checks the origin and the token of a request.
    ///
    /// # Errors
    /// The reason of the rejection.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        self.check_origin(headers)?;
        self.token.map_or(Ok(()), |token| verify_bearer(headers, token))
    }

    /// Checks the origin of a request, and its host if there is no token. Files of the dashboard need no more: they are
    /// the same on every server.
    ///
    /// # Errors
    /// The reason of the rejection.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        let host = text(headers, &HOST);
        if let Some(origin) = headers.get(ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let page = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            if page.is_none() || page != host {
                return Err(AuthError::Origin(quote(origin)));
            }
        }
        match self.token {
            Some(_) => Ok(()),
            None => self.check_host(host.unwrap_or_default()),
        }
    }

    /// Rejects host names that may belong to another party and resolve to this listener (DNS rebinding).
    fn check_host(&self, host: &str) -> Result<(), AuthError> {
        let name = host_of(host).to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if address.is_ok() || name == "localhost" || (!name.is_empty() && name == self.host) {
            return Ok(());
        }
        Err(AuthError::Host(quote(host)))
    }
}

fn verify_bearer(headers: &HeaderMap, token: blake3::Hash) -> Result<(), AuthError> {
    let sent = text(headers, &AUTHORIZATION).and_then(|value| value.split_once(' '));
    let matches = sent.is_some_and(|(scheme, sent)| {
        scheme.eq_ignore_ascii_case("bearer") && blake3::hash(sent.trim().as_bytes()) == token
    });
    if matches { Ok(()) } else { Err(AuthError::BearerToken { sent: sent.is_some() }) }
}

/// The reason why a request is rejected.
#[derive(Debug)]
pub(crate) enum AuthError {
    Origin(String),
    Host(String),
    BearerToken { sent: bool },
}

impl AuthError {
    pub(crate) fn response(&self) -> Response<Body> {
        match self {
            Self::Origin(origin) => {
                let detail = format!("origin: found {origin}, wanted none or this listener's own");
                response::problem(StatusCode::FORBIDDEN, &detail)
            }
            Self::Host(host) => {
                let wanted = "an address or localhost (with a token, any name)";
                let detail = format!("host: found {host}, wanted {wanted}");
                response::problem(StatusCode::FORBIDDEN, &detail)
            }
            Self::BearerToken { sent } => {
                let found = if *sent { "another token" } else { "none" };
                let wanted = "Bearer and the token of this listener";
                let detail = format!("authorization: found {found}, wanted {wanted}");
                let mut response = response::problem(StatusCode::UNAUTHORIZED, &detail);
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                response
            }
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
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
    use super::*;

    fn status(guard: &AccessGuard, headers: &[(&'static str, &str)]) -> u16 {
        let headers = headers.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        let result = guard.authenticate(&headers.collect());
        result.map_or_else(|error| error.response().status().as_u16(), |()| 200)
    }

    #[test]
    fn foreign_host_name_is_rejected_without_a_token() {
        let guard = AccessGuard::new(None, "Box.internal:9090");
        for (host, expected) in [
            ("127.0.0.1:9090", 200),
            ("[::1]:9090", 200),
            ("localhost:9090", 200),
            ("LOCALHOST", 200),
            ("box.internal:9090", 200),
            ("10.0.0.5", 200),
            ("evil.example:9090", 403),
            ("127.0.0.1.evil.example", 403),
            ("", 403),
            (":9090", 403),
        ] {
            assert_eq!(status(&guard, &[("host", host)]), expected, "{host}");
        }
        assert_eq!(status(&guard, &[]), 403);
    }

    #[test]
    fn foreign_origin_is_rejected_with_and_without_a_token() {
        let token: BearerToken = "0123456789abcdef".parse().unwrap();
        let open = AccessGuard::new(None, "127.0.0.1:9090");
        let closed = AccessGuard::new(Some(&token), "127.0.0.1:9090");
        for (origin, expected) in [
            ("http://127.0.0.1:9090", 200),
            ("https://127.0.0.1:9090", 200),
            ("http://127.0.0.1:8080", 403),
            ("http://evil.example", 403),
            ("null", 403),
            ("", 403),
        ] {
            let headers = [("host", "127.0.0.1:9090"), ("origin", origin)];
            assert_eq!(status(&open, &headers), expected, "{origin}");
            let authorized = [headers[0], headers[1], ("authorization", "Bearer 0123456789abcdef")];
            assert_eq!(status(&closed, &authorized), expected, "{origin}");
        }
    }

    #[test]
    fn listener_with_a_token_accepts_only_that_token() {
        let token: BearerToken = "0123456789abcdef".parse().unwrap();
        let guard = AccessGuard::new(Some(&token), "0.0.0.0:9090");
        for (sent, expected) in [
            ("Bearer 0123456789abcdef", 200),
            ("bearer 0123456789abcdef", 200),
            ("Bearer 0123456789abcdeF", 401),
            ("Bearer 0123456789abcde", 401),
            ("Bearer ", 401),
            ("Bearer", 401),
            ("Basic 0123456789abcdef", 401),
            ("0123456789abcdef", 401),
            ("", 401),
        ] {
            assert_eq!(status(&guard, &[("authorization", sent)]), expected, "{sent}");
        }
        assert_eq!(status(&guard, &[("host", "127.0.0.1")]), 401);
        assert!(guard.check_origin(&HeaderMap::new()).is_ok());
    }
}
