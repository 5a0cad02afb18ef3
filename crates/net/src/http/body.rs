//! From a request to its whole body, which is never longer than somebody is ready to read.

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_ENCODING;
use hyper::{Request, Response, StatusCode};

use crate::http::response::{self, Body};

/// Longest body that is read to its end only to be refused: a client that is still sending would
/// see a reset connection and not the answer.
const MAX_REFUSED: u64 = 4 * 1024 * 1024;

/// The body of a request, at most `most` bytes; or the answer to one that is longer, compressed or
/// not all there.
pub async fn read(request: Request<Incoming>, most: usize) -> Result<Bytes, Response<Body>> {
    // Any content type will do, JSON is what we read; but it has to be readable.
    if let Some(encoding) = request.headers().get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let detail = "content-encoding: found a compressed body, wanted a plain one";
        return Err(response::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let too_long = |found: String| {
        let detail = format!("body: found {found}, wanted at most {most} bytes");
        response::problem(StatusCode::PAYLOAD_TOO_LARGE, &detail)
    };
    let body = request.into_body();
    if let Some(length) = body.size_hint().exact()
        && length > most as u64
    {
        if length <= MAX_REFUSED {
            discard(body).await;
        }
        return Err(too_long(format!("{length} bytes")));
    }
    match Limited::new(body, most).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long("more".to_owned())),
        Err(error) => {
            let detail = format!("body: found an end too early ({error}), wanted all of it");
            Err(response::problem(StatusCode::BAD_REQUEST, &detail))
        }
    }
}

/// Reads a body that nobody needs, if it is not too long: what is left unread costs the connection.
pub async fn ignore(mut body: Incoming) {
    let mut read = 0;
    while read <= MAX_REFUSED
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
}

/// Reads a body and keeps nothing of it.
async fn discard(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}
