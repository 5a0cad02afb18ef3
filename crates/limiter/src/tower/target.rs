//! Request targets that proxies and access logs report.

use http::Uri;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

/// Characters that occur in request lines though they should be encoded.
const STRAY: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'|');

/// Returns the path and the query of a request target in any form. Stray characters are percent-encoded.
#[must_use]
pub fn request_target(bytes: &[u8]) -> Option<Uri> {
    let uri: Uri = match Uri::try_from(bytes) {
        Ok(uri) => uri,
        Err(_) => percent_encode(bytes, STRAY).to_string().parse().ok()?,
    };
    // The host is in a header of its own; the one in the target may differ.
    let line = uri.path_and_query()?;
    line.as_str().starts_with(['/', '*']).then(|| Uri::from(line.clone()))
}
