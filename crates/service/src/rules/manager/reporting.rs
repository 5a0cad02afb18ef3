//! What a manager tells: the log, the metrics, and the other nodes.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::NodeReport;
use tidegate_limiter::StoreError;
use tokio::time::timeout;

use super::RulesManager;
use crate::source_status::SourceStatus;

/// How often a node says what it has.
const EVERY: Duration = Duration::from_secs(20);
/// How long that counts.
const LIFETIME: Duration = Duration::from_secs(65);
/// Longest word on what is wrong that is told to others.
const WORDS: usize = 500;

impl RulesManager {
    /// The source has what is in force.
    pub(crate) fn settled(&self, latest: u64) {
        let mut standing = self.standing.lock();
        if standing.is_away {
            tracing::info!(source = self.source, "source of rules answers again");
        }
        let heard = SourceStatus { latest, problem: None, is_away: false, ..standing.clone() };
        if *standing != heard {
            *standing = heard;
            self.changed.notify_one();
        }
    }

    /// The source answers, and has nothing that was not seen before.
    pub(crate) fn unchanged(&self) {
        let mut standing = self.standing.lock();
        if standing.is_away {
            tracing::info!(source = self.source, "source of rules answers again");
            *standing = SourceStatus { problem: None, is_away: false, ..standing.clone() };
            self.changed.notify_one();
        }
    }

    /// The source has rules that can't be used.
    pub(crate) fn unfit(&self, number: u64, error: &dyn Display) {
        tracing::error!(
            source = self.source,
            version = number,
            %error,
            "new rules can't be used, the old ones stay in force"
        );
        let mut standing = self.standing.lock();
        standing.latest = standing.latest.max(number);
        standing.problem = Some(error.to_string());
        standing.is_away = false;
        standing.rejected += 1;
        self.changed.notify_one();
    }

    /// The source has rules that were replaced before.
    pub(crate) fn older(&self, number: u64, current: u64) {
        let problem = format!("offers version {number} after {current}: rules never go back");
        let mut standing = self.standing.lock();
        if standing.problem.as_ref() != Some(&problem) {
            tracing::warn!(source = self.source, problem, "older rules are not taken up");
            standing.problem = Some(problem);
            standing.is_away = false;
            self.changed.notify_one();
        }
    }

    /// Neither the source nor this node has rules: without files of envoyproxy/ratelimit, every request is
    /// allowed.
    pub(crate) fn no_rules(&self) {
        if self.service.active_rules().envoy().is_some() {
            self.unchanged();
            return;
        }
        let mut standing = self.standing.lock();
        let copy = standing.copy_problem.as_deref().unwrap_or("this node has no copy");
        let problem = format!("no rules there, and {copy}: every request is allowed");
        if standing.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                source = self.source,
                copy,
                "no rules there and no copy to restore, every request is allowed; push rules"
            );
            standing.problem = Some(problem);
            standing.is_away = false;
            self.changed.notify_one();
        }
    }

    /// Logs the result of a reload that an operator asked for.
    pub(crate) fn log_reload(&self, before: u64) {
        let (version, problem) = (self.version().number, self.standing().problem);
        match problem {
            Some(problem) => tracing::error!(
                source = self.source,
                version,
                problem,
                "reload: rules not changed, those in force stay"
            ),
            None => tracing::info!(
                source = self.source,
                version,
                changed = version != before,
                "reload: rules read again"
            ),
        }
    }

    /// The source can't be asked.
    pub(crate) fn away(&self, error: &dyn Display) {
        let mut standing = self.standing.lock();
        standing.failures += 1;
        // Being away says less than rules that are known to be wrong.
        if standing.problem.is_some() && !standing.is_away && standing.latest > 0 {
            return;
        }
        if !standing.is_away {
            tracing::warn!(
                source = self.source,
                %error,
                "source of rules can't be read, the rules in force stay"
            );
            self.changed.notify_one();
        }
        standing.problem = Some(error.to_string());
        standing.is_away = true;
    }

    /// How this node stands with its source.
    pub fn standing(&self) -> SourceStatus {
        self.standing.lock().clone()
    }

    /// Where rules come from, without secrets.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What this node is called in its fleet.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// What this node says of itself.
    pub fn report(&self) -> NodeReport {
        let (version, standing) = (self.version(), self.standing());
        let seen = self.service.clock().now().as_secs_ceil();
        NodeReport {
            node: self.node.clone(),
            source: self.source.clone(),
            version: version.number,
            hash: version.hash,
            behind: standing.is_behind(version.number),
            problem: standing.problem.map(|words| words.chars().take(WORDS).collect()),
            seen,
        }
    }

    /// What every node of the fleet says of itself; this one alone if they share nothing.
    ///
    /// # Errors
    /// The others can't be asked.
    pub async fn reports(&self) -> Result<Vec<NodeReport>, StoreError> {
        let Some(reports) = &self.reports else { return Ok(vec![self.report()]) };
        let said = reports.reports().await?.into_iter().filter_map(|(_, words, at)| {
            let report: NodeReport = serde_json::from_str(&words).ok()?;
            Some(NodeReport { seen: at.as_secs_ceil(), ..report })
        });
        // What this one says now is newer than what it said last.
        let others = said.filter(|report| report.node != self.node);
        let mut all: Vec<NodeReport> = others.chain([self.report()]).collect();
        all.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(all)
    }

    /// Tells the other nodes what this one has, whenever that changes and now and then.
    pub(crate) async fn keep_reporting(self: Arc<Self>) {
        let Some(reports) = &self.reports else { return };
        loop {
            let words = serde_json::to_string(&self.report()).unwrap_or_default();
            if let Err(error) = reports.report(&self.node, &words, LIFETIME).await {
                tracing::debug!(%error, "the fleet was not told which rules are in force here");
            }
            let _ = timeout(EVERY, self.changed.notified()).await;
        }
    }
}
