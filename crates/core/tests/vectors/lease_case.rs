//! One case of holds.json, run by every implementation of leases.

use serde::Deserialize;
use tidegate_core::{
    LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Span, Timestamp, UnreportedUsage, UsageReport,
};

use super::case::Numbers;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseCase {
    pub(crate) name: String,
    pub(crate) limit: Numbers,
    pub(crate) steps: Vec<LeaseStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseStep {
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

impl LeaseStep {
    pub(crate) fn request(&self) -> LeaseRequest {
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

    pub(crate) fn assert_grant(&self, granted: &LeaseGrant, context: &str) {
        let outcome = &granted.outcome;
        assert_eq!(outcome.is_allowed(), self.allowed, "{context}: allowed");
        let wait = match outcome.retry_after() {
            Some(wait) => Some(i64::try_from(wait.as_micros()).unwrap()),
            None if outcome.is_allowed() => None,
            None => Some(-1),
        };
        assert_eq!(wait, self.retry_after, "{context}: retry_after");
        assert_eq!(outcome.remaining, self.remaining, "{context}: remaining");
        assert_eq!(outcome.reset_after.as_micros(), self.reset_after, "{context}: reset_after");
        assert_eq!(granted.granted, self.held, "{context}: held");
        assert_eq!(granted.ttl.as_micros(), self.life_granted, "{context}: life");
    }

    pub(crate) fn assert_leases(&self, leases: &LeaseSet, context: &str) {
        let listed: Vec<_> = leases
            .iter()
            .map(|lease| {
                (lease.id.node, lease.id.number, lease.amount, lease.spent, lease.until.as_micros())
            })
            .collect();
        assert_eq!(listed, self.holds, "{context}: holds");
    }
}
