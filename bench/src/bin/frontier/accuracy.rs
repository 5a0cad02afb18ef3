//! The accuracies under comparison.

use crate::traffic::Traffic;

/// An accuracy of a rule that a fleet enforces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FleetAccuracy {
    Exact,
    Hot,
    Leased,
    Synced,
    Split,
}

impl FleetAccuracy {
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

    pub(crate) fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|accuracy| accuracy.name() == name).unwrap()
    }

    /// Returns the rules for a traffic pattern with this accuracy.
    pub(crate) fn rules(self, traffic: Traffic) -> String {
        let accuracy_keys = match self {
            Self::Exact => String::new(),
            Self::Hot => ", hot: leased".into(),
            Self::Leased | Self::Split => format!(", accuracy: {}", self.name()),
            Self::Synced => format!(", accuracy: synced, max_ahead: {}", max_ahead(traffic)),
        };
        let limit = traffic.limit();
        format!(
            "rules: [{{name: api, per: [user], {limit}, on_store_failure: deny{accuracy_keys}}}]"
        )
    }

    /// Returns how many requests `nodes` nodes may admit beyond the bound of the algorithm.
    pub(crate) fn allowance(self, traffic: Traffic, nodes: u64) -> u64 {
        match self {
            Self::Synced => max_ahead(traffic) * nodes,
            Self::Exact | Self::Hot | Self::Leased | Self::Split => 0,
        }
    }
}

/// Returns a twentieth of the limit, so that a fleet of eight may exceed it by 40 %.
fn max_ahead(traffic: Traffic) -> u64 {
    traffic.burst() / 20
}
