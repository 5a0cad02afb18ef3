//! Rate-limit headers, and the responses that the layer makes itself.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate_core::{
    CanonicalError, Decision, Header, HeaderStyle, Problem, RequestError, Timestamp,
};

use super::grpc;

/// The style of the rate-limit headers, and the responses that have them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderPolicy {
    pub(crate) style: HeaderStyle,
    /// Responses of the service have the headers too, not only denials.
    pub(crate) on_allow: bool,
}

impl Default for HeaderPolicy {
    fn default() -> Self {
        Self { style: HeaderStyle::default(), on_allow: true }
    }
}

impl HeaderPolicy {
    /// Returns the headers for a response of the service.
    pub(crate) fn service_headers(self, decision: &Decision, at: Timestamp) -> Vec<Header> {
        if self.on_allow { self.style.headers(decision, at) } else { Vec::new() }
    }

    /// Returns the response to a request that is denied, or `None` if it is allowed.
    pub(crate) fn denial(
        self,
        head: &Parts,
        decision: &Decision,
        at: Timestamp,
    ) -> Option<Response<Bytes>> {
        let problem = Problem::of(decision)?;
        let mut response = local_response(head, &problem);
        set_headers(response.headers_mut(), self.style.headers(decision, at));
        if grpc::content_type(&head.headers).is_some() {
            grpc::set_pushback(response.headers_mut(), decision);
        }
        Some(response)
    }
}

/// The reason why a request can't be checked.
#[derive(Debug)]
pub enum RequestRejection {
    /// An attribute is above the length limit.
    AttributeTooLong {
        /// The attribute is part of the request line, not of a header.
        in_uri: bool,
        /// The name of the attribute and its length.
        error: RequestError,
    },
    /// The method, the host or the path has no canonical form.
    NotCanonical(CanonicalError),
    /// The server does not provide the client's address, and rules or the block list use it.
    NoAddress,
}

impl RequestRejection {
    pub(crate) fn response(&self, head: &Parts) -> Response<Bytes> {
        let (status, title, detail) = match self {
            Self::AttributeTooLong { in_uri: true, error } => {
                (414, "URI Too Long", error.to_string())
            }
            Self::AttributeTooLong { in_uri: false, error } => {
                (431, "Request Header Fields Too Large", error.to_string())
            }
            Self::NotCanonical(error) => (400, "Bad Request", error.to_string()),
            Self::NoAddress => (
                500,
                "Internal Server Error",
                "ip: found no peer address, wanted a server that provides it".to_owned(),
            ),
        };
        let violated_policies = Vec::new();
        let problem = Problem { kind: "about:blank", title, status, detail, violated_policies };
        local_response(head, &problem)
    }
}

/// Adds the rate-limit headers, unless the response already has one of them.
///
/// Existing ones are from a limit closer to the service. If that limit denied the request, a positive
/// `remaining` of this layer would contradict it.
pub(crate) fn add_headers_if_absent(fields: &mut HeaderMap, headers: Vec<Header>) {
    if !headers.iter().any(|(name, _)| fields.contains_key(*name)) {
        set_headers(fields, headers);
    }
}

fn set_headers(fields: &mut HeaderMap, headers: Vec<Header>) {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            fields.insert(HeaderName::from_static(name), value);
        }
    }
}

fn local_response(head: &Parts, problem: &Problem) -> Response<Bytes> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(content_type) = grpc::content_type(&head.headers) {
        return grpc::response(content_type, status, &problem.detail);
    }
    // A problem has only strings and numbers, so it always serializes.
    let text = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static(Problem::MEDIA_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}
