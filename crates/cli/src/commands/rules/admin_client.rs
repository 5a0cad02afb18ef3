//! Requests to the rules endpoints of the admin listener, and the errors of its replies.

use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, IF_MATCH};
use hyper::{Method, Request};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Deserialize;
use tidegate_api::{DocumentError, InvalidRules, ProblemBody, VersionConflict};
use tidegate_core::TerminalSafe;
use tidegate_net::client::HttpClient;
use tidegate_net::token::BearerToken;

use crate::commands::{CommandError, block_on};
use crate::config;

/// Longest reply in bytes. A document may have 16 MiB, and more in JSON.
const MAX_REPLY_BYTES: usize = 64 << 20;
/// Bytes that are percent-encoded in the values of headers.
const HEADER_ESCAPES: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
const YAML: &str = "application/yaml";

/// A client of the admin listener.
pub(crate) struct AdminClient<'s> {
    server: &'s HttpClient,
    token: Option<BearerToken>,
}

/// A reply with status 200.
pub(crate) struct AdminReply {
    /// Version of the document in `body`, if the listener sent one.
    pub(crate) version: Option<u64>,
    pub(crate) body: String,
}

/// A push of a document that replaces a version.
pub(crate) struct RulesPush<'a> {
    /// Name of the document in error messages.
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// The version that the document replaces; 0 if there is none yet.
    pub(crate) replaces: u64,
    /// The author, for the history.
    pub(crate) by: &'a str,
    /// The reason, for the history.
    pub(crate) note: &'a str,
    /// Hint for a version conflict.
    pub(crate) hint: &'a str,
}

/// Texts for the error of a request.
#[derive(Clone, Copy, Default)]
struct ErrorContext<'a> {
    /// Name of the document in error messages.
    name: &'a str,
    /// Hint for a version conflict.
    hint: &'a str,
}

impl<'s> AdminClient<'s> {
    pub(crate) fn new(server: &'s HttpClient) -> Result<Self, CommandError> {
        Ok(Self { server, token: config::token()? })
    }

    /// Reads a path as JSON.
    pub(crate) fn read(&self, path: &str) -> Result<AdminReply, CommandError> {
        self.request(Method::GET, path, &[], "", ErrorContext::default())
    }

    /// Reads a document as it was pushed: the active one, or an older version.
    pub(crate) fn document(&self, version: Option<u64>) -> Result<AdminReply, CommandError> {
        let path = version.map_or_else(String::new, |version| format!("?version={version}"));
        self.request(
            Method::GET,
            &format!("/v1/rules{path}"),
            &[(ACCEPT.as_str(), YAML.into())],
            "",
            ErrorContext::default(),
        )
    }

    /// Compares the active rules with a document.
    pub(crate) fn compare(&self, name: &str, text: &str) -> Result<AdminReply, CommandError> {
        self.request(Method::POST, "/v1/rules/diff", &[], text, ErrorContext { name, hint: "" })
    }

    /// Pushes a document, if the version that it replaces is still the latest.
    pub(crate) fn push(&self, push: &RulesPush<'_>) -> Result<AdminReply, CommandError> {
        let escaped = |text| utf8_percent_encode(text, HEADER_ESCAPES).to_string();
        let headers = [
            (IF_MATCH.as_str(), format!("\"{}\"", push.replaces)),
            ("tidegate-by", escaped(push.by)),
            ("tidegate-note", escaped(push.note)),
        ];
        let context = ErrorContext { name: push.name, hint: push.hint };
        self.request(Method::PUT, "/v1/rules", &headers, push.text, context)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: &str,
        context: ErrorContext<'_>,
    ) -> Result<AdminReply, CommandError> {
        let address = self.server.address();
        let mut request = Request::builder().method(method).uri(path).header(HOST, address);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.as_str()));
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, YAML);
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::from(body.to_owned())).map_err(CommandError::failed)?;
        let reply = block_on(self.server.exchange(request, MAX_REPLY_BYTES))??;
        let (head, body) = reply.into_parts();
        let body = String::from_utf8_lossy(&body).into_owned();
        if head.status != 200 {
            return Err(error_of_status(head.status.as_u16(), &body, context));
        }
        let version = head.headers.get("tidegate-rules-version");
        let version = version.and_then(|version| version.to_str().ok()?.parse().ok());
        Ok(AdminReply { version, body })
    }
}

