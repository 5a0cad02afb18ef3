//! Access control of the admin listener.
//!
//! Without a token the listener is on loopback only. Browsers on the same machine are still a risk, so requests of web
//! pages are checked with and without a token.

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Response, StatusCode};
use tidegate_net::http::page_guard::{PageError, PageGuard};
use tidegate_net::http::response::{self, Body};
use tidegate_net::token::BearerToken;

/// POST endpoints that only compute. The read token permits them.
const COMPUTING_PATHS: [&str; 2] = ["/v1/lab", "/v1/rules/diff"];

/// The access check of every request.
#[derive(Debug)]
pub struct AccessGuard {
    tokens: Option<TokenHashes>,
    page_guard: PageGuard,
}

/// The hashes of the tokens. Hashes are compared in constant time.
#[derive(Debug)]
struct TokenHashes {
    full: blake3::Hash,
    read: Option<blake3::Hash>,
}

impl AccessGuard {
    /// Returns a guard that requires a token, if there is one. A request that changes nothing may have the read token.
    /// `address` is the configured address of the listener.
    pub fn new(
        token: Option<&BearerToken>,
        read_token: Option<&BearerToken>,
        address: &str,
    ) -> Self {
        let hash = |token: &BearerToken| blake3::hash(token.as_str().as_bytes());
        let tokens = token.map(|full| TokenHashes { full: hash(full), read: read_token.map(hash) });
        Self { tokens, page_guard: PageGuard::new(address) }
    }

    /// Checks the origin and the token of a request.
    ///
    /// # Errors
    /// The reason of the rejection.
    pub(crate) fn authenticate(&self, head: &RequestHead<'_>) -> Result<(), AuthError> {
        self.check_origin(head.headers)?;
        self.tokens.as_ref().map_or(Ok(()), |tokens| tokens.verify(head))
    }

    /// Checks the origin of a request, and its host if there is no token. Files of the dashboard need no more: they are
    /// the same on every server.
    ///
    /// # Errors
    /// The reason of the rejection.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        self.page_guard.check_origin(headers)?;
        if self.tokens.is_none() {
            self.page_guard.check_host(headers)?;
        }
        Ok(())
    }
}

/// The parts of a request that decide about its access.
pub(crate) struct RequestHead<'r> {
    pub(crate) method: &'r Method,
    pub(crate) path: &'r str,
    pub(crate) headers: &'r HeaderMap,
}

impl RequestHead<'_> {
    fn changes_nothing(&self) -> bool {
        matches!(*self.method, Method::GET | Method::HEAD | Method::OPTIONS)
            || (*self.method == Method::POST && COMPUTING_PATHS.contains(&self.path))
    }
}

impl TokenHashes {
    fn verify(&self, head: &RequestHead<'_>) -> Result<(), AuthError> {
        let Some(sent) = head.headers.get(AUTHORIZATION) else {
            return Err(AuthError::NoToken);
        };
        let sent = sent.to_str().ok().and_then(|value| value.split_once(' '));
        let sent = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = sent else { return Err(AuthError::WrongToken) };
        let hash = blake3::hash(token.trim().as_bytes());
        if hash == self.full {
            return Ok(());
        }
        match self.read {
            Some(read) if hash == read && head.changes_nothing() => Ok(()),
            Some(read) if hash == read => {
                Err(AuthError::ReadToken { change: format!("{} {}", head.method, head.path) })
            }
            _ => Err(AuthError::WrongToken),
        }
    }
}

/// The reason why a request is rejected.
#[derive(Debug)]
pub(crate) enum AuthError {
    Page(PageError),
    NoToken,
    WrongToken,
    /// The request changes something and has the read token.
    ReadToken {
        change: String,
    },
}

impl From<PageError> for AuthError {
    fn from(error: PageError) -> Self {
        Self::Page(error)
    }
}

