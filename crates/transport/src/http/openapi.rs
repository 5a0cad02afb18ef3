//! `/openapi.json`: the OpenAPI description of the HTTP and admin listeners.

use hyper::header::{CONTENT_TYPE, ETAG, HeaderValue};
use hyper::{Method, Response};
use tidegate_api::OPENAPI_JSON;
use tidegate_net::http::response::{self, Body};

/// Returns the OpenAPI document. Its `ETag` is the version of this server.
pub(crate) fn handle(method: &Method) -> Response<Body> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *method {
        Method::GET | Method::HEAD => {
            let mut response = Response::new(Body::from(OPENAPI_JSON));
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
