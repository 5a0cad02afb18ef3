//! The headers that Envoy adds to its response to the client.

use tidegate_core::{Decision, DecisionStatus, Header, HeaderStyle, Timestamp};

/// The setting for response headers.
///
/// X-RateLimit-* are never sent: Envoy computes them from the statuses, and the client would get both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RlsHeaders {
    /// Retry-After and RateLimit for denied requests.
    #[default]
    Denied,
    /// The same, and RateLimit for allowed requests.
    All,
    /// No headers except `x-tidegate-denied`.
    Off,
}

/// Marks a request that was denied because the store failed or the call is invalid. It is sent with every setting: this
/// protocol has no other field that separates it from a request over its limit.
const DENIED_HEADER: &str = "x-tidegate-denied";

/// Returns the header of a request that was denied because the call is invalid.
pub(crate) fn denied_invalid_call() -> Header {
    (DENIED_HEADER, "invalid-call".to_owned())
}

impl RlsHeaders {
    pub(crate) fn build<'d>(
        self,
        style: HeaderStyle,
        over_limit: bool,
        decisions: impl Iterator<Item = &'d Decision>,
    ) -> Vec<Header> {
        if !over_limit && self != Self::All {
            return Vec::new();
        }
        let Some(decision) = strictest(decisions) else { return Vec::new() };
        let mut headers = match self {
            Self::Off => Vec::new(),
            // The time matters only for X-RateLimit-Reset, which is removed below.
            Self::Denied | Self::All => style.headers(decision, Timestamp::EPOCH),
        };
        headers.retain(|(name, _)| !name.starts_with("x-ratelimit-"));
        if decision.status() == DecisionStatus::Unavailable {
            headers.push((DENIED_HEADER, "store-unavailable".to_owned()));
        }
        headers
    }
}

/// Returns the strictest decision: the denial with the longest wait, or else the decision with the least remaining.
fn strictest<'d>(decisions: impl Iterator<Item = &'d Decision>) -> Option<&'d Decision> {
    decisions.max_by_key(|decision| {
        let severity = match decision.status() {
            DecisionStatus::Allow => 0,
            DecisionStatus::Unavailable => 1,
            DecisionStatus::Deny => 2,
        };
        let wait = decision.retry_after();
        let never = severity == 2 && wait.is_none();
        let remaining =
            decision.strictest_rule().map(|rule| std::cmp::Reverse(rule.outcome.remaining));
        (severity, never, wait, remaining)
    })
}
