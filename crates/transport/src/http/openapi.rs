//! `/openapi.json`: what this door and the admin door answer, for programs.

use hyper::header::{CONTENT_TYPE, ETAG, HeaderValue};
use hyper::{Method, Response};
use tidegate_net::http::response::{self, Body};

/// The document, written by hand; a test holds it against what the doors really answer.
const DOCUMENT: &str = include_str!("../../openapi.json");

pub(super) fn answer(method: &Method) -> Response<Body> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *method {
        Method::GET | Method::HEAD => {
            let mut response = Response::new(Body::from(DOCUMENT));
            let headers = response.headers_mut();
            headers
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.oai.openapi+json"));
            headers.insert(
                ETAG,
                HeaderValue::from_static(concat!('"', env!("CARGO_PKG_VERSION"), '"')),
            );
            response
        }
        Method::OPTIONS => response::options(ALLOWED),
        ref other => {
            let detail = format!("method: found {other}, wanted GET");
            response::wrong_method(&detail, ALLOWED)
        }
    }
}
