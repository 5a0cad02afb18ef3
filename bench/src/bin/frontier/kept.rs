//! The ways of keeping a limit that are compared.

use crate::traffic::Traffic;

/// A way of keeping a limit across a fleet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Exact,
    Hot,
    Leased,
    Synced,
    Split,
}

impl Kept {
    pub(crate) const ALL: [Self; 5] =
        [Self::Exact, Self::Hot, Self::Leased, Self::Synced, Self::Split];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Hot => "hot",
            Self::Leased => "leased",
            Self::Synced => "synced",
            Self::Split => "split",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        Self::ALL.into_iter().find(|kept| kept.name() == name).unwrap()
    }

    /// The rule of a traffic, kept like this.
    pub(crate) fn rules(self, traffic: Traffic) -> String {
        let kept = match self {
            Self::Exact => String::new(),
            Self::Hot => ", hot: leased".into(),
            Self::Leased | Self::Split => format!(", accuracy: {}", self.name()),
            Self::Synced => format!(", accuracy: synced, max_ahead: {}", max_ahead(traffic)),
        };
        let limit = traffic.limit();
        format!("rules: [{{name: api, per: [user], {limit}, on_store_failure: deny{kept}}}]")
    }

    /// What so many nodes may admit beyond the bound of the algorithm.
    pub(crate) fn allowance(self, traffic: Traffic, nodes: u64) -> u64 {
        match self {
            Self::Synced => max_ahead(traffic) * nodes,
            Self::Exact | Self::Hot | Self::Leased | Self::Split => 0,
        }
    }
}

/// A twentieth of the limit: a fleet of eight may be 40 % over it.
fn max_ahead(traffic: Traffic) -> u64 {
    traffic.burst() / 20
}
