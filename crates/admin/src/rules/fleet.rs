//! The versions of the rules, and which node has which.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tidegate_api::{NodeReport, RulesHistory, RulesStatus, VersionEntry};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_redis::DocumentVersion;
use tidegate_service::rules::RulesManager;

use crate::query;
use crate::rules::refused;

/// How many versions are shown unless more are asked for.
const USUAL: usize = 20;
/// The most that are kept.
const MOST: usize = 50;

/// Answers `GET /v1/rules/history`.
pub(crate) async fn history(
    manager: &Arc<RulesManager>,
    request: &Request<Incoming>,
) -> Response<Body> {
    let most = query::known(request.uri().query(), ["limit"], "limit")
        .and_then(|[limit]| query::number("limit", limit.as_deref(), USUAL, MOST));
    let most = match most {
        Ok(most) => most,
        Err(fault) => return response::call_error(&fault),
    };
    let shared = match manager.shared() {
        Ok(shared) => shared,
        Err(error) => return refused(&error),
    };
    match shared.history(most).await {
        Ok(versions) => {
            let versions = versions.iter().map(version_entry).collect();
            response::json(200, JSON, &RulesHistory { versions })
        }
        Err(error) => refused(&error.into()),
    }
}

fn version_entry(version: &DocumentVersion) -> VersionEntry<&str> {
    VersionEntry {
        version: version.number,
        hash: &version.hash,
        at: version.at.as_secs_ceil(),
        by: &version.by,
        note: &version.note,
        bytes: version.bytes,
    }
}

/// Answers `GET /v1/rules/status`. This node is known to itself, also when the others are not.
pub(crate) async fn status(manager: &Arc<RulesManager>) -> Response<Body> {
    let own = manager.report();
    let (nodes, unknown) = match manager.reports().await {
        Ok(nodes) => (nodes, None),
        Err(error) => (vec![own.clone()], Some(error.to_string())),
    };
    let latest = manager.source_status().latest;
    let NodeReport { node, source, version, behind, problem, .. } = own;
    response::json(
        200,
        JSON,
        &RulesStatus { node, source, version, latest, behind, problem, unknown, nodes },
    )
}
