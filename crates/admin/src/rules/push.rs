//! Pushes of rules, and the difference that a push would make.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ETAG, HeaderMap, HeaderValue, IF_MATCH};
use hyper::{Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use tidegate_api::PushedRules;
use tidegate_core::{CallError, quote};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_net::http1::read_body;
use tidegate_redis::Expected;
use tidegate_rules::RuleSet;
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::rules::RulesManager;
use tidegate_service::rules::diff::difference_between;

use crate::rules::{document_warnings, invalid_document, push_error};
use crate::{AdminApi, query};

/// Headers with the author and the reason of a push. Both are free text.
const AUTHOR_HEADER: &str = "tidegate-by";
const NOTE_HEADER: &str = "tidegate-note";
/// Most characters of either header.
const MAX_TEXT_CHARS: usize = 200;

/// Handles `PUT /v1/rules`.
pub(crate) async fn push(
    admin: &AdminApi,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    let headers = request.headers();
    let parsed = (|| {
        let expected = expected_version(headers)?;
        let (by, note) = (free_text(headers, AUTHOR_HEADER)?, free_text(headers, NOTE_HEADER)?);
        Ok::<_, CallError>((expected, by, note))
    })();
    let (expected, by, note) = match parsed {
        Ok((Some(expected), by, note)) => (expected, by, note),
        Ok((None, ..)) => {
            let detail = "if-match: found nothing, wanted the version that is replaced, \
                          as in the ETag of GET /v1/rules, or *";
            return response::problem(StatusCode::PRECONDITION_REQUIRED, detail);
        }
        Err(error) => return response::call_error(&error),
    };
    let by = by.unwrap_or_else(|| from.ip().to_string());
    let text = match document(admin, request).await {
        Ok(text) => text,
        Err(response) => return response,
    };
    match admin.manager.push(&text, &by, &note.unwrap_or_default(), expected).await {
        Ok(version) => {
            tracing::info!(%from, by, version = version.number, "rules changed by operator");
            let active = admin.service.active_rules();
            let rules = active.limiter().rules().rules().len() as u64;
            let pushed = PushedRules {
                version: version.number,
                hash: active.version().hash.clone(),
                rules,
                warnings: document_warnings(&active.version().warnings),
            };
            let mut response = response::json(200, JSON, &pushed);
            if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", version.number)) {
                response.headers_mut().insert(ETAG, tag);
            }
            response
        }
        Err(error) => push_error(&error),
    }
}

/// Handles `POST /v1/rules/diff`: returns the changes that a push of the document would make.
pub(crate) async fn difference(
    admin: &AdminApi,
    active: &ActiveRules,
    request: Request<Incoming>,
) -> Response<Body> {
    let text = match document(admin, request).await {
        Ok(text) => text,
        Err(response) => return response,
    };
    match admin.manager.validate(&text).await {
        Ok(rules) => {
            let mut difference = difference_between(active.limiter().rules(), &rules.set);
            difference.warnings = document_warnings(&rules.warnings);
            response::json(200, JSON, &difference)
        }
        Err(error) => invalid_document(&error),
    }
}

/// Handles `GET /v1/rules/diff?from=6&to=7`.
pub(crate) async fn difference_of_versions(
    manager: &Arc<RulesManager>,
    request: &Request<Incoming>,
) -> Response<Body> {
    let versions = query::known(request.uri().query(), ["from", "to"], "from and to");
    let versions = versions.and_then(|[from, to]| {
        let number = |name: &str, value: Option<&str>| match value {
            Some(value) => query::number(name, Some(value), 0, usize::MAX),
            None => Err(CallError::invalid(name, "nothing", "the number of a version")),
        };
        Ok([number("from", from.as_deref())?, number("to", to.as_deref())?])
    });
    let versions = match versions {
        Ok(versions) => versions,
        Err(error) => return response::call_error(&error),
    };
    let mut sets: Vec<RuleSet> = Vec::new();
    for number in versions {
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        let shared = match manager.shared() {
            Ok(shared) => shared,
            Err(error) => return push_error(&error),
        };
        let stored = match shared.version(number).await {
            Ok(Some(stored)) => stored,
            Ok(None) => {
                let detail = format!("version {number} is not kept, or never was");
                return response::problem(StatusCode::NOT_FOUND, &detail);
            }
            Err(error) => return push_error(&error.into()),
        };
        match manager.validate(&stored.text).await {
            Ok(rules) => sets.push(rules.set),
            Err(error) => return invalid_document(&error),
        }
    }
    match sets.as_slice() {
        [from, to] => response::json(200, JSON, &difference_between(from, to)),
        _ => response::problem(StatusCode::INTERNAL_SERVER_ERROR, "two versions were not compared"),
    }
}

/// Reads the body as text. Only [`MAX_DOCUMENTS`](crate::MAX_DOCUMENTS) are read at the same time, since they may be
/// long.
async fn document(admin: &AdminApi, request: Request<Incoming>) -> Result<String, Response<Body>> {
    let _permit = admin
        .documents
        .try_acquire()
        .map_err(|_| response::overloaded("other documents are being read at this moment"))?;
    let bytes = read_body(request, RuleSet::MAX_DOCUMENT_BYTES).await?;
    String::from_utf8(bytes.into()).map_err(|_| {
        let error = CallError::invalid("body", "bytes that are no text", "text in UTF-8");
        response::call_error(&error)
    })
}

/// Parses `If-Match`, the version that the push replaces. Returns `None` without the header.
fn expected_version(headers: &HeaderMap) -> Result<Option<Expected>, CallError> {
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(Some(Expected::Any));
    }
    match text.trim_matches('"').parse() {
        Ok(number) => Ok(Some(Expected::Number(number))),
        Err(_) => Err(CallError::invalid("if-match", quote(text), "one version, like \"7\", or *")),
    }
}

/// Parses a header with free text, escaped as in a URL.
fn free_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, CallError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = percent_decode_str(value.to_str().unwrap_or_default()).decode_utf8();
    let fits =
        |text: &str| text.chars().count() <= MAX_TEXT_CHARS && !text.chars().any(char::is_control);
    match text {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) if fits(&text) => Ok(Some(text.into_owned())),
        _ => {
            let wanted = format!("at most {MAX_TEXT_CHARS} characters, escaped as in a URL");
            Err(CallError::invalid(name, "something else", wanted))
        }
    }
}
