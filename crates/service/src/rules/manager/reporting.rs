//! The status of the source: log lines, metrics, and reports to the other nodes.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::NodeReport;
use tidegate_limiter::StoreError;
use tidegate_rules::{RuleError, RuleWarnings, SourceRange};
use tokio::time::timeout;

use super::RulesManager;
use crate::source_status::SourceStatus;

/// Longest time between two reports of a node.
const REPORT_INTERVAL: Duration = Duration::from_secs(20);
/// Lifetime of a report: a node is listed until it has missed three of them.
const REPORT_TTL: Duration = Duration::from_secs(65);
/// Longest problem text in a report.
const MAX_PROBLEM_CHARS: usize = 500;
/// Most warnings of one set of rules that are logged.
const MAX_LOGGED_WARNINGS: usize = 20;

impl RulesManager {
    /// Records that the document of the source is the active one.
    pub(crate) fn mark_current(&self, latest: u64) {
        let mut status = self.status.lock();
        if status.is_unreachable {
            tracing::info!(source = self.source, "source of rules is reachable again");
        }
        let next = SourceStatus { latest, problem: None, is_unreachable: false, ..status.clone() };
        if *status != next {
            *status = next;
            self.changed.notify_one();
        }
    }

    /// Logs the warnings of rules that become active.
    pub(crate) fn log_warnings(&self, version: u64, warnings: &RuleWarnings) {
        for warning in warnings.iter().take(MAX_LOGGED_WARNINGS) {
            let RuleError { at, rule, message, .. } = warning.as_error();
            let line = at.map(SourceRange::line);
            tracing::warn!(
                source = self.source,
                version,
                line,
                rule,
                message,
                "part of a rule has no effect"
            );
        }
        let others = warnings.count().saturating_sub(MAX_LOGGED_WARNINGS);
        if others > 0 {
            tracing::warn!(
                source = self.source,
                version,
                others,
                "rules have more warnings, tidegate validate prints them"
            );
        }
    }

    /// Records that the source is reachable and its document has not changed.
    pub(crate) fn mark_unchanged(&self) {
        let mut status = self.status.lock();
        if status.is_unreachable {
            tracing::info!(source = self.source, "source of rules is reachable again");
            *status = SourceStatus { problem: None, is_unreachable: false, ..status.clone() };
            self.changed.notify_one();
        }
    }

    /// Records that the document of the source is invalid.
    pub(crate) fn mark_rejected(&self, number: u64, error: &dyn Display) {
        tracing::error!(
            source = self.source,
            version = number,
            %error,
            "new rules rejected, the active rules stay"
        );
        let mut status = self.status.lock();
        status.latest = status.latest.max(number);
        status.problem = Some(error.to_string());
        status.is_unreachable = false;
        status.rejected += 1;
        self.changed.notify_one();
    }

    /// Records that the source offers an older version than the active one.
    pub(crate) fn mark_stale(&self, number: u64, current: u64) {
        let problem =
            format!("found version {number}, wanted {current} or later: versions never decrease");
        let mut status = self.status.lock();
        if status.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                source = self.source,
                problem,
                "older rules ignored, the active rules stay"
            );
            status.problem = Some(problem);
            status.is_unreachable = false;
            self.changed.notify_one();
        }
    }

    /// Records that neither the source nor this node has rules. Without files of envoyproxy/ratelimit, every request is
    /// allowed then.
    pub(crate) fn mark_empty(&self) {
        if self.service.active_rules().envoy().is_some() {
            self.mark_unchanged();
            return;
        }
        let mut status = self.status.lock();
        let copy = status.copy_problem.as_deref().unwrap_or("this node has no copy");
        let problem = format!("source has no rules, and {copy}: every request is allowed");
        if status.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                source = self.source,
                copy,
                "source has no rules and no copy can restore them, every request is allowed; push rules"
            );
            status.problem = Some(problem);
            status.is_unreachable = false;
            self.changed.notify_one();
        }
    }

    /// Logs the result of a reload that an operator requested.
    pub(crate) fn log_reload(&self, before: u64) {
        let (version, problem) = (self.version().number, self.source_status().problem);
        match problem {
            Some(problem) => tracing::error!(
                source = self.source,
                version,
                problem,
                "reload: rules not changed, the active rules stay"
            ),
            None => tracing::info!(
                source = self.source,
                version,
                changed = version != before,
                "reload: rules read again"
            ),
        }
    }

    /// Records that the source can't be read. Only the first failure in a row is logged.
    pub(crate) fn mark_unreachable(&self, error: &dyn Display) {
        let mut status = self.status.lock();
        status.failures += 1;
        // A rejected document is the more important problem, so it stays visible.
        if status.problem.is_some() && !status.is_unreachable && status.latest > 0 {
            return;
        }
        if !status.is_unreachable {
            tracing::warn!(
                source = self.source,
                %error,
                "cannot read the source of rules, the active rules stay"
            );
            self.changed.notify_one();
        }
        status.problem = Some(error.to_string());
        status.is_unreachable = true;
    }

    /// Returns the status of the source.
    pub fn source_status(&self) -> SourceStatus {
        self.status.lock().clone()
    }

    /// Returns the name of the source, without secrets.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the name of this node in its fleet.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the report of this node.
    pub fn report(&self) -> NodeReport {
        let (version, status) = (self.version(), self.source_status());
        let seen = self.service.clock().now().as_secs_ceil();
        NodeReport {
            node: self.node.clone(),
            source: self.source.clone(),
            version: version.number,
            hash: version.hash,
            behind: status.is_behind(version.number),
            problem: status.problem.map(|text| text.chars().take(MAX_PROBLEM_CHARS).collect()),
            seen,
        }
    }

    /// Returns the reports of all nodes of the fleet. Without a shared Redis this is the report of this node alone.
    ///
    /// # Errors
    /// The reports can't be read from Redis.
    pub async fn reports(&self) -> Result<Vec<NodeReport>, StoreError> {
        let Some(reports) = &self.reports else { return Ok(vec![self.report()]) };
        let stored = reports.reports().await?.into_iter().filter_map(|(_, text, at)| {
            let report: NodeReport = serde_json::from_str(&text).ok()?;
            Some(NodeReport { seen: at.as_secs_ceil(), ..report })
        });
        // The stored report of this node may be older than its current status.
        let others = stored.filter(|report| report.node != self.node);
        let mut all: Vec<NodeReport> = others.chain([self.report()]).collect();
        all.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(all)
    }

    /// Stores the report of this node for the others: after every change, and at least once per [`REPORT_INTERVAL`].
    pub(crate) async fn report_loop(self: Arc<Self>) {
        let Some(reports) = &self.reports else { return };
        loop {
            let text = serde_json::to_string(&self.report()).unwrap_or_default();
            if let Err(error) = reports.report(&self.node, &text, REPORT_TTL).await {
                tracing::debug!(%error, "cannot report the active rules to the fleet, retrying");
            }
            let _ = timeout(REPORT_INTERVAL, self.changed.notified()).await;
        }
    }
}
