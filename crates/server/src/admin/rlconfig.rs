//! `/rlconfig`: the limits of envoyproxy/ratelimit files, listed as it lists them.
//!
//! Theirs is on a debug port; ours is on the admin door only, because it shows the names of keys and
//! values.

use hyper::{Method, Response, StatusCode};

use crate::rules::envoy::EnvoyRules;
use crate::transport::http::encode::{self, Body};

const ALLOWED: &str = "GET, HEAD, OPTIONS";

pub(super) fn answer(rules: Option<&EnvoyRules>, method: &Method) -> Response<Body> {
    match *method {
        Method::GET | Method::HEAD => {
            encode::word(StatusCode::OK, rules.map(EnvoyRules::dump).unwrap_or_default())
        }
        Method::OPTIONS => encode::options(ALLOWED),
        ref other => encode::wrong_method(&format!("method: found {other}, wanted GET"), ALLOWED),
    }
}