impl AuthError {
    pub(crate) fn response(&self) -> Response<Body> {
        let found = match self {
            Self::Page(error) => return error.response(),
            Self::ReadToken { change } => {
                let change = tidegate_core::quote(change);
                let detail = format!(
                    "authorization: found the read token, wanted the full token of this listener for {change}"
                );
                return response::problem(StatusCode::FORBIDDEN, &detail);
            }
            Self::NoToken => "none",
            Self::WrongToken => "another token",
        };
        let detail =
            format!("authorization: found {found}, wanted Bearer and the token of this listener");
        let mut response = response::problem(StatusCode::UNAUTHORIZED, &detail);
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        response
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    fn sent(
        guard: &AccessGuard,
        (method, path): (Method, &str),
        headers: &[(&'static str, &str)],
    ) -> u16 {
        let headers = headers.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        let headers = headers.collect();
        let head = RequestHead { method: &method, path, headers: &headers };
        let result = guard.authenticate(&head);
        result.map_or_else(|error| error.response().status().as_u16(), |()| 200)
    }

    fn status(guard: &AccessGuard, headers: &[(&'static str, &str)]) -> u16 {
        sent(guard, (Method::PUT, "/v1/rules"), headers)
    }

    #[test]
    fn foreign_host_name_is_rejected_only_without_a_token() {
        let token: BearerToken = "0123456789abcdef".parse().unwrap();
        let open = AccessGuard::new(None, None, "127.0.0.1:9090");
        let closed = AccessGuard::new(Some(&token), None, "127.0.0.1:9090");
        let headers = [("host", "limits.example"), ("authorization", "Bearer 0123456789abcdef")];
        assert_eq!((status(&open, &headers), status(&closed, &headers)), (403, 200));
        assert_eq!(status(&open, &[("host", "127.0.0.1:9090")]), 200);
    }

    #[test]
    fn foreign_origin_is_rejected_with_and_without_a_token() {
        let token: BearerToken = "0123456789abcdef".parse().unwrap();
        let open = AccessGuard::new(None, None, "127.0.0.1:9090");
        let closed = AccessGuard::new(Some(&token), None, "127.0.0.1:9090");
        for (origin, expected) in [("http://127.0.0.1:9090", 200), ("http://evil.example", 403)] {
            let headers = [("host", "127.0.0.1:9090"), ("origin", origin)];
            assert_eq!(status(&open, &headers), expected, "{origin}");
            let authorized = [headers[0], headers[1], ("authorization", "Bearer 0123456789abcdef")];
            assert_eq!(status(&closed, &authorized), expected, "{origin}");
        }
    }

    #[test]
    fn listener_with_a_token_accepts_only_that_token() {
        let token: BearerToken = "0123456789abcdef".parse().unwrap();
        let guard = AccessGuard::new(Some(&token), None, "0.0.0.0:9090");
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

    #[test]
    fn read_token_permits_only_requests_that_change_nothing() {
        let full: BearerToken = "0123456789abcdef".parse().unwrap();
        let read: BearerToken = "fedcba9876543210".parse().unwrap();
        let guard = AccessGuard::new(Some(&full), Some(&read), "0.0.0.0:9090");
        for (method, path, expected) in [
            (Method::GET, "/metrics", 200),
            (Method::HEAD, "/v1/rules", 200),
            (Method::OPTIONS, "/v1/rules", 200),
            (Method::GET, "/v1/clients/api/alice", 200),
            (Method::POST, "/v1/lab", 200),
            (Method::POST, "/v1/rules/diff", 200),
            (Method::PUT, "/v1/rules", 403),
            (Method::PUT, "/v1/rules/diff", 403),
            (Method::POST, "/v1/block", 403),
            (Method::DELETE, "/v1/block", 403),
            (Method::POST, "/v1/refund", 403),
            (Method::DELETE, "/v1/clients/api/alice", 403),
            (Method::PATCH, "/unknown", 403),
        ] {
            let with = |token| {
                let headers = [("authorization", token)];
                sent(&guard, (method.clone(), path), &headers)
            };
            assert_eq!(with("Bearer fedcba9876543210"), expected, "{method} {path}");
            assert_eq!(with("Bearer 0123456789abcdef"), 200, "{method} {path}");
            assert_eq!(with("Bearer fedcba9876543211"), 401, "{method} {path}");
        }
    }
}
