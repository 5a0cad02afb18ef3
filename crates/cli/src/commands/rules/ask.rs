//! Questions to the admin listener about rules, and what its refusals mean.

use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, IF_MATCH};
use hyper::{Method, Request};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Deserialize;
use tidegate_api::{DocumentError, InvalidRules, ProblemBody, VersionConflict};
use tidegate_net::client::HttpClient;
use tidegate_net::token::BearerToken;

use crate::commands::{Failure, waiting};
use crate::config;

/// Longest answer in bytes: a document may have 16 MiB, and as JSON be longer.
const MOST: usize = 64 << 20;
/// What a header can't say as it is.
const SPELLED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
const YAML: &str = "application/yaml";

/// The admin listener of a server.
pub(crate) struct AdminClient<'s> {
    server: &'s HttpClient,
    token: Option<BearerToken>,
}

/// What the listener answered, if that is what was asked for.
pub(crate) struct Answer {
    /// The version of the document that the answer is.
    pub(crate) version: Option<u64>,
    pub(crate) body: String,
}

/// A document that is to replace a version.
pub(crate) struct Change<'a> {
    /// What errors call it.
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// The version that it replaces; 0 if there is none yet.
    pub(crate) replaces: u64,
    pub(crate) by: &'a str,
    pub(crate) note: &'a str,
    /// What to do when somebody else was first.
    pub(crate) hint: &'a str,
}

/// What a refusal is told with.
#[derive(Clone, Copy, Default)]
struct About<'a> {
    /// What errors call the document.
    name: &'a str,
    /// What to do when somebody else was first.
    hint: &'a str,
}

impl<'s> AdminClient<'s> {
    pub(crate) fn of(server: &'s HttpClient) -> Result<Self, Failure> {
        Ok(Self { server, token: config::token()? })
    }

    /// What is at a path, in JSON.
    pub(crate) fn read(&self, path: &str) -> Result<Answer, Failure> {
        self.ask(Method::GET, path, &[], "", About::default())
    }

    /// A document as it was pushed: the one in force, or an older one.
    pub(crate) fn document(&self, version: Option<u64>) -> Result<Answer, Failure> {
        let path = version.map_or_else(String::new, |version| format!("?version={version}"));
        self.ask(
            Method::GET,
            &format!("/v1/rules{path}"),
            &[(ACCEPT.as_str(), YAML.into())],
            "",
            About::default(),
        )
    }

    /// What pushing a document would change.
    pub(crate) fn compare(&self, name: &str, text: &str) -> Result<Answer, Failure> {
        self.ask(Method::POST, "/v1/rules/diff", &[], text, About { name, hint: "" })
    }

    /// Pushes a document, if the version that it replaces is still the latest.
    pub(crate) fn push(&self, change: &Change<'_>) -> Result<Answer, Failure> {
        let spelled = |text| utf8_percent_encode(text, SPELLED).to_string();
        let headers = [
            (IF_MATCH.as_str(), format!("\"{}\"", change.replaces)),
            ("tidegate-by", spelled(change.by)),
            ("tidegate-note", spelled(change.note)),
        ];
        let about = About { name: change.name, hint: change.hint };
        self.ask(Method::PUT, "/v1/rules", &headers, change.text, about)
    }

    fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: &str,
        about: About<'_>,
    ) -> Result<Answer, Failure> {
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
        let request = request.body(Full::from(body.to_owned())).map_err(Failure::failed)?;
        let answer = waiting(self.server.exchange(request, MOST))??;
        let (head, body) = answer.into_parts();
        let body = String::from_utf8_lossy(&body).into_owned();
        if head.status != 200 {
            return Err(refusal(head.status.as_u16(), &body, about));
        }
        let version = head.headers.get("tidegate-rules-version");
        let version = version.and_then(|version| version.to_str().ok()?.parse().ok());
        Ok(Answer { version, body })
    }
}

impl Answer {
    /// The answer as what it must be.
    pub(crate) fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        serde_json::from_str(&self.body).map_err(|error| {
            Failure::failed(format_args!("the answer can't be read: {error}"))
                .hint("is that the admin listener of a tidegate, as new as this one?")
        })
    }
}

/// What it means that the listener did not do what it was asked to.
fn refusal(status: u16, body: &str, About { name, hint }: About<'_>) -> Failure {
    let ProblemBody::<String> { detail, .. } = serde_json::from_str(body).unwrap_or_default();
    match status {
        400 | 428 => Failure::refused(detail),
        401 => Failure::failed(detail).hint("TIDEGATE_TOKEN sets the token that is sent"),
        404 if detail.starts_with("path:") => Failure::failed(detail)
            .hint("the admin listener is another one than the listener for checks, port 9090 if not told otherwise"),
        404 if detail.starts_with("version ") => Failure::refused(detail).hint("tidegate rules history shows which versions are kept"),
        // The listener says what to do instead.
        404 | 409 => Failure::refused(detail),
        412 => Failure::refused(match serde_json::from_str(body) {
            Ok(VersionConflict::<String> { version: 0, .. }) => "the rules were lost meanwhile, nothing was pushed".to_owned(),
            Ok(VersionConflict { version, .. }) => format!("version {version} was pushed meanwhile, yours was not"),
            Err(_) => detail,
        })
        .hint(hint),
        422 => match serde_json::from_str::<InvalidRules>(body) {
            Ok(InvalidRules { errors, .. }) if !errors.is_empty() => {
                let lines: Vec<String> = errors.iter().map(|error| error_line(error, name)).collect();
                Failure { message: lines.join("\n"), ..Failure::refused("") }
            }
            _ => Failure::refused(detail),
        },
        _ => Failure::failed(format_args!("{detail} (status {status})")),
    }
}

/// Writes `rules.yaml:12: rule "login": …`, as `tidegate validate` does.
fn error_line(error: &DocumentError, name: &str) -> String {
    match error.line {
        Some(line) => format!("{name}:{line}: {}", error.message),
        None => format!("{name}: {}", error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Ending;

    #[test]
    fn what_is_wrong_is_said_with_file_and_line() {
        let body = r#"{"detail":"…","errors":[{"line":12,"message":"limit: wrong"},{"message":"too long"}]}"#;
        let failure = refusal(422, body, About { name: "rules.yaml", hint: "" });
        assert_eq!(failure.message, "rules.yaml:12: limit: wrong\nrules.yaml: too long");
        assert_eq!(failure.ending, Ending::No);
    }

    #[test]
    fn a_push_that_came_too_late_names_the_version_that_was_first() {
        let about = About { name: "", hint: "look" };
        let failure = refusal(412, r#"{"detail":"rules are at version 8","version":8}"#, about);
        assert_eq!(failure.message, "error: version 8 was pushed meanwhile, yours was not");
        assert_eq!((failure.hints, failure.ending), (vec!["look".to_owned()], Ending::No));
        assert_eq!(refusal(412, r#"{"detail":"no"}"#, about).message, "error: no");
    }

    #[test]
    fn what_is_no_answer_of_ours_is_a_failure() {
        for (status, body) in [(502, "<html>"), (500, "{}"), (200, "")] {
            assert_eq!(refusal(status, body, About::default()).ending, Ending::Failed, "{status}");
        }
    }
}
