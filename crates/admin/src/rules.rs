//! `/v1/rules`: reads and changes the active rules.

mod active;
mod push;
mod versions;

use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tidegate_api::{DocumentError, InvalidRules, Text, VersionConflict};
use tidegate_net::http::response::{self, Body};
use tidegate_rules::{RuleError, RuleWarnings};
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::config_error::ConfigError;
use tidegate_service::rules::PushError;

use crate::AdminApi;

/// The prefix of the paths.
pub(crate) const PATH: &str = "/v1/rules";

/// Handles a request to `/v1/rules` and below.
pub(crate) async fn handle(
    admin: &AdminApi,
    active: &ActiveRules,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    let manager = &admin.manager;
    let path = request.uri().path().strip_prefix(PATH).unwrap_or_default().to_owned();
    let allowed = match path.as_str() {
        "" => "GET, HEAD, PUT, OPTIONS",
        "/diff" => "GET, HEAD, POST, OPTIONS",
        _ => "GET, HEAD, OPTIONS",
    };
    match (path.as_str(), request.method()) {
        (_, &Method::OPTIONS) => response::options(allowed),
        ("", &Method::GET | &Method::HEAD) => active::rules(manager, active, &request).await,
        ("", &Method::PUT) => push::push(admin, request, from).await,
        ("/diff", &Method::GET | &Method::HEAD) => {
            push::difference_of_versions(manager, &request).await
        }
        ("/diff", &Method::POST) => push::difference(admin, active, request).await,
        ("/history", &Method::GET | &Method::HEAD) => versions::history(manager, &request).await,
        ("/status", &Method::GET | &Method::HEAD) => versions::status(manager).await,
        (_, other) => {
            let wanted = allowed.trim_end_matches(", OPTIONS");
            response::wrong_method(&format!("method: found {other}, wanted {wanted}"), allowed)
        }
    }
}

/// Returns the response of a failed push.
fn push_error(error: &PushError) -> Response<Body> {
    match error {
        PushError::ReadOnlySource { source_name } => response::problem(
            StatusCode::CONFLICT,
            &format!(
                "rules come from {source_name} on this server, change them there; \
             rules: {{redis: true}} in tidegate.yaml keeps them in Redis, where they can be pushed"
            ),
        ),
        PushError::Invalid(error) => invalid_document(error),
        PushError::Conflict { found } => {
            let version = found.as_ref().map_or(0, |found| found.number);
            let (status, detail) = (StatusCode::PRECONDITION_FAILED, error.to_string());
            let problem = response::problem_body(status, &detail);
            response::problem_json(status, &VersionConflict { problem, version })
        }
        PushError::Store(error) => {
            let detail = format!("not confirmed by the store: {error}");
            response::problem(StatusCode::SERVICE_UNAVAILABLE, &detail)
        }
    }
}

/// Returns the response of an invalid document, with all errors and their lines.
fn invalid_document(error: &ConfigError) -> Response<Body> {
    let errors: Vec<DocumentError<String>> = match error {
        ConfigError::Rules(errors) => errors.iter().map(document_error).collect(),
        other => vec![DocumentError { line: None, message: other.to_string() }],
    };
    let detail = match errors.len() {
        1 => "the document has an error".to_owned(),
        count => format!("the document has {count} errors"),
    };
    let problem = response::problem_body(StatusCode::UNPROCESSABLE_ENTITY, &detail);
    let errors = errors
        .iter()
        .map(|error| DocumentError { line: error.line, message: &*error.message })
        .collect();
    response::problem_json(StatusCode::UNPROCESSABLE_ENTITY, &InvalidRules { problem, errors })
}

/// Returns the warnings of a document.
pub(crate) fn document_warnings(warnings: &RuleWarnings) -> Vec<DocumentError<String>> {
    warnings.iter().map(|warning| document_error(warning.as_error())).collect()
}

/// Returns the JSON form of an error or a warning.
pub(crate) fn document_error<T: Text + From<String>>(error: &RuleError) -> DocumentError<T> {
    // The line is a separate field, and the document of a request has no name.
    DocumentError { line: error.line(), message: error.without_position().into() }
}
