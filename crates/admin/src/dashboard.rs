//! The files of the dashboard. They contain no data of this server: the page requests it, with the token.

use std::path::Path;

use hyper::Response;
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};
use tidegate_net::http::response::Body;

/// Expands to the name and the content of each file. The files are part of the binary.
macro_rules! dashboard_files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../dashboard/", $name)))),*]
    };
}

#[rustfmt::skip]
const FILES: &[(&str, &[u8])] = dashboard_files![
    "api.js",
    "app.js",
    "blocks.js",
    "chart.js",
    "clients.js",
    "diff.js",
    "dom.js",
    "editor.js",
    "fleet.js",
    "format.js",
    "icon.svg",
    "index.html",
    "lab.js",
    "lab_chart.js",
    "live.js",
    "live_feed.js",
    "rules.js",
    "style.css",
];

/// The `Content-Security-Policy`: scripts and requests only from and to this server, no embedding in other pages.
const SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard.
pub(crate) struct DashboardFile {
    media_type: &'static str,
    content: &'static [u8],
}

impl DashboardFile {
    /// Returns the file at a path; `None` if the dashboard has no such file.
    pub(crate) fn find(path: &str) -> Option<Self> {
        let name = match path.strip_prefix('/')? {
            "" => "index.html",
            name => name,
        };
        let (_, content) = FILES.iter().find(|(known, _)| *known == name)?;
        Some(Self { media_type: media_type(name)?, content })
    }

    pub(crate) fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.content));
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_TYPE, self.media_type),
            (CONTENT_SECURITY_POLICY, SECURITY_POLICY),
            (REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Returns the media type of a file by its extension; `None` for other extensions.
fn media_type(name: &str) -> Option<&'static str> {
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
    fn root_path_serves_index_html() {
        let page = DashboardFile::find("/").unwrap().response();
        assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(DashboardFile::find("/index.html").is_some());
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(DashboardFile::find(&format!("/{name}")).is_some(), "{name} is not in FILES");
        }
    }

    #[test]
    fn other_paths_are_no_dashboard_files() {
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
            assert!(DashboardFile::find(path).is_none(), "{path}");
        }
    }
}
