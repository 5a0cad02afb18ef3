//! What a call of Envoy's rate limit service means.
//!
//! Each descriptor becomes a request: its domain and entries are attributes, and every rule that
//! matches them applies. To these comes the limit that the descriptor brings along, or else the one that
//! the files of envoyproxy/ratelimit have for it. All descriptors are decided together.

mod asked;
mod call;
mod headers;
mod notes;
mod overrides;
mod status;

use smallvec::SmallVec;
use tidegate_core::{CallError, Decision, Header, RuleOutcomes};
use tidegate_limiter::CheckRequest;

use self::asked::Asked;
pub use self::call::{Descriptor, Hits, RlsCall};
pub use self::headers::RlsHeaders;
use self::overrides::Overrides;
pub(crate) use self::overrides::override_rule;
pub use self::status::{CurrentLimit, Status};
use crate::active_rules::ActiveRules;
use crate::call::Protocol;
pub use crate::envoy::Unit;
use crate::service::Service;
use crate::service::call_stats::CallTiming;

/// What these calls need beyond the rules.
#[derive(Debug, Default)]
pub struct Rls {
    headers: RlsHeaders,
    overrides: Overrides,
}

impl Rls {
    /// Returns the semantics of Envoy calls, with these response headers.
    pub fn new(headers: RlsHeaders) -> Self {
        Self { headers, overrides: Overrides::default() }
    }
}

/// How a call was decided.
#[derive(Debug)]
pub struct RlsReply {
    /// Whether the request may not pass.
    pub over: bool,
    /// One for each descriptor, in their order.
    pub statuses: Vec<Status>,
    /// For Envoy to add to its response.
    pub headers: Vec<Header>,
    /// For Envoy's log and its other filters.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// The decisions about one descriptor, in the order of its claims.
type Decisions = SmallVec<[Decision; 2]>;

impl Service {
    /// Answers a call of Envoy's rate limit service: charges all descriptors, or none of them.
    ///
    /// A call that is denied gives nothing back either.
    ///
    /// # Errors
    /// There is no domain or no descriptor, or one can't be understood; nothing was charged.
    pub async fn should_rate_limit(
        &self,
        protocol: Protocol,
        call: &RlsCall<'_>,
    ) -> Result<RlsReply, CallError> {
        let (began, rules) = (self.clock.now(), self.active_rules());
        let asked = asked::descriptors(&self.rls, &rules, call);
        let asked = asked.map_err(|error| self.count_rejected(protocol, error))?;
        let spending = asked.iter().filter(|asked| !asked.gives_back);
        let claims: SmallVec<[CheckRequest<'_, '_>; 4]> =
            spending.flat_map(Asked::claims).collect();
        let decided = match claims.as_slice() {
            [] => Vec::new(),
            claims => rules.limiter.check_all(claims).await,
        };
        let over = decided.iter().any(|decision| !decision.is_allowed());
        let mut decided = decided.into_iter();
        let mut settled: SmallVec<[Decisions; 2]> = SmallVec::with_capacity(asked.len());
        for asked in &asked {
            settled.push(if asked.gives_back {
                refund(&rules, asked, over).await
            } else {
                decided.by_ref().take(asked.claims().count()).collect()
            });
        }
        let each = asked.iter().zip(&settled);
        let statuses: Vec<Status> = each.map(|(asked, by)| Status::of(asked, by)).collect();
        let headers = self.rls.headers.of(self.style, over, settled.iter().flatten());
        let metadata = notes::of(&asked, &statuses, settled.iter().flatten());
        let spent = asked.iter().zip(&settled).filter(|(asked, _)| !asked.gives_back);
        let decided =
            spent.flat_map(|(asked, by)| asked.claims().map(|claim| claim.request).zip(by));
        let timing = CallTiming { protocol, began, at: self.clock.now() };
        self.stats.record(&rules, timing, decided);
        tracing::debug!(?protocol, over, descriptors = statuses.len(), "descriptors checked");
        Ok(RlsReply { over, statuses, headers, metadata })
    }
}

/// Gives back what a descriptor says, unless the call was denied; how it stands then.
async fn refund(rules: &ActiveRules, asked: &Asked<'_>, denied: bool) -> Decisions {
    let mut decisions = Decisions::new();
    for claim in asked.claims() {
        if denied {
            decisions.push(rules.limiter.peek_rules(claim).await);
            continue;
        }
        let given = rules.limiter.refund_latest(claim).await;
        decisions.push(given.unwrap_or_else(|error| {
            tracing::warn!(%error, "nothing given back");
            Decision::of(RuleOutcomes::new())
        }));
    }
    decisions
}
