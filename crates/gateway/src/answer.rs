//! What the gateway answers by itself, in the client's protocol.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use tidegate_core::{Header, Problem, Reply};
use tidegate_limiter::tower::grpc;
use tidegate_net::http::response;

use crate::forward::Failure;
use crate::head::Refusal;

/// The status of a denial.
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// The format of responses that a client understands.
#[derive(Clone, Debug)]
pub(super) enum ResponseFormat {
    Http,
    /// gRPC, with the media type of the request.
    Grpc(HeaderValue),
}

impl ResponseFormat {
    /// Returns the format of a request.
    pub(super) fn of(head: &Parts) -> Self {
        grpc::content_type(&head.headers).cloned().map_or(Self::Http, Self::Grpc)
    }

    /// Returns the response to a request that the rules deny.
    pub(super) fn denial(&self, reply: &Reply) -> Response<Full<Bytes>> {
        match (self, Problem::of(&reply.decision)) {
            (Self::Grpc(content_type), Some(problem)) => {
                let status = StatusCode::from_u16(problem.status).unwrap_or(DENIED);
                let mut response = grpc::response(content_type, status, &problem.detail);
                put(response.headers_mut(), reply.headers());
                grpc::set_pushback(response.headers_mut(), &reply.decision);
                response
            }
            _ => response::reply(reply),
        }
    }

    /// Converts a response of this process to the format.
    pub(super) fn convert(&self, mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
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

/// The answer to a request that goes nowhere.
pub(super) fn refusal(refusal: Refusal) -> Response<Full<Bytes>> {
    response::problem(refusal.status, refusal.detail)
}

/// The answer to a request that no route is for.
pub(super) fn no_route() -> Response<Full<Bytes>> {
    response::problem(StatusCode::NOT_FOUND, "no route of this gateway is for this host and path")
}

/// The answer to a request that finds its upstream full.
pub(super) fn shed() -> Response<Full<Bytes>> {
    response::overloaded("the upstream has as much to do as it can take, and this can wait")
}

/// The answer to a request that got none.
pub(super) fn failure(failure: Failure) -> Response<Full<Bytes>> {
    let (status, detail) = match failure {
        Failure::Unreachable => (StatusCode::BAD_GATEWAY, "the upstream can't be reached"),
        Failure::ConnectTimeout => {
            (StatusCode::GATEWAY_TIMEOUT, "the upstream could not be reached in time")
        }
        Failure::BrokenOff => {
            (StatusCode::BAD_GATEWAY, "the upstream broke off before it answered")
        }
        Failure::Silent => (StatusCode::GATEWAY_TIMEOUT, "the upstream did not answer in time"),
        Failure::BadBody => (StatusCode::BAD_REQUEST, "the body broke off or can't be read"),
        Failure::SlowBody => (StatusCode::REQUEST_TIMEOUT, "the body stopped coming"),
    };
    response::problem(status, detail)
}

/// Says how the client stands, unless the answer already says how it stands with somebody: a limit closer
/// to the service may have denied, and "57 left" of ours would contradict.
pub(super) fn tell(headers: &mut HeaderMap, told: Vec<Header>) {
    if told.iter().any(|(told, _)| headers.contains_key(name(told))) {
        return;
    }
    put(headers, told);
}

/// As [`tell`], in place of what others said.
pub(super) fn put(headers: &mut HeaderMap, told: Vec<Header>) {
    headers.reserve(told.len());
    for (told, value) in told {
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
            headers.insert(name(told), value);
        }
    }
}

/// The name of a header, which for those of most answers was made when this was compiled.
fn name(name: &'static str) -> HeaderName {
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
