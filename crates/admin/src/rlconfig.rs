//! `/rlconfig`: the limits of envoyproxy/ratelimit files, listed as it lists them.
//!
//! Theirs is on a debug port; ours is on the admin listener only, because it shows the names of keys and
//! values.

use hyper::{Method, Response, StatusCode};
use tidegate_net::http::response::{self, Body};
use tidegate_service::envoy::EnvoyRules;

const ALLOWED: &str = "GET, HEAD, OPTIONS";

pub(crate) fn answer(rules: Option<&EnvoyRules>, method: &Method) -> Response<Body> {
    match *method {
        Method::GET | Method::HEAD => {
            response::text(StatusCode::OK, rules.map(EnvoyRules::dump).unwrap_or_default())
        }
        Method::OPTIONS => response::options(ALLOWED),
        ref other => response::wrong_method(&format!("method: found {other}, wanted GET"), ALLOWED),
    }
}
