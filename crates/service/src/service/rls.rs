//! The semantics of Envoy's rate limit service (RLS).
//!
//! Each descriptor becomes a request: its domain and entries are attributes, and every rule that matches them applies.
//! One more limit applies: the one in the descriptor, or else the one in the files of envoyproxy/ratelimit. All
//! descriptors of a call are decided together.

mod call;
mod descriptor_checks;
mod headers;
mod metadata;
mod overrides;
mod status;

use smallvec::SmallVec;
use tidegate_core::{CallError, Decision, Header, RuleOutcomes};
use tidegate_limiter::{CheckRequest, trace};

pub use self::call::{Descriptor, Hits, RlsCall};
use self::descriptor_checks::DescriptorChecks;
pub use self::headers::RlsHeaders;
use self::overrides::OverrideLimits;
pub(crate) use self::overrides::override_rule;
pub use self::status::{CurrentLimit, DescriptorStatus};
use crate::active_rules::ActiveRules;
use crate::call::CallTiming;
use crate::call::Protocol;
pub use crate::envoy::Unit;
use crate::service::{OnInvalidCall, Service};

/// Settings and cached limits of RLS calls.
#[derive(Debug, Default)]
pub struct RlsContext {
    headers: RlsHeaders,
    overrides: OverrideLimits,
}

impl RlsContext {
    /// Returns the context of calls that are answered with these response headers.
    pub fn new(headers: RlsHeaders) -> Self {
        Self { headers, overrides: OverrideLimits::default() }
    }
}

/// The reply to an RLS call.
#[derive(Debug)]
pub struct RlsReply {
    /// Set if the request is denied.
    pub over_limit: bool,
    /// The status of each descriptor, in their order.
    pub statuses: Vec<DescriptorStatus>,
    /// Headers that Envoy adds to its response.
    pub headers: Vec<Header>,
    /// Dynamic metadata for Envoy's access log and its other filters.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// The decisions about one descriptor, in the order of its checks.
type Decisions = SmallVec<[Decision; 2]>;

impl RlsReply {
    /// Returns the reply to an invalid call; `None` if it gets an error.
    ///
    /// Envoy forwards a request if the call fails, so an error admits it uncounted.
    pub fn to_invalid_call(answer: OnInvalidCall) -> Option<Self> {
        let over_limit = match answer {
            OnInvalidCall::Deny => true,
            OnInvalidCall::Allow => false,
            OnInvalidCall::Error => return None,
        };
        let headers = if over_limit { vec![headers::denied_invalid_call()] } else { Vec::new() };
        Some(Self { over_limit, statuses: Vec::new(), headers, metadata: None })
    }
}

impl Service {
    /// Answers a call of Envoy's rate limit service: charges all descriptors, or none of them.
    ///
    /// A denied call applies no refunds either.
    ///
    /// # Errors
    /// The domain or the descriptors are missing, or a descriptor is invalid; nothing was charged.
    pub async fn should_rate_limit(
        &self,
        protocol: Protocol,
        call: &RlsCall<'_>,
    ) -> Result<RlsReply, CallError> {
        let (began, rules) = (self.clock.now(), self.active_rules());
        let descriptors = descriptor_checks::plan(&self.rls, &rules, call);
        let descriptors = descriptors.map_err(|error| self.count_rejected(protocol, error))?;
        let charging = descriptors.iter().filter(|descriptor| !descriptor.is_refund);
        let checks: SmallVec<[CheckRequest<'_, '_>; 4]> =
            charging.flat_map(DescriptorChecks::checks).collect();
        let charged = match checks.as_slice() {
            [] => Vec::new(),
            checks => match self.check_single_now(&rules, checks) {
                Some(decision) => vec![decision],
                // Boxed, so that the future of a call that never waits stays small. It is moved several times.
                None => {
                    let checked =
                        async { in_call_span!(protocol, rules.limiter.check_all(checks)) };
                    Box::pin(checked).await
                }
            },
        };
        let over_limit = charged.iter().any(|decision| !decision.is_allowed());
        let mut charged = charged.into_iter();
        let mut decisions: SmallVec<[Decisions; 2]> = SmallVec::with_capacity(descriptors.len());
        for descriptor in &descriptors {
            decisions.push(if descriptor.is_refund {
                Box::pin(refund(&rules, descriptor, over_limit)).await
            } else {
                charged.by_ref().take(descriptor.checks().count()).collect()
            });
        }
        let each = || descriptors.iter().zip(&decisions);
        let statuses: Vec<DescriptorStatus> =
            each().map(|(descriptor, by)| DescriptorStatus::new(descriptor, by)).collect();
        let headers = self.rls.headers.build(self.style, over_limit, decisions.iter().flatten());
        let metadata = metadata::build(&descriptors, &statuses, decisions.iter().flatten());
        let charged = each().filter(|(descriptor, _)| !descriptor.is_refund);
        let recorded = charged
            .flat_map(|(descriptor, by)| descriptor.checks().map(|check| check.request).zip(by));
        let timing = CallTiming { protocol, began, at: self.clock.now() };
        self.stats.record(&rules, timing, recorded);
        tracing::debug!(?protocol, over_limit, descriptors = statuses.len(), "descriptors checked");
        Ok(RlsReply { over_limit, statuses, headers, metadata })
    }

    /// Decides a call with one check without waiting; `None` if it may have to wait, or if spans are enabled.
    fn check_single_now(
        &self,
        rules: &ActiveRules,
        checks: &[CheckRequest<'_, '_>],
    ) -> Option<Decision> {
        let [check] = checks else { return None };
        if trace::is_enabled() || !self.is_synchronous() {
            return None;
        }
        rules.limiter.check_now(*check)
    }
}

/// Applies the refund of a descriptor, unless the call was denied. Returns the state of its limits afterwards.
async fn refund(rules: &ActiveRules, descriptor: &DescriptorChecks<'_>, denied: bool) -> Decisions {
    let mut decisions = Decisions::new();
    for check in descriptor.checks() {
        if denied {
            decisions.push(rules.limiter.peek_rules(check).await);
            continue;
        }
        let refunded = rules.limiter.refund_latest(check).await;
        decisions.push(refunded.unwrap_or_else(|error| {
            tracing::warn!(%error, "store did not confirm the refund of a descriptor");
            Decision::of(RuleOutcomes::new())
        }));
    }
    decisions
}
