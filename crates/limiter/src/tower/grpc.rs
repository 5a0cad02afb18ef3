//! Responses in the format of gRPC: status and message are header fields, and there is no body ("trailers-only").
//!
//! The tower layer and the gateway use it for responses to gRPC clients.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tidegate_core::{Decision, DecisionStatus};

/// Bytes of `grpc-message` that are percent-encoded; those outside of ASCII always are.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Returns the media type of a request, if it is gRPC's or gRPC-Web's.
#[must_use]
pub fn content_type(headers: &HeaderMap) -> Option<&HeaderValue> {
    let content_type = headers.get(CONTENT_TYPE)?;
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc")?;
    matches!(rest.first(), None | Some(b'+' | b';' | b'-')).then_some(content_type)
}

/// Returns a response that has a status and a message.
#[must_use]
pub fn response<B: Default>(
    content_type: &HeaderValue,
    status: StatusCode,
    message: &str,
) -> Response<B> {
    let mut response = Response::new(B::default());
    let message = utf8_percent_encode(message, ENCODED).to_string();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type.clone());
    headers.insert("grpc-status", HeaderValue::from(code(status)));
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert("grpc-message", message);
    }
    response
}

/// Sets `grpc-retry-pushback-ms`, the time after which a client retries a denied request. A negative value means
/// never.
pub fn set_pushback(headers: &mut HeaderMap, decision: &Decision) {
    let millis = if decision.status() == DecisionStatus::Unavailable {
        1_000
    } else {
        let millis = decision.retry_after().map(|wait| wait.as_micros().div_ceil(1_000));
        millis.map_or(-1, |millis| i32::try_from(millis).unwrap_or(i32::MAX))
    };
    headers.insert("grpc-retry-pushback-ms", HeaderValue::from(millis));
}

/// Returns the gRPC code of an HTTP status. 429 means that the client is over its limit; an error of another server is
/// `UNAVAILABLE`.
fn code(status: StatusCode) -> u16 {
    match status {
        StatusCode::BAD_REQUEST
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::URI_TOO_LONG
        | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => 3,
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => 4,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::NOT_FOUND => 12,
        StatusCode::INTERNAL_SERVER_ERROR => 13,
        _ => 14,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_media_types_of_grpc_are_recognised() {
        let is_grpc = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            content_type(&HeaderMap::from_iter([(CONTENT_TYPE, value)])).is_some()
        };
        for value in ["application/grpc", "application/grpc+proto", "application/grpc-web;a=b"] {
            assert!(is_grpc(value), "{value}");
        }
        for value in ["application/grpcx", "application/json", "text/application/grpc"] {
            assert!(!is_grpc(value), "{value}");
        }
        assert_eq!(content_type(&HeaderMap::new()), None);
    }

    #[test]
    fn message_is_percent_encoded() {
        let content_type = HeaderValue::from_static("application/grpc");
        let response: Response<()> =
            response(&content_type, StatusCode::TOO_MANY_REQUESTS, "50 % of \"é\"\n");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["grpc-status"], "8");
        assert_eq!(response.headers()["grpc-message"], "50 %25 of \"%C3%A9\"%0A");
    }
}
