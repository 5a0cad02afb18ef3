//! One case of holds.json, for every implementation that is held to it.

use serde::Deserialize;
use tidegate_core::{
    LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Span, Timestamp, UnreportedUsage, UsageReport,
};

use super::case::Numbers;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskCase {
    pub(crate) name: String,
    pub(crate) limit: Numbers,
    pub(crate) steps: Vec<AskStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskStep {
    pub(crate) at: u64,
    pub(crate) limit: Option<Numbers>,
    cost: u64,
    want: u64,
    node: u64,
    number: u32,
    #[serde(default)]
    owed: Vec<(u64, u64)>,
    reports: Vec<(u64, u32, u64, bool)>,
    life: u64,
    nodes: u64,
    allowed: bool,
    retry_after: Option<i64>,
    remaining: u64,
    reset_after: u64,
    held: u64,
    life_granted: u64,
    pub(crate) state: Vec<u64>,
    holds: Vec<(u64, u32, u64, u64, u64)>,
}

impl AskStep {
    pub(crate) fn ask(&self) -> LeaseRequest {
        let report = |&(node, number, spent, closed): &(u64, u32, u64, bool)| UsageReport {
            id: LeaseId { node, number },
            spent,
            closed,
        };
        let owed =
            |&(at, total): &(u64, u64)| UnreportedUsage { at: Timestamp::from_micros(at), total };
        LeaseRequest {
            cost: self.cost,
            requested: self.want,
            id: LeaseId { node: self.node, number: self.number },
            unreported: self.owed.iter().map(owed).collect(),
            reports: self.reports.iter().map(report).collect(),
            ttl: Span::from_micros(self.life),
            fleet_size: self.nodes,
        }
    }

    pub(crate) fn assert_told(&self, granted: &LeaseGrant, place: &str) {
        let outcome = &granted.outcome;
        assert_eq!(outcome.is_allowed(), self.allowed, "{place}: allowed");
        let wait = match outcome.retry_after() {
            Some(wait) => Some(i64::try_from(wait.as_micros()).unwrap()),
            None if outcome.is_allowed() => None,
            None => Some(-1),
        };
        assert_eq!(wait, self.retry_after, "{place}: retry_after");
        assert_eq!(outcome.remaining, self.remaining, "{place}: remaining");
        assert_eq!(outcome.reset_after.as_micros(), self.reset_after, "{place}: reset_after");
        assert_eq!(granted.granted, self.held, "{place}: held");
        assert_eq!(granted.ttl.as_micros(), self.life_granted, "{place}: life");
    }

    pub(crate) fn assert_held(&self, holds: &LeaseSet, place: &str) {
        let listed: Vec<_> = holds
            .iter()
            .map(|lease| {
                (lease.id.node, lease.id.number, lease.amount, lease.spent, lease.until.as_micros())
            })
            .collect();
        assert_eq!(listed, self.holds, "{place}: holds");
    }
}
