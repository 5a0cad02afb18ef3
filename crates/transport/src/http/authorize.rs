//! `/v1/authorize`: decides a request for a proxy that holds it.
//!
//! The proxy sends the headers of the held request and adds its request line in two headers: NGINX as
//! `X-Original-URI` and `X-Original-Method`, Caddy and Traefik as `X-Forwarded-Uri` and
//! `X-Forwarded-Method`. A client can send these headers too, and a proxy forwards those that it does
//! not set. The API can't know which pair is genuine, so it rejects a request with both.

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Uri};
use tidegate_core::{CallError, CallStatus, CanonicalError, EncodedSlashes};
use tidegate_limiter::tower::{canonicalize, request_target};
use tidegate_net::http::response::{self, Body};

/// Response header with the original status, for proxies that accept only 403 as a denial.
const STATUS_HEADER: HeaderName = HeaderName::from_static("x-tidegate-status");

const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The format of denials that a proxy accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DenialFormat {
    /// True if every denial is sent as 403. NGINX turns any other denial into a 500.
    always_403: bool,
}

impl DenialFormat {
    /// Reads `deny=403` from the query of the call.
    ///
    /// Other parameters are ignored: Caddy forwards the query of its client.
    pub(crate) fn from_query(uri: &Uri) -> Self {
        let mut pairs = uri.query().unwrap_or_default().split('&');
        Self { always_403: pairs.any(|pair| pair == "deny=403") }
    }

    /// Sets the status for the proxy, and the original status in a header.
    pub(crate) fn apply(self, status: CallStatus, mut response: Response<Body>) -> Response<Body> {
        let (sent, original) = self.status(status);
        *response.status_mut() = sent;
        response.headers_mut().insert(STATUS_HEADER, HeaderValue::from(original));
        response
    }

    /// Returns the denial of a request that has no canonical form.
    ///
    /// The status is that of a denial, because NGINX turns 400 into 500. `X-Tidegate-Status` has 400.
    pub(crate) fn not_canonical(self, error: CanonicalError) -> Response<Body> {
        let (sent, _) = self.status(CallStatus::Denied);
        let mut response = response::problem(sent, error.detail());
        let original = HeaderValue::from(CallStatus::Invalid.http());
        response.headers_mut().insert(STATUS_HEADER, original);
        response
    }

    /// Returns the status to send and the original one.
    fn status(self, status: CallStatus) -> (StatusCode, u16) {
        let original = status.http();
        let sent = if self.always_403 && original >= 400 { 403 } else { original };
        (StatusCode::from_u16(sent).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), original)
    }
}

/// The reason why the held request can't be decided.
#[derive(Debug)]
pub(crate) enum DescriptionError {
    /// The headers with the request line are missing, incomplete or ambiguous: the proxy is configured wrongly.
    Headers(CallError),
    /// The request of the client has no canonical form.
    NotCanonical(CanonicalError),
}

/// Returns the head of the request that the proxy holds, in its canonical form.
///
/// # Errors
/// See [`DescriptionError`].
pub(crate) fn original_request(head: Parts) -> Result<Parts, DescriptionError> {
    let mut head = described_request(head).map_err(DescriptionError::Headers)?;
    canonicalize(&mut head, EncodedSlashes::Reject).map_err(DescriptionError::NotCanonical)?;
    Ok(head)
}

