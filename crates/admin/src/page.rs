//! The dashboard's files. There is nothing of this server in them: what they show, they ask for with a token.

use std::path::Path;

use hyper::Response;
use hyper::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use tidegate_net::http::response::Body;

/// The files of the dashboard, which are part of the binary: name and content.
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
    "icon.svg",
    "index.html",
    "lab.js",
    "lab_chart.js",
    "live.js",
    "pulse.js",
    "rules.js",
    "style.css",
    "words.js",
];

/// What a page of ours may do: run our own scripts, and ask this server. Nobody may put it into a page of theirs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard.
pub(crate) struct Page {
    kind: &'static str,
    content: &'static [u8],
}

impl Page {
    /// The file at a path, if there is one.
    pub(crate) fn at(path: &str) -> Option<Self> {
        let name = match path.strip_prefix('/')? {
            "" => "index.html",
            name => name,
        };
        let (_, content) = FILES.iter().find(|(known, _)| *known == name)?;
        Some(Self { kind: kind(name)?, content })
    }

    pub(crate) fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.content));
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
    fn the_listener_itself_is_the_first_page() {
        let page = Page::at("/").unwrap().response();
        assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert!(Page::at("/index.html").is_some());
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(Page::at(&format!("/{name}")).is_some(), "{name} is not in FILES");
        }
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
