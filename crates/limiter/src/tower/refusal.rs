//! What a client is told: the headers of every response, and the whole of a refusal.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate_core::{Decision, Header, HeaderStyle, Problem, RequestError, Timestamp};

use super::grpc;

/// What responses say, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    pub(crate) style: HeaderStyle,
    /// Whether responses of the service say how the client stands.
    pub(crate) on_allow: bool,
}

impl Default for Answers {
    fn default() -> Self {
        Self { style: HeaderStyle::default(), on_allow: true }
    }
}

impl Answers {
    /// The headers for a response of the service.
    pub(crate) fn allowed(self, decision: &Decision, at: Timestamp) -> Vec<Header> {
        if self.on_allow { self.style.headers(decision, at) } else { Vec::new() }
    }

    /// The answer to a request that a decision does not let pass; `None` when it does.
    pub(crate) fn denied(
        self,
        head: &Parts,
        decision: &Decision,
        at: Timestamp,
    ) -> Option<Response<Bytes>> {
        let problem = Problem::of(decision)?;
        let mut response = refusal(head, &problem);
        put(response.headers_mut(), self.style.headers(decision, at));
        if grpc::content_type(&head.headers).is_some() {
            grpc::set_pushback(response.headers_mut(), decision);
        }
        Some(response)
    }
}

/// An attribute that is longer than any rule is shown.
#[derive(Debug)]
pub struct Unreadable {
    /// Whether the request line is to blame, and not a header.
    pub(crate) in_uri: bool,
    pub(crate) error: RequestError,
}

impl Unreadable {
    pub(crate) fn response(&self, head: &Parts) -> Response<Bytes> {
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
pub(crate) fn tell(headers: &mut HeaderMap, told: Vec<Header>) {
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
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(content_type) = grpc::content_type(&head.headers) {
        return grpc::response(content_type, status, &problem.detail);
    }
    // Strings and a number: there is nothing in a problem that JSON can't say.
    let text = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static(Problem::MEDIA_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}
