//! The headers that Envoy is asked to add to what it sends its client.

use tidegate_core::{Decision, DecisionStatus, Header, HeaderStyle, Timestamp};

/// When there are any.
///
/// Never X-RateLimit-*: Envoy makes those itself from the statuses, and both would be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RlsHeaders {
    /// Retry-After and RateLimit for a client that is denied.
    #[default]
    Denied,
    /// RateLimit for every client.
    All,
    /// None but `DENIED`.
    Off,
}

/// Tells a client that was denied because the store failed from one that is over its share. It is sent
/// whatever the setting says: over this protocol there is no other way to tell.
const DENIED: &str = "x-tidegate-denied";

impl RlsHeaders {
    pub(crate) fn of<'d>(
        self,
        style: HeaderStyle,
        over: bool,
        decisions: impl Iterator<Item = &'d Decision>,
    ) -> Vec<Header> {
        if !over && self != Self::All {
            return Vec::new();
        }
        let Some(decision) = strictest(decisions) else { return Vec::new() };
        let mut headers = match self {
            Self::Off => Vec::new(),
            // Only X-RateLimit-Reset would need to know the time.
            Self::Denied | Self::All => style.headers(decision, Timestamp::EPOCH),
        };
        headers.retain(|(name, _)| !name.starts_with("x-ratelimit-"));
        if decision.status() == DecisionStatus::Unavailable {
            headers.push((DENIED, "store-unavailable".to_owned()));
        }
        headers
    }
}

/// The decision that says most: a denial, the one with the longest wait; else the one that leaves
/// least.
fn strictest<'d>(decisions: impl Iterator<Item = &'d Decision>) -> Option<&'d Decision> {
    decisions.max_by_key(|decision| {
        let ruling = match decision.status() {
            DecisionStatus::Allow => 0,
            DecisionStatus::Unavailable => 1,
            DecisionStatus::Deny => 2,
        };
        let wait = decision.retry_after();
        let never = ruling == 2 && wait.is_none();
        let left =
            decision.strictest_rule().map(|policy| std::cmp::Reverse(policy.outcome.remaining));
        (ruling, never, wait, left)
    })
}
