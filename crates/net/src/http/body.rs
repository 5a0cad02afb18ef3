//! Reads request bodies up to a length.

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_ENCODING;
use hyper::{Request, Response, StatusCode};

use crate::http::response::{self, Body};

/// Longest body in bytes that is read only to be dropped. A client that is still sending would see a reset connection
/// and not the response.
const MAX_DROPPED_BYTES: u64 = 4 * 1024 * 1024;

/// Reads the body of a request, of at most `max` bytes.
///
/// # Errors
/// The response to a body that is longer, compressed or incomplete.
pub async fn read(request: Request<Incoming>, max: usize) -> Result<Bytes, Response<Body>> {
    // Any content type is accepted and parsed as JSON; a compressed body can't be parsed.
    if let Some(encoding) = request.headers().get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let detail = "content-encoding: found a compressed body, wanted a plain one";
        return Err(response::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let too_long = |found: String| {
        let detail = format!("body: found {found}, wanted at most {max} bytes");
        response::problem(StatusCode::PAYLOAD_TOO_LARGE, &detail)
    };
    let body = request.into_body();
    if let Some(length) = body.size_hint().exact()
        && length > max as u64
    {
        if length <= MAX_DROPPED_BYTES {
            drop_all(body).await;
        }
        return Err(too_long(format!("{length} bytes")));
    }
    match Limited::new(body, max).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long("more".to_owned())),
        Err(error) => {
            let detail = format!("body: found an end too early ({error}), wanted all of it");
            Err(response::problem(StatusCode::BAD_REQUEST, &detail))
        }
    }
}

/// Reads and drops a body of up to 4 MiB, so that the connection can be reused: unread bytes would close it.
pub async fn drain(mut body: Incoming) {
    let mut read = 0;
    while read <= MAX_DROPPED_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
}

/// Reads and drops a whole body.
async fn drop_all(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}
