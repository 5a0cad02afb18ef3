//! The active rules, as JSON or as the original document, and the documents of older versions.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use hyper::{Request, Response, StatusCode};
use tidegate_api::RulesView;
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_rules::RuleSet;
use tidegate_service::active_rules::{ActiveRules, RulesVersion};
use tidegate_service::rules::{RULES_VERSION_HEADER, RulesManager, rule_view};

use crate::query;
use crate::rules::{document_error, push_error};

const YAML_TYPE: HeaderValue = HeaderValue::from_static("application/yaml");

/// Handles `GET /v1/rules`. Returns 304 if `If-None-Match` has the current version.
pub(crate) async fn rules(
    manager: &Arc<RulesManager>,
    active: &ActiveRules,
    request: &Request<Incoming>,
) -> Response<Body> {
    let [wanted] = match query::known(request.uri().query(), ["version"], "version") {
        Ok(known) => known,
        Err(error) => return response::call_error(&error),
    };
    if let Some(wanted) = wanted {
        return match query::number("version", Some(&wanted), 0, usize::MAX) {
            Ok(number) => older_version(manager, u64::try_from(number).unwrap_or(u64::MAX)).await,
            Err(error) => response::call_error(&error),
        };
    }
    let version = active.version();
    let tag = tag(manager, version);
    let known = request.headers().get_all(IF_NONE_MATCH).iter().any(|value| {
        let tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
        tags.into_iter().any(|known| known == "*" || known.trim_start_matches("W/") == tag)
    });
    let mut response = if known {
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if !wants_yaml(request) {
        response::json(200, JSON, &rules_view(manager, version, active.limiter().rules()))
    } else if let Some(text) = &version.text {
        document(text, version.number)
    } else {
        let detail = format!("rules from {} have no single document", manager.source());
        return response::problem(StatusCode::NOT_FOUND, &detail);
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Returns the entity tag of a version. Without a shared source the numbers restart with the node, so the hash is added.
fn tag(manager: &RulesManager, version: &RulesVersion) -> String {
    match manager.shared() {
        Ok(_) => format!("\"{}\"", version.number),
        Err(_) => format!("\"{}.{}\"", version.number, version.hash),
    }
}

fn wants_yaml(request: &Request<Incoming>) -> bool {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("yaml"))
}

async fn older_version(manager: &RulesManager, number: u64) -> Response<Body> {
    let shared = match manager.shared() {
        Ok(shared) => shared,
        Err(error) => return push_error(&error),
    };
    match shared.version(number).await {
        Ok(Some(stored)) => document(&stored.text, stored.version.number),
        Ok(None) => {
            let detail = format!("version {number} is not kept, or never was");
            response::problem(StatusCode::NOT_FOUND, &detail)
        }
        Err(error) => push_error(&error.into()),
    }
}

fn document(text: &str, number: u64) -> Response<Body> {
    let mut response = response::text_no_store(text.to_owned());
    response.headers_mut().insert(CONTENT_TYPE, YAML_TYPE);
    response
        .headers_mut()
        .insert(HeaderName::from_static(RULES_VERSION_HEADER), HeaderValue::from(number));
    response
}

fn rules_view<'a>(
    manager: &'a RulesManager,
    version: &'a RulesVersion,
    rules: &'a RuleSet,
) -> RulesView<Cow<'a, str>> {
    let non_empty = |text: &'a str| Some(Cow::from(text)).filter(|text| !text.is_empty());
    RulesView {
        version: version.number,
        hash: Cow::from(&*version.hash),
        source: manager.source().into(),
        by: non_empty(&version.by),
        note: non_empty(&version.note),
        at: version.at.map(|at| at.as_secs_ceil()),
        rules: rules.rules().iter().map(rule_view).collect(),
        warnings: version
            .warnings
            .iter()
            .map(|warning| document_error(warning.as_error()))
            .collect(),
    }
}