impl AdminReply {
    /// Parses the body.
    ///
    /// # Errors
    /// The body is not JSON of this type.
    pub(crate) fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, CommandError> {
        serde_json::from_str(&self.body).map_err(|error| {
            CommandError::failed(format_args!("the reply can't be read: {error}"))
                .hint("is this the admin listener of a tidegate server of the same version?")
        })
    }
}

/// Returns the error of a reply with another status than 200.
fn error_of_status(
    status: u16,
    body: &str,
    ErrorContext { name, hint }: ErrorContext<'_>,
) -> CommandError {
    let ProblemBody::<String> { detail, .. } = serde_json::from_str(body).unwrap_or_default();
    match status {
        400 | 428 => CommandError::negative(detail),
        401 => CommandError::failed(detail).hint("set TIDEGATE_TOKEN to the admin token"),
        404 if detail.starts_with("path:") => CommandError::failed(detail)
            .hint("use the URL of the admin listener; its default port is 9090"),
        404 if detail.starts_with("version ") => CommandError::negative(detail)
            .hint("tidegate rules history lists the available versions"),
        // The detail contains the fix.
        404 | 409 => CommandError::negative(detail),
        412 => CommandError::negative(match serde_json::from_str(body) {
            Ok(VersionConflict::<String> { version: 0, .. }) => {
                "the rules were deleted in the meantime, nothing was pushed".to_owned()
            }
            Ok(VersionConflict { version, .. }) => {
                format!("version {version} was pushed in the meantime, nothing was pushed")
            }
            Err(_) => detail,
        })
        .hint(hint),
        422 => match serde_json::from_str::<InvalidRules>(body) {
            Ok(InvalidRules { errors, .. }) if !errors.is_empty() => {
                let lines: Vec<String> =
                    errors.iter().map(|error| error_line(error, name)).collect();
                CommandError { message: lines.join("\n"), ..CommandError::negative("") }
            }
            _ => CommandError::negative(detail),
        },
        _ => CommandError::failed(format_args!("{detail} (status {status})")),
    }
}

/// Formats a warning like `tidegate validate`: `rules.yaml:12: warning: rule "login": …`.
pub(crate) fn warning_line(warning: &DocumentError<TerminalSafe>, name: &str) -> String {
    match warning.line {
        Some(line) => format!("{name}:{line}: warning: {}", warning.message),
        None => format!("{name}: warning: {}", warning.message),
    }
}

/// Formats an error like `tidegate validate`: `rules.yaml:12: rule "login": …`.
fn error_line(error: &DocumentError, name: &str) -> String {
    match error.line {
        Some(line) => format!("{name}:{line}: {}", error.message),
        None => format!("{name}: {}", error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ExitStatus;

    #[test]
    fn invalid_document_is_reported_with_file_and_line() {
        let body = r#"{"detail":"…","errors":[{"line":12,"message":"limit: wrong"},{"message":"too long"}]}"#;
        let error = error_of_status(422, body, ErrorContext { name: "rules.yaml", hint: "" });
        assert_eq!(error.message, "rules.yaml:12: limit: wrong\nrules.yaml: too long");
        assert_eq!(error.status, ExitStatus::Negative);
    }

    #[test]
    fn version_conflict_names_the_newer_version() {
        let context = ErrorContext { name: "", hint: "compare" };
        let error =
            error_of_status(412, r#"{"detail":"rules are at version 8","version":8}"#, context);
        assert_eq!(
            error.message,
            "error: version 8 was pushed in the meantime, nothing was pushed"
        );
        assert_eq!((error.hints, error.status), (vec!["compare".to_owned()], ExitStatus::Negative));
        assert_eq!(error_of_status(412, r#"{"detail":"no"}"#, context).message, "error: no");
    }

    #[test]
    fn unexpected_replies_have_exit_status_2() {
        for (status, body) in [(502, "<html>"), (500, "{}"), (200, "")] {
            assert_eq!(
                error_of_status(status, body, ErrorContext::default()).status,
                ExitStatus::Failed,
                "{status}"
            );
        }
    }
}