/// Returns the head of the request as the proxy describes it.
fn described_request(mut head: Parts) -> Result<Parts, CallError> {
    let has_original = has_any(&head.headers, &[ORIGINAL_URI, ORIGINAL_METHOD]);
    let has_forwarded = has_any(&head.headers, &[FORWARDED_URI, FORWARDED_METHOD]);
    let (uri, method) = match (has_original, has_forwarded) {
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
    head.uri = request_target(single_value(&head.headers, &uri)?.as_bytes()).ok_or_else(|| {
        CallError::invalid(uri.as_str(), "no request target", "a path and its query")
    })?;
    head.method = Method::from_bytes(single_value(&head.headers, &method)?.as_bytes())
        .map_err(|_| CallError::invalid(method.as_str(), "no method", "a method"))?;
    Ok(head)
}

fn has_any(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    names.iter().any(|name| headers.contains_key(name))
}

/// Returns the value of a header that must occur exactly once.
fn single_value<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<&'h HeaderValue, CallError> {
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

    fn read(headers: &[(&str, &str)]) -> Result<Parts, DescriptionError> {
        let request = hyper::Request::get("/v1/authorize").header("host", "tidegate");
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
        });
        original_request(request.body(()).unwrap().into_parts().0)
    }

    fn describe(headers: &[(&str, &str)]) -> String {
        match read(headers) {
            Ok(head) => {
                let host = head.headers[HOST].to_str().unwrap();
                format!("{} {} {host}", head.method, head.uri)
            }
            Err(DescriptionError::Headers(error)) => error.to_string(),
            Err(DescriptionError::NotCanonical(error)) => error.label().to_owned(),
        }
    }

    #[test]
    fn request_line_is_read_from_the_headers_of_each_proxy() {
        let nginx = [("x-original-uri", "/v1/orders?page=2"), ("x-original-method", "POST")];
        assert_eq!(describe(&nginx), "POST /v1/orders?page=2 tidegate");
        let caddy = [
            ("x-forwarded-uri", "/v1/orders"),
            ("x-forwarded-method", "PUT"),
            ("x-forwarded-host", "shop.example"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(describe(&caddy), "PUT /v1/orders shop.example");
    }

    #[test]
    fn request_line_headers_sent_by_a_client_are_rejected() {
        let spoofed = [
            ("x-original-uri", "/free"),
            ("x-forwarded-uri", "/v1/orders"),
            ("x-forwarded-method", "GET"),
        ];
        let rejected = "headers: found X-Original-* and X-Forwarded-*, \
                       wanted one of them, and the proxy to take the other off its clients";
        assert_eq!(describe(&spoofed), rejected);
        let spoofed = [
            ("x-forwarded-method", "GET"),
            ("x-original-uri", "/v1/orders"),
            ("x-original-method", "POST"),
        ];
        assert_eq!(describe(&spoofed), rejected);
        let twice = [
            ("x-original-uri", "/free"),
            ("x-original-uri", "/v1/orders"),
            ("x-original-method", "POST"),
        ];
        assert_eq!(describe(&twice), "x-original-uri: found it twice, wanted it once");
        let host = [
            ("x-original-uri", "/"),
            ("x-original-method", "GET"),
            ("x-forwarded-host", "evil.example"),
        ];
        assert_eq!(describe(&host), "GET / tidegate");
    }

    #[test]
    fn missing_request_line_header_is_rejected_by_name() {
        assert!(describe(&[]).starts_with("headers: found neither, wanted X-Original-URI"));
        let half = [("x-original-uri", "/")];
        assert_eq!(describe(&half), "x-original-method: found nothing, wanted it from the proxy");
        let half = [("x-forwarded-method", "GET")];
        assert_eq!(describe(&half), "x-forwarded-uri: found nothing, wanted it from the proxy");
        let empty = [("x-original-uri", ""), ("x-original-method", "GET")];
        assert!(describe(&empty).starts_with("x-original-uri: found no request target"));
    }

    #[test]
    fn unusual_request_targets_are_normalized_to_a_path() {
        let path = |line: &str| {
            read(&[("x-original-uri", line), ("x-original-method", "GET")]).unwrap().uri.to_string()
        };
        assert_eq!(path("/a b|c?d=\"e\""), "/a%20b%7Cc?d=%22e%22");
        assert_eq!(path("http://other.example/v1?x=1"), "/v1?x=1");
        assert_eq!(path("/v1#part"), "/v1");
        assert_eq!(path("//v1"), "/v1");
        assert_eq!(path("/é"), "/%C3%A9");
    }

    #[test]
    fn request_without_canonical_form_is_rejected_by_reason() {
        let reason = |method, line, host| {
            describe(&[
                ("x-forwarded-uri", line),
                ("x-forwarded-method", method),
                ("x-forwarded-host", host),
            ])
        };
        assert_eq!(reason("OPTIONS", "*", "a"), "OPTIONS * a");
        assert_eq!(reason("GET", "*", "a"), "no_leading_slash");
        assert_eq!(reason("GET", "/%2Flogin", "a"), "encoded_slash");
        assert_eq!(reason("GET", "/a\\b", "a"), "backslash");
        assert_eq!(reason("GET", "/a%zz", "a"), "invalid_escape");
        assert_eq!(reason("post", "/login", "a"), "invalid_method");
        assert_eq!(reason("GET", "/login", "shop.example:x"), "invalid_host");
    }

    #[test]
    fn request_without_canonical_form_gets_the_status_of_a_denial() {
        let status = |query: &str| {
            let uri = format!("/v1/authorize{query}").parse().unwrap();
            let response =
                DenialFormat::from_query(&uri).not_canonical(CanonicalError::EncodedSlash);
            (response.status().as_u16(), response.headers()[STATUS_HEADER].clone())
        };
        assert_eq!(status(""), (429, HeaderValue::from_static("400")));
        assert_eq!(status("?deny=403"), (403, HeaderValue::from_static("400")));
    }

    #[test]
    fn deny_403_replaces_the_status_and_keeps_the_original_in_a_header() {
        let status = |query: &str, call_status| {
            let uri = format!("/v1/authorize{query}").parse().unwrap();
            let (sent, original) = DenialFormat::from_query(&uri).status(call_status);
            (sent.as_u16(), original)
        };
        for unchanged in ["", "?", "?deny=429", "?page=2&deny=4030"] {
            assert_eq!(status(unchanged, CallStatus::Allowed), (200, 200));
            assert_eq!(status(unchanged, CallStatus::Denied), (429, 429));
            assert_eq!(status(unchanged, CallStatus::Unavailable), (503, 503));
        }
        for always_403 in ["?deny=403", "?page=2&deny=403"] {
            assert_eq!(status(always_403, CallStatus::Allowed), (200, 200));
            assert_eq!(status(always_403, CallStatus::Denied), (403, 429));
            assert_eq!(status(always_403, CallStatus::Unavailable), (403, 503));
        }
    }
}
