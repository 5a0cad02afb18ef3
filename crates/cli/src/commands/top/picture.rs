//! What is known of a server.

use std::collections::VecDeque;

use tidegate_api::{LiveSecond, RuleActivity};
use tidegate_core::TerminalSafe;

use super::feed::{Clients, Fleet, Live, News};

/// How many seconds are kept.
const KEPT: usize = 300;

/// Everything that was heard last. A server that is away leaves what it said before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    /// Whom we ask.
    pub(crate) address: String,
    pub(crate) live: Live,
    /// Oldest first.
    pub(crate) seconds: VecDeque<LiveSecond>,
    pub(crate) clients: Clients,
    pub(crate) fleet: Fleet,
    /// Why it is not heard of.
    pub(crate) away: Option<TerminalSafe>,
    /// Why the fleet is not known.
    pub(crate) fleet_away: Option<TerminalSafe>,
    /// Whether anything was heard yet.
    pub(crate) is_known: bool,
}

impl Picture {
    pub(crate) fn of(address: &str) -> Self {
        Self { address: address.to_owned(), ..Self::default() }
    }

    pub(crate) fn hear(&mut self, news: News) {
        match news {
            News::Live(Ok(live)) => self.live(live),
            News::Live(Err(reason)) => self.away = Some(reason),
            News::Clients(Ok(clients)) => self.clients = clients,
            // The live part says so.
            News::Clients(Err(_)) => {}
            News::Fleet(Ok(fleet)) => {
                self.fleet = fleet;
                self.fleet_away = None;
            }
            News::Fleet(Err(reason)) => self.fleet_away = Some(reason),
        }
    }

    fn live(&mut self, live: Live) {
        if live.started != self.live.started {
            self.seconds.clear();
        }
        let last = self.seconds.back().map_or(0, |second| second.at);
        self.seconds.extend(live.seconds.iter().filter(|second| second.at > last));
        let most = self.seconds.len().saturating_sub(KEPT);
        self.seconds.drain(..most);
        self.live = live;
        self.away = None;
        self.is_known = true;
    }

    /// The last whole second.
    pub(crate) fn last(&self) -> LiveSecond {
        self.seconds.back().copied().unwrap_or_default()
    }

    /// Rules, those first that a person wants to see first.
    pub(crate) fn rules(&self, by: RuleOrder) -> Vec<&RuleActivity<TerminalSafe>> {
        let mut rules: Vec<&RuleActivity<TerminalSafe>> = self.live.rules.iter().collect();
        let weight = |rule: &RuleActivity<TerminalSafe>| {
            let (now, total) = (&rule.per_second, &rule.total);
            match by {
                RuleOrder::AsWritten => (0.0, 0),
                RuleOrder::Allowed => (now.allowed, total.allowed),
                RuleOrder::Denied => (now.denied, total.denied),
                RuleOrder::FailedOpen => (now.failed_open, total.failed_open),
            }
        };
        // Equal ones stay as the server told them.
        rules.sort_by(|one, other| {
            let ((now, total), (now2, total2)) = (weight(one), weight(other));
            now2.total_cmp(&now).then(total2.cmp(&total))
        });
        rules
    }
}

/// What rules are sorted by.
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

    fn heard(started: u64, seconds: &[u64]) -> News {
        let second = |at: &u64| LiveSecond { at: *at, ..LiveSecond::default() };
        let seconds = seconds.iter().map(second).collect();
        News::Live(Ok(Live { started, seconds, ..Live::default() }))
    }

    fn kept(picture: &Picture) -> Vec<u64> {
        picture.seconds.iter().map(|second| second.at).collect()
    }

    #[test]
    fn seconds_are_kept_once_and_forgotten_with_the_server_that_had_them() {
        let mut picture = Picture::of("here");
        picture.hear(heard(1, &[10, 11]));
        picture.hear(heard(1, &[11, 12]));
        assert_eq!(kept(&picture), [10, 11, 12]);
        picture.hear(heard(1, &(13..400).collect::<Vec<_>>()));
        assert_eq!((picture.seconds.len(), picture.last().at), (KEPT, 399));
        picture.hear(heard(2, &[5]));
        assert_eq!(kept(&picture), [5]);
    }

    #[test]
    fn a_server_that_is_away_leaves_what_it_said() {
        let mut picture = Picture::of("here");
        picture.hear(heard(1, &[10]));
        picture.hear(News::Live(Err("gone".into())));
        assert_eq!(
            (picture.away.as_ref().map(TerminalSafe::as_str), kept(&picture)),
            (Some("gone"), vec![10])
        );
        picture.hear(heard(1, &[]));
        assert!(picture.away.is_none());
    }
}
