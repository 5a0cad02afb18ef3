//! Who may use the admin listener.
//!
//! Without a token the listener is on loopback only, and still has to mind browsers on the same machine: a
//! page from elsewhere can make one send requests here, and a name that is made to point at 127.0.0.1
//! even lets it read the answers.

use std::net::IpAddr;

use hyper::header::{
    AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use tidegate_core::quote;
use tidegate_net::http::response::{self, Body};
use tidegate_net::token::BearerToken;

/// Lets operators in.
#[derive(Debug)]
pub struct Guard {
    /// Of the token only a hash, whose comparison takes the same time for every guess.
    token: Option<blake3::Hash>,
    /// The host that the listener was told to listen on, in lower case.
    host: String,
}

impl Guard {
    /// Asks for a token if there is one. `address` is where the listener was told to listen.
    pub fn new(token: Option<&BearerToken>, address: &str) -> Self {
        Self {
            token: token.map(|token| blake3::hash(token.as_str().as_bytes())),
            host: host_of(address).to_ascii_lowercase(),
        }
    }

    /// Lets a request go on.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<(), Stranger> {
        self.visit(headers)?;
        self.token.map_or(Ok(()), |token| bears(headers, token))
    }

    /// Lets somebody look at what is the same on every server, and says nothing of this one. It takes no token, and
    /// everything else.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(crate) fn visit(&self, headers: &HeaderMap) -> Result<(), Stranger> {
        let host = text(headers, &HOST);
        if let Some(origin) = headers.get(ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let page = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            if page.is_none() || page != host {
                return Err(Stranger::Origin(quote(origin)));
            }
        }
        match self.token {
            Some(_) => Ok(()),
            None => self.knows(host.unwrap_or_default()),
        }
    }

    /// Refuses names that somebody else may have made point at us.
    fn knows(&self, host: &str) -> Result<(), Stranger> {
        let name = host_of(host).to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if address.is_ok() || name == "localhost" || (!name.is_empty() && name == self.host) {
            return Ok(());
        }
        Err(Stranger::Host(quote(host)))
    }
}

fn bears(headers: &HeaderMap, token: blake3::Hash) -> Result<(), Stranger> {
    let sent = text(headers, &AUTHORIZATION).and_then(|value| value.split_once(' '));
    let right = sent.is_some_and(|(scheme, sent)| {
        scheme.eq_ignore_ascii_case("bearer") && blake3::hash(sent.trim().as_bytes()) == token
    });
    if right { Ok(()) } else { Err(Stranger::BearerToken { sent: sent.is_some() }) }
}

/// Why somebody is not let in.
#[derive(Debug)]
pub(crate) enum Stranger {
    Origin(String),
    Host(String),
    BearerToken { sent: bool },
}

impl Stranger {
    pub(crate) fn response(&self) -> Response<Body> {
        match self {
            Self::Origin(origin) => {
                let detail = format!("origin: found {origin}, wanted none or this listener's own");
                response::problem(StatusCode::FORBIDDEN, &detail)
            }
            Self::Host(host) => {
                let wanted = "an address or localhost (with a token any name will do)";
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

/// `localhost` of `localhost:9090`, `[::1]` of `[::1]:9090`.
fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(guard: &Guard, headers: &[(&'static str, &str)]) -> u16 {
        let headers = headers.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        let admitted = guard.admit(&headers.collect());
        admitted.map_or_else(|stranger| stranger.response().status().as_u16(), |()| 200)
    }

    #[test]
    fn a_name_that_somebody_else_may_own_is_refused_without_a_token() {
        let guard = Guard::new(None, "Box.internal:9090");
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
    fn a_page_from_elsewhere_is_refused_with_or_without_a_token() {
        let token: BearerToken = "0123456789abcdef".parse().unwrap();
        let open = Guard::new(None, "127.0.0.1:9090");
        let closed = Guard::new(Some(&token), "127.0.0.1:9090");
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
            let bearing = [headers[0], headers[1], ("authorization", "Bearer 0123456789abcdef")];
            assert_eq!(status(&closed, &bearing), expected, "{origin}");
        }
    }

    #[test]
    fn a_listener_with_a_token_opens_to_the_token_alone() {
        let token: BearerToken = "0123456789abcdef".parse().unwrap();
        let guard = Guard::new(Some(&token), "0.0.0.0:9090");
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
        assert!(guard.visit(&HeaderMap::new()).is_ok());
    }
}
