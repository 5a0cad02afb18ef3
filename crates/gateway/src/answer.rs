//! What the gateway answers by itself, in the client's protocol.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use tidegate_core::Header;
use tidegate_net::http::response;

use crate::forward::Failure;
use crate::head::Refusal;

/// How a request wants to be answered.
#[derive(Clone, Debug)]
pub(super) enum Manner {
    Http,
    /// gRPC, under this media type.
    Grpc(HeaderValue),
}

impl Manner {
    pub(super) fn of(head: &Parts) -> Self {
        let spoken = head.headers.get(CONTENT_TYPE);
        let grpc = spoken.filter(|spoken| {
            let rest = spoken.as_bytes().strip_prefix(b"application/grpc");
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b'-')))
        });
        grpc.cloned().map_or(Self::Http, Self::Grpc)
    }

    /// An answer of our own as this client understands it: over gRPC all is in the head.
    pub(super) fn put(&self, mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
        let Self::Grpc(spoken) = self else { return response };
        let status = response.status();
        let message = status.canonical_reason().unwrap_or("Error");
        *response.status_mut() = StatusCode::OK;
        *response.body_mut() = Full::default();
        let headers = response.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_TYPE, spoken.clone());
        headers.insert("grpc-status", HeaderValue::from(code(status)));
        headers.insert("grpc-message", HeaderValue::from_static(message));
        response
    }
}

/// The gRPC code for a status: 429 means that the client is over its share, most others that somebody
/// else can't.
fn code(status: StatusCode) -> u16 {
    match status {
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => 3,
        StatusCode::NOT_FOUND => 12,
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => 4,
        _ => 14,
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
