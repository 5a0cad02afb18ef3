//! Responses that the gateway makes itself, in the client's protocol.

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use hyper::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{Header, Problem, Reply};
use tidegate_limiter::tower::grpc;
use tidegate_net::http::response;

use crate::forward::UpstreamError;
use crate::head::HeadError;

/// The status of a denial if the one of its problem is invalid.
const DENIED_STATUS: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// Expected length of the values of all rate-limit headers in bytes.
const RATE_LIMIT_VALUE_BYTES: usize = 160;

/// The format of responses that a client expects.
#[derive(Clone, Debug)]
pub(crate) enum ResponseFormat {
    Http,
    /// gRPC, with the media type of the request.
    Grpc(HeaderValue),
}

impl ResponseFormat {
    /// Returns the format for a request: gRPC if its content type is gRPC.
    pub(crate) fn of(head: &Parts) -> Self {
        grpc::content_type(&head.headers).cloned().map_or(Self::Http, Self::Grpc)
    }

    /// Returns the response to a request that the rules deny.
    pub(crate) fn denial(&self, reply: &Reply) -> Response<Full<Bytes>> {
        match (self, Problem::of(&reply.decision)) {
            (Self::Grpc(content_type), Some(problem)) => {
                let status = StatusCode::from_u16(problem.status).unwrap_or(DENIED_STATUS);
                let mut response = grpc::response(content_type, status, &problem.detail);
                set_headers(response.headers_mut(), reply.headers());
                grpc::set_pushback(response.headers_mut(), &reply.decision);
                response
            }
            _ => response::reply(reply),
        }
    }

    /// Converts a response of this process to the format.
    pub(crate) fn convert(&self, mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, response::NOSNIFF);
        let Self::Grpc(content_type) = self else { return response };
        let status = response.status();
        let message = status.canonical_reason().unwrap_or("Error");
        let converted = grpc::response(content_type, status, message);
        let fields = std::mem::take(response.headers_mut());
        let (mut head, body) = converted.into_parts();
        for (name, value) in &fields {
            if *name != CONTENT_LENGTH && *name != CONTENT_TYPE {
                head.headers.append(name, value.clone());
            }
        }
        Response::from_parts(head, body)
    }
}

/// Returns the response to a request with an invalid head.
pub(crate) fn invalid_head(error: HeadError) -> Response<Full<Bytes>> {
    response::problem(error.status, error.detail)
}

/// Returns the response to a request that matches no route.
pub(crate) fn no_route() -> Response<Full<Bytes>> {
    response::problem(StatusCode::NOT_FOUND, "no route matches this host, path and method")
}

/// Returns the response to a request if its upstream has no capacity left for its priority.
pub(crate) fn upstream_full() -> Response<Full<Bytes>> {
    response::overloaded("the upstream has too many requests in flight for this priority")
}

/// Returns the response to a request that got none from the upstream.
pub(crate) fn upstream_error(error: UpstreamError) -> Response<Full<Bytes>> {
    let (status, detail) = match error {
        UpstreamError::NoSocket => {
            return response::overloaded("the gateway has its maximum of connections to upstreams");
        }
        UpstreamError::Unreachable => (StatusCode::BAD_GATEWAY, "the upstream cannot be reached"),
        UpstreamError::ConnectTimeout => {
            (StatusCode::GATEWAY_TIMEOUT, "the upstream could not be reached in time")
        }
        UpstreamError::ConnectionClosed => {
            (StatusCode::BAD_GATEWAY, "the upstream closed the connection before it responded")
        }
        UpstreamError::ResponseTimeout => {
            (StatusCode::GATEWAY_TIMEOUT, "the upstream did not respond in time")
        }
        UpstreamError::BadBody => {
            (StatusCode::BAD_REQUEST, "the request body ended early or is malformed")
        }
        UpstreamError::SlowBody => {
            (StatusCode::REQUEST_TIMEOUT, "the request body was sent too slowly")
        }
    };
    response::problem(status, detail)
}

/// Adds rate-limit headers, unless the response has one of them already.
///
/// A limit of the upstream itself may have denied the request; "57 remaining" of this gateway would contradict it.
pub(crate) fn add_headers_if_absent(headers: &mut HeaderMap, reply: &Reply) {
    let mut values = BytesMut::with_capacity(RATE_LIMIT_VALUE_BYTES);
    let mut added: SmallVec<[(&'static str, Bytes); 8]> = SmallVec::new();
    // All values share one allocation.
    reply.visit_headers(|name, value| {
        values.extend_from_slice(value.as_bytes());
        added.push((name, values.split().freeze()));
    });
    if added.iter().any(|(name, _)| headers.contains_key(header_name(name))) {
        return;
    }
    headers.reserve(added.len());
    for (name, value) in added {
        if let Ok(value) = HeaderValue::from_maybe_shared(value) {
            headers.insert(header_name(name), value);
        }
    }
}

/// Sets headers, and replaces those of the same name.
pub(crate) fn set_headers(headers: &mut HeaderMap, added: Vec<Header>) {
    headers.reserve(added.len());
    for (name, value) in added {
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
            headers.insert(header_name(name), value);
        }
    }
}

/// Converts a header name. The names of most responses are constants, which saves parsing them.
fn header_name(name: &'static str) -> HeaderName {
    const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
    const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
    const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
    const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    const STATE: HeaderName = HeaderName::from_static("ratelimit");
    match name {
        "x-ratelimit-limit" => LIMIT,
        "x-ratelimit-remaining" => REMAINING,
        "x-ratelimit-reset" => RESET,
        "ratelimit-policy" => POLICY,
        "ratelimit" => STATE,
        other => HeaderName::from_static(other),
    }
}
