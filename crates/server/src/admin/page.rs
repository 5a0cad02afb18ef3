//! The dashboard's files. There is nothing of this server in them: what they show, they ask for with a token.

use std::path::Path;

use hyper::Response;
use hyper::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::transport::http::encode::Body;

/// Part of the binary; of one that is built for debugging the folder itself, so that who works on the dashboard has
/// nothing to build.
#[derive(RustEmbed)]
#[folder = "dashboard/"]
struct Files;

/// What a page of ours may do: run our own scripts, and ask this server. Nobody may put it into a page of theirs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard.
pub(super) struct Page {
    kind: &'static str,
    file: EmbeddedFile,
}

impl Page {
    /// The file at a path, if there is one.
    pub(super) fn at(path: &str) -> Option<Self> {
        let name = match path.strip_prefix('/')? {
            "" => "index.html",
            name => name,
        };
        let kind = kind(name)?;
        // Files on a disk have neighbours.
        let plain = name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        let file = plain.then(|| Files::get(name))??;
        Some(Self { kind, file })
    }

    pub(super) fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.file.data.into_owned()));
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_TYPE, self.kind),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// What a file is, by its name; what is of none of these kinds is no file of the dashboard.
fn kind(name: &str) -> Option<&'static str> {
    Some(match Path::new(name).extension()?.to_str()? {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_door_itself_is_the_first_page() {
        let page = Page::at("/").unwrap().response();
        assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert!(Page::at("/index.html").is_some());
    }

    #[test]
    fn nothing_but_the_dashboard_is_a_page() {
        for path in [
            "",
            "/metrics",
            "/v1/rules",
            "/nothing.html",
            "/../Cargo.toml",
            "/../openapi.json",
            "/../dashboard/index.html",
            "/./index.html",
            "//index.html",
            "/%2e%2e/dashboard/index.html",
            "/index.html/",
            "/.hidden.html",
        ] {
            assert!(Page::at(path).is_none(), "{path}");
        }
    }
}
