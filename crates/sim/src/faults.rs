//! Faults of a simulated fleet: clocks that differ, a store that is down.

use tidegate_core::{Span, Timestamp};

/// The faults of a fleet; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Difference between the clocks of the first and the last node.
    pub clock_skew: Span,
    /// The outage of the store.
    pub outage: Option<StoreOutage>,
}

/// A time during which the store does not reply, counted from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOutage {
    /// The first instant of it.
    pub from: Span,
    /// The first instant after it.
    pub until: Span,
}

impl StoreOutage {
    /// Returns whether the store is down at this time since the start.
    pub(crate) fn covers(self, passed: Span) -> bool {
        (self.from..self.until).contains(&passed)
    }
}

impl FaultPlan {
    /// Returns whether there are no faults.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the lead of a node's clock over the store's clock.
    pub(crate) fn clock_offset(self, node: usize, nodes: usize) -> Span {
        let last = (nodes.saturating_sub(1)).max(1) as u128;
        let ahead = u128::from(self.clock_skew.as_micros()) * node as u128 / last;
        Span::from_micros(u64::try_from(ahead).unwrap_or_default())
    }

    pub(crate) fn is_down(self, start: Timestamp, now: Timestamp) -> bool {
        now >= start && self.outage.is_some_and(|outage| outage.covers(now.since(start)))
    }

    /// Describes the faults for the head of a report.
    pub(crate) fn describe(self) -> Vec<(&'static str, String)> {
        let skew = (!self.clock_skew.is_zero()).then(|| {
            ("clocks", format!("of nodes up to {} ahead of the store's", self.clock_skew))
        });
        let outage = self.outage.map(|StoreOutage { from, until }| {
            ("outage", format!("the store does not answer from {from} to {until}"))
        });
        skew.into_iter().chain(outage).collect()
    }
}
