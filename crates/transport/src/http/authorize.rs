//! `/v1/authorize`: whether a proxy may let a request pass.
//!
//! The proxy sends the head of the request that it holds, and what the request line was in headers of
//! its own: NGINX as `X-Original-URI` and `X-Original-Method`, Caddy and Traefik as `X-Forwarded-Uri`
//! and `X-Forwarded-Method`. Clients can send such headers too, and proxies pass on what they do not
//! set. So it is never guessed which of the two is true: a request with both is refused.

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Uri};
use tidegate_core::{CallError, CallStatus};
use tidegate_limiter::tower::request_target;
use tidegate_net::http::response::Body;

/// Says which status a denial would have had, for proxies that can't be told by the status itself.
const STATUS: HeaderName = HeaderName::from_static("x-tidegate-status");

const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// How a proxy wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manner {
    /// Every denial is 403: NGINX makes a 500 of any other.
    forbid: bool,
}

impl Manner {
    /// Reads `deny=403` from the query of the call.
    ///
    /// Whatever else is there is passed over: Caddy hands on the query of its client.
    pub(super) fn of(uri: &Uri) -> Self {
        let mut pairs = uri.query().unwrap_or_default().split('&');
        Self { forbid: pairs.any(|pair| pair == "deny=403") }
    }

    /// The answer to the proxy: the response with its status, and the one that it stands for.
    pub(super) fn tell(self, ending: CallStatus, mut response: Response<Body>) -> Response<Body> {
        let (told, meant) = self.status(ending);
        *response.status_mut() = told;
        response.headers_mut().insert(STATUS, HeaderValue::from(meant));
        response
    }

    /// The status for an ending, and the one that it stands for.
    fn status(self, ending: CallStatus) -> (StatusCode, u16) {
        let meant = ending.http();
        let told = if self.forbid && meant >= 400 { 403 } else { meant };
        (StatusCode::from_u16(told).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), meant)
    }
}

/// The head of the request that the proxy holds.
///
/// # Errors
/// The proxy does not say what the request line was, or somebody says it a second time.
pub(super) fn original(mut head: Parts) -> Result<Parts, CallError> {
    let by_original = names(&head.headers, &[ORIGINAL_URI, ORIGINAL_METHOD]);
    let by_forwarded = names(&head.headers, &[FORWARDED_URI, FORWARDED_METHOD]);
    let (uri, method) = match (by_original, by_forwarded) {
        (true, false) => (ORIGINAL_URI, ORIGINAL_METHOD),
        (false, true) => {
            if let Some(host) = head.headers.get(FORWARDED_HOST).cloned() {
                head.headers.insert(HOST, host);
            }
            (FORWARDED_URI, FORWARDED_METHOD)
        }
        (false, false) => {
            let wanted = "X-Original-URI and -Method, or X-Forwarded-Uri and -Method";
            return Err(CallError::invalid("headers", "neither", wanted));
        }
        (true, true) => {
            let found = "X-Original-* and X-Forwarded-*";
            let wanted = "one of them, and the proxy to take the other off its clients";
            return Err(CallError::invalid("headers", found, wanted));
        }
    };
    head.uri = request_target(only(&head.headers, &uri)?.as_bytes()).ok_or_else(|| {
        CallError::invalid(uri.as_str(), "no request target", "a path and its query")
    })?;
    head.method = Method::from_bytes(only(&head.headers, &method)?.as_bytes())
        .map_err(|_| CallError::invalid(method.as_str(), "no method", "a method"))?;
    Ok(head)
}

fn names(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    names.iter().any(|name| headers.contains_key(name))
}

