//! The last reports of a server.

use std::collections::VecDeque;

use tidegate_api::{LiveSecond, RuleActivity};
use tidegate_core::TerminalSafe;

use super::poller::{ClientRankings, SafeFleetReport, SafeLiveReport, Update};

/// Most seconds of history that are kept.
const MAX_SECONDS: usize = 300;

/// The last report of each kind. While the server is unreachable, the last figures stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct ViewModel {
    /// Address of the server.
    pub(crate) address: String,
    pub(crate) live: SafeLiveReport,
    /// Oldest first.
    pub(crate) seconds: VecDeque<LiveSecond>,
    pub(crate) clients: ClientRankings,
    pub(crate) fleet: SafeFleetReport,
    /// Error of the last live request; `None` after a success.
    pub(crate) unreachable: Option<TerminalSafe>,
    /// Error of the last fleet request; `None` after a success.
    pub(crate) fleet_error: Option<TerminalSafe>,
    /// True after the first live report.
    pub(crate) has_data: bool,
}

impl ViewModel {
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), ..Self::default() }
    }

    /// Takes over a report, or records why it is missing.
    pub(crate) fn apply(&mut self, update: Update) {
        match update {
            Update::Live(Ok(live)) => self.apply_live(live),
            Update::Live(Err(reason)) => self.unreachable = Some(reason),
            Update::Clients(Ok(clients)) => self.clients = clients,
            // The live request fails for the same reason and reports it.
            Update::Clients(Err(_)) => {}
            Update::Fleet(Ok(fleet)) => {
                self.fleet = fleet;
                self.fleet_error = None;
            }
            Update::Fleet(Err(reason)) => self.fleet_error = Some(reason),
        }
    }

    fn apply_live(&mut self, live: SafeLiveReport) {
        // After a restart the history of the old process no longer applies.
        if live.started != self.live.started {
            self.seconds.clear();
        }
        let last = self.seconds.back().map_or(0, |second| second.at);
        self.seconds.extend(live.seconds.iter().filter(|second| second.at > last));
        let excess = self.seconds.len().saturating_sub(MAX_SECONDS);
        self.seconds.drain(..excess);
        self.live = live;
        self.unreachable = None;
        self.has_data = true;
    }

    /// Returns the last complete second.
    pub(crate) fn last(&self) -> LiveSecond {
        self.seconds.back().copied().unwrap_or_default()
    }

    /// Returns the rules in this order, the highest rate first.
    pub(crate) fn rules(&self, by: RuleOrder) -> Vec<&RuleActivity<TerminalSafe>> {
        let mut rules: Vec<&RuleActivity<TerminalSafe>> = self.live.rules.iter().collect();
        let rate_and_total = |rule: &RuleActivity<TerminalSafe>| {
            let (now, total) = (&rule.per_second, &rule.total);
            match by {
                RuleOrder::AsWritten => (0.0, 0),
                RuleOrder::Allowed => (now.allowed, total.allowed),
                RuleOrder::Denied => (now.denied, total.denied),
                RuleOrder::FailedOpen => (now.failed_open, total.failed_open),
            }
        };
        // A stable sort: equal rules keep the order of the rules document.
        rules.sort_by(|one, other| {
            let ((now, total), (now2, total2)) = (rate_and_total(one), rate_and_total(other));
            now2.total_cmp(&now).then(total2.cmp(&total))
        });
        rules
    }
}

/// Sort order of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RuleOrder {
    #[default]
    AsWritten,
    Allowed,
    Denied,
    FailedOpen,
}

impl RuleOrder {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::AsWritten => Self::Allowed,
            Self::Allowed => Self::Denied,
            Self::Denied => Self::FailedOpen,
            Self::FailedOpen => Self::AsWritten,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AsWritten => "as written",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::FailedOpen => "failed open",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live_update(started: u64, seconds: &[u64]) -> Update {
        let second = |at: &u64| LiveSecond { at: *at, ..LiveSecond::default() };
        let seconds = seconds.iter().map(second).collect();
        Update::Live(Ok(SafeLiveReport { started, seconds, ..SafeLiveReport::default() }))
    }

    fn seconds_of(view: &ViewModel) -> Vec<u64> {
        view.seconds.iter().map(|second| second.at).collect()
    }

    #[test]
    fn seconds_are_kept_once_and_dropped_after_a_restart() {
        let mut view = ViewModel::new("127.0.0.1:9090");
        view.apply(live_update(1, &[10, 11]));
        view.apply(live_update(1, &[11, 12]));
        assert_eq!(seconds_of(&view), [10, 11, 12]);
        view.apply(live_update(1, &(13..400).collect::<Vec<_>>()));
        assert_eq!((view.seconds.len(), view.last().at), (MAX_SECONDS, 399));
        view.apply(live_update(2, &[5]));
        assert_eq!(seconds_of(&view), [5]);
    }

    #[test]
    fn unreachable_server_keeps_its_last_figures() {
        let mut view = ViewModel::new("127.0.0.1:9090");
        view.apply(live_update(1, &[10]));
        view.apply(Update::Live(Err("refused".into())));
        assert_eq!(
            (view.unreachable.as_ref().map(TerminalSafe::as_str), seconds_of(&view)),
            (Some("refused"), vec![10])
        );
        view.apply(live_update(1, &[]));
        assert!(view.unreachable.is_none());
    }
}
