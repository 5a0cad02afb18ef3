//! `/rlconfig`: the limits of envoyproxy/ratelimit files, in the format of its own `/rlconfig`.
//!
//! envoyproxy/ratelimit serves it on a debug port. Here it is part of the admin listener, because it contains keys and
//! values of descriptors.

use hyper::{Method, Response, StatusCode};
use tidegate_net::http::response::{self, Body};
use tidegate_service::envoy::EnvoyRules;

const ALLOWED_METHODS: &str = "GET, HEAD, OPTIONS";

/// Handles `GET /rlconfig`.
pub(crate) fn handle(rules: Option<&EnvoyRules>, method: &Method) -> Response<Body> {
    match *method {
        Method::GET | Method::HEAD => {
            response::text(StatusCode::OK, rules.map(EnvoyRules::dump).unwrap_or_default())
        }
        Method::OPTIONS => response::options(ALLOWED_METHODS),
        ref other => {
            response::wrong_method(&format!("method: found {other}, wanted GET"), ALLOWED_METHODS)
        }
    }
}
