//! The versions of the rules, and the version of each node.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tidegate_api::{NodeReport, RulesHistory, RulesStatus, VersionEntry};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_redis::DocumentVersion;
use tidegate_service::rules::RulesManager;

use crate::query;
use crate::rules::push_error;

/// Number of versions in a response without `limit`.
const DEFAULT_VERSIONS: usize = 20;
/// Most versions of the history.
const MAX_VERSIONS: usize = 50;

/// Handles `GET /v1/rules/history`.
pub(crate) async fn history(
    manager: &Arc<RulesManager>,
    request: &Request<Incoming>,
) -> Response<Body> {
    let limit = query::known(request.uri().query(), ["limit"], "limit").and_then(|[limit]| {
        query::number("limit", limit.as_deref(), DEFAULT_VERSIONS, MAX_VERSIONS)
    });
    let limit = match limit {
        Ok(limit) => limit,
        Err(error) => return response::call_error(&error),
    };
    let shared = match manager.shared() {
        Ok(shared) => shared,
        Err(error) => return push_error(&error),
    };
    match shared.history(limit).await {
        Ok(versions) => {
            let versions = versions.iter().map(version_entry).collect();
            response::json(200, JSON, &RulesHistory { versions })
        }
        Err(error) => push_error(&error.into()),
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

/// Handles `GET /v1/rules/status`. If the reports of other nodes can't be read, only this node is listed.
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
