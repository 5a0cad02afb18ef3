//! What befalls a fleet: clocks that run apart, a store that is away.

use tidegate::{Span, Timestamp};

/// What befalls a fleet. Nothing, unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weather {
    /// How far the clocks of nodes are apart, from the first to the last.
    pub(crate) skew: Span,
    pub(crate) outage: Option<Outage>,
}

/// A time through which the store does not answer, since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) from: Span,
    /// The first instant after it.
    pub(crate) until: Span,
}

impl Outage {
    /// Whether it is going on, so long after the start.
    pub(super) fn covers(self, passed: Span) -> bool {
        (self.from..self.until).contains(&passed)
    }
}

impl Weather {
    pub(crate) fn is_calm(self) -> bool {
        self == Self::default()
    }

    /// By how much the clock of a node is ahead of the store's.
    pub(super) fn ahead(self, node: usize, nodes: usize) -> Span {
        let last = (nodes.saturating_sub(1)).max(1) as u128;
        let ahead = u128::from(self.skew.as_micros()) * node as u128 / last;
        Span::from_micros(u64::try_from(ahead).unwrap_or_default())
    }

    pub(super) fn is_down(self, start: Timestamp, now: Timestamp) -> bool {
        now >= start && self.outage.is_some_and(|outage| outage.covers(now.since(start)))
    }

    /// The same in words, for what is said above a table.
    pub(super) fn about(self) -> Vec<(&'static str, String)> {
        let skew = (!self.skew.is_zero())
            .then(|| ("clocks", format!("of nodes up to {} ahead of the store's", self.skew)));
        let outage = self.outage.map(|Outage { from, until }| {
            ("outage", format!("the store does not answer from {from} to {until}"))
        });
        skew.into_iter().chain(outage).collect()
    }
}
