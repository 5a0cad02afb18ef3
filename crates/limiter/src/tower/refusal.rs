//! What a client is told: the headers of every response, and the whole of a refusal.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tidegate_core::{
    Decision, DecisionStatus, Header, HeaderStyle, Problem, RequestError, Timestamp,
};

/// What responses say, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    pub(super) style: HeaderStyle,
    /// Whether responses of the service say how the client stands.
    pub(super) on_allow: bool,
}

impl Default for Answers {
    fn default() -> Self {
        Self { style: HeaderStyle::default(), on_allow: true }
    }
}

impl Answers {
    /// The headers for a response of the service.
    pub(super) fn allowed(self, decision: &Decision, at: Timestamp) -> Vec<Header> {
        if self.on_allow { self.style.headers(decision, at) } else { Vec::new() }
    }

    /// The answer to a request that a decision does not let pass; `None` when it does.
    pub(super) fn denied(
        self,
        head: &Parts,
        decision: &Decision,
        at: Timestamp,
    ) -> Option<Response<Bytes>> {
        let problem = Problem::of(decision)?;
        let mut response = refusal(head, &problem);
        put(response.headers_mut(), self.style.headers(decision, at));
        if is_grpc(head) {
            let pushback = HeaderValue::from(pushback_millis(decision));
            response.headers_mut().insert("grpc-retry-pushback-ms", pushback);
        }
        Some(response)
    }
}

/// An attribute that is longer than any rule is shown.
#[derive(Debug)]
pub struct Unreadable {
    /// Whether the request line is to blame, and not a header.
    pub(super) in_uri: bool,
    pub(super) error: RequestError,
}

impl Unreadable {
    pub(super) fn response(&self, head: &Parts) -> Response<Bytes> {
        let (status, title) = match self.in_uri {
            true => (414, "URI Too Long"),
            false => (431, "Request Header Fields Too Large"),
        };
        let detail = self.error.to_string();
        let violated_policies = Vec::new();
        let problem = Problem { kind: "about:blank", title, status, detail, violated_policies };
        refusal(head, &problem)
    }
}

/// Adds how the client stands, unless the response already says how it stands with somebody.
///
/// That is a limit closer to the service, which may have denied: our own "57 left" would contradict.
pub(super) fn tell(headers: &mut HeaderMap, told: Vec<Header>) {
    if !told.iter().any(|(name, _)| headers.contains_key(*name)) {
        put(headers, told);
    }
}

fn put(headers: &mut HeaderMap, told: Vec<Header>) {
    for (name, value) in told {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

fn refusal(head: &Parts, problem: &Problem) -> Response<Bytes> {
    let (http, grpc) = status(problem.status);
    if let Some(spoken) = grpc_type(head) {
        // All in the headers and nothing after: gRPC calls that trailers-only.
        let mut response = Response::new(Bytes::new());
        let message = utf8_percent_encode(&problem.detail, UNSAFE).to_string();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, spoken.clone());
        headers.insert("grpc-status", HeaderValue::from(grpc));
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert("grpc-message", message);
        }
        return response;
    }
    // Strings and a number: there is nothing in a problem that JSON can't say.
    let text = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = http;
    let media_type = HeaderValue::from_static(Problem::MEDIA_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

/// The status over HTTP, and the code over gRPC.
fn status(problem: u16) -> (StatusCode, u16) {
    match problem {
        429 => (StatusCode::TOO_MANY_REQUESTS, 8),
        503 => (StatusCode::SERVICE_UNAVAILABLE, 14),
        414 => (StatusCode::URI_TOO_LONG, 3),
        431 => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, 3),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, 13),
    }
}

/// What `grpc-message` can't say as it is.
const UNSAFE: &AsciiSet = &CONTROLS.add(b'%');

/// How a retry policy of gRPC is told when to come back; less than 0 is never.
fn pushback_millis(decision: &Decision) -> i32 {
    if decision.status() == DecisionStatus::Unavailable {
        return 1000;
    }
    let millis = decision.retry_after().map(|wait| wait.as_micros().div_ceil(1000));
    millis.map_or(-1, |millis| i32::try_from(millis).unwrap_or(i32::MAX))
}

fn is_grpc(head: &Parts) -> bool {
    grpc_type(head).is_some()
}

/// The request's media type, if it is gRPC's or gRPC-Web's.
fn grpc_type(head: &Parts) -> Option<&HeaderValue> {
    let spoken = head.headers.get(CONTENT_TYPE)?;
    let rest = spoken.as_bytes().strip_prefix(b"application/grpc")?;
    matches!(rest.first(), None | Some(b'+' | b';' | b'-')).then_some(spoken)
}