/// The one value of a header.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h HeaderValue, CallError> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        (None, _) => Err(CallError::invalid(name.as_str(), "nothing", "it from the proxy")),
        (Some(_), Some(_)) => Err(CallError::invalid(name.as_str(), "it twice", "it once")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<Parts, CallError> {
        let request = hyper::Request::get("/v1/authorize").header("host", "tidegate");
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
        });
        original(request.body(()).unwrap().into_parts().0)
    }

    fn shown(headers: &[(&str, &str)]) -> String {
        match read(headers) {
            Ok(head) => {
                let host = head.headers[HOST].to_str().unwrap();
                format!("{} {} {host}", head.method, head.uri)
            }
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn each_proxy_is_understood_in_its_own_words() {
        let nginx = [("x-original-uri", "/v1/orders?page=2"), ("x-original-method", "POST")];
        assert_eq!(shown(&nginx), "POST /v1/orders?page=2 tidegate");
        let caddy = [
            ("x-forwarded-uri", "/v1/orders"),
            ("x-forwarded-method", "PUT"),
            ("x-forwarded-host", "shop.example"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(shown(&caddy), "PUT /v1/orders shop.example");
    }

    #[test]
    fn a_client_can_not_say_what_the_proxy_says() {
        let spoofed = [
            ("x-original-uri", "/free"),
            ("x-forwarded-uri", "/v1/orders"),
            ("x-forwarded-method", "GET"),
        ];
        let refused = "headers: found X-Original-* and X-Forwarded-*, \
                       wanted one of them, and the proxy to take the other off its clients";
        assert_eq!(shown(&spoofed), refused);
        let spoofed = [
            ("x-forwarded-method", "GET"),
            ("x-original-uri", "/v1/orders"),
            ("x-original-method", "POST"),
        ];
        assert_eq!(shown(&spoofed), refused);
        let twice = [
            ("x-original-uri", "/free"),
            ("x-original-uri", "/v1/orders"),
            ("x-original-method", "POST"),
        ];
        assert_eq!(shown(&twice), "x-original-uri: found it twice, wanted it once");
        let host = [
            ("x-original-uri", "/"),
            ("x-original-method", "GET"),
            ("x-forwarded-host", "evil.example"),
        ];
        assert_eq!(shown(&host), "GET / tidegate");
    }

    #[test]
    fn a_proxy_that_says_too_little_is_told_what_is_wanted() {
        assert!(shown(&[]).starts_with("headers: found neither, wanted X-Original-URI"));
        let half = [("x-original-uri", "/")];
        assert_eq!(shown(&half), "x-original-method: found nothing, wanted it from the proxy");
        let half = [("x-forwarded-method", "GET")];
        assert_eq!(shown(&half), "x-forwarded-uri: found nothing, wanted it from the proxy");
        let empty = [("x-original-uri", ""), ("x-original-method", "GET")];
        assert!(shown(&empty).starts_with("x-original-uri: found no request target"));
    }

    #[test]
    fn whatever_stands_in_a_request_line_has_a_path() {
        let path = |line: &str| {
            read(&[("x-original-uri", line), ("x-original-method", "GET")]).unwrap().uri.to_string()
        };
        assert_eq!(path("/a b|c?d=\"e\""), "/a%20b%7Cc?d=%22e%22");
        assert_eq!(path("http://other.example/v1?x=1"), "/v1?x=1");
        assert_eq!(path("/v1#part"), "/v1");
        assert_eq!(path("//v1"), "//v1");
        assert_eq!(path("*"), "*");
        assert_eq!(path("/é"), "/é");
    }

    #[test]
    fn nginx_is_told_403_and_what_it_stands_for() {
        let status = |query: &str, ending| {
            let uri = format!("/v1/authorize{query}").parse().unwrap();
            let (told, meant) = Manner::of(&uri).status(ending);
            (told.as_u16(), meant)
        };
        for plain in ["", "?", "?deny=429", "?page=2&deny=4030"] {
            assert_eq!(status(plain, CallStatus::Allowed), (200, 200));
            assert_eq!(status(plain, CallStatus::Denied), (429, 429));
            assert_eq!(status(plain, CallStatus::Unavailable), (503, 503));
        }
        for forbid in ["?deny=403", "?page=2&deny=403"] {
            assert_eq!(status(forbid, CallStatus::Allowed), (200, 200));
            assert_eq!(status(forbid, CallStatus::Denied), (403, 429));
            assert_eq!(status(forbid, CallStatus::Unavailable), (403, 503));
        }
    }
}
