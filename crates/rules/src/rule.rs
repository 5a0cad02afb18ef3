//! A rule: a limit, the requests it applies to, the clients it counts, and what it does.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Algorithm, Limit, Part, Quota, QuotaError, Request, Timestamp};

use crate::accuracy::Accuracy;
use crate::canonical::CanonicalRule;
use crate::condition::{Condition, RuleMismatch, present};
use crate::error::{RuleError, quote};
use crate::limits::{AppliedLimit, LimitOrigin, Override, OverrideList, TierLimits};
use crate::penalty::Penalty;
use crate::per::AttributeChain;
use crate::rollout::{Rollout, RolloutPosition};

/// The effect of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denies requests over the limit.
    #[default]
    Enforce,
    /// Counts and reports, and never denies.
    Shadow,
    /// Applies to no request.
    Off,
}

impl Mode {
    /// Returns the word in a rules document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}

/// The decision of a rule while its store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Allows the request.
    #[default]
    Allow,
    /// Denies the request.
    Deny,
    /// Decides by this node's share of the limit.
    Local,
}

impl OnStoreFailure {
    /// Returns the word in a rules document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

/// The answer of a rule to refunds that callers of a server request without a receipt.
///
/// Refunds by receipt, and those of operators, do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CallerRefunds {
    /// Rejects the call.
    #[default]
    Deny,
    /// Refunds the latest usage.
    Allow,
}

impl CallerRefunds {
    /// Returns the word in a rules document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}

/// A limit, the requests it applies to, and the clients that it counts separately.
///
/// Usually read from YAML by [`RuleSet::parse`](crate::RuleSet::parse); in code:
///
/// ```
/// use tidegate_core::{Algorithm, Quota};
/// use tidegate_rules::{Condition, Rule, RuleSet, ValueTest};
///
/// let rule = Rule::new("api", Algorithm::TokenBucket, Quota::per_second(100))?
///     .with_condition(Condition::new("path", ValueTest::like("/v1/**")))
///     .with_per("user | ip")?;
/// let rules = RuleSet::new(vec![rule]).unwrap();
/// assert_eq!(rules.rules()[0].per()[0].as_str(), "user | ip");
/// # Ok::<(), tidegate_rules::RuleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: Arc<str>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) per: Vec<AttributeChain>,
    pub(crate) algorithm: Algorithm,
    pub(crate) limit: Arc<Limit>,
    pub(crate) tiers: Option<TierLimits>,
    pub(crate) overrides: OverrideList,
    pub(crate) accuracy: Accuracy,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) mode: Mode,
    pub(crate) rollout: Option<Rollout>,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) caller_refunds: CallerRefunds,
}

impl Rule {
    /// Maximum length of a name.
    pub const MAX_NAME_CHARS: usize = 64;
    /// Maximum number of conditions in one `match`.
    pub const MAX_CONDITIONS: usize = 64;
    /// Maximum number of alternatives in one condition.
    pub const MAX_ALTERNATIVES: usize = 100_000;
    /// Maximum length of a condition's value or pattern, and of a tier's name.
    pub const MAX_VALUE_BYTES: usize = 1024;
    /// Maximum number of entries in `per`.
    pub const MAX_PER_ENTRIES: usize = 16;
    /// Maximum number of tiers.
    pub const MAX_TIERS: usize = 1_000;

    /// Creates a rule for every request, with one bucket for all of them.
    ///
    /// # Errors
    /// The name or the limit is invalid.
    pub fn new(name: &str, algorithm: Algorithm, quota: Quota) -> Result<Self, RuleError> {
        let wrong = |message: String| RuleError::in_code(name, message);
        check_name(name).map_err(wrong)?;
        let limit = Limit::new(algorithm, quota).map_err(|error| wrong(error.to_string()))?;
        Ok(Self::with_limit(name, algorithm, Arc::new(limit)))
    }

    pub(crate) fn with_limit(name: &str, algorithm: Algorithm, limit: Arc<Limit>) -> Self {
        Self {
            name: name.into(),
            conditions: Vec::new(),
            per: Vec::new(),
            algorithm,
            limit,
            tiers: None,
            overrides: OverrideList::default(),
            accuracy: Accuracy::default(),
            on_store_failure: OnStoreFailure::default(),
            mode: Mode::default(),
            rollout: None,
            penalty: None,
            caller_refunds: CallerRefunds::default(),
        }
    }

    /// Returns the same rule for only those requests that satisfy one more condition.
    #[must_use]
    pub fn with_condition(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Returns the same rule, counting clients separately by one more attribute or chain: `user | ip`.
    ///
    /// # Errors
    /// The text is not a chain of attribute names, or the rule has too many entries.
    pub fn with_per(mut self, text: &str) -> Result<Self, RuleError> {
        let wrong = |message: String| RuleError::in_code(&self.name, message);
        let chain = AttributeChain::parse(text).map_err(wrong)?;
        if self.per.len() == Self::MAX_PER_ENTRIES {
            return Err(wrong(format!("per must have at most {} entries", Self::MAX_PER_ENTRIES)));
        }
        self.per.push(chain);
        Ok(self)
    }

    /// Returns the same rule with a limit for each value of the attribute `by`.
    ///
    /// # Errors
    /// One of the limits is invalid with the rule's algorithm.
    pub fn with_tiers<'t>(
        mut self,
        by: &str,
        tiers: impl IntoIterator<Item = (&'t str, Quota)>,
    ) -> Result<Self, RuleError> {
        let limits: Result<BTreeMap<Box<str>, Arc<Limit>>, QuotaError> = tiers
            .into_iter()
            .map(|(name, quota)| Ok((name.into(), Arc::new(Limit::new(self.algorithm, quota)?))))
            .collect();
        let limits = limits.map_err(|error| RuleError::in_code(&self.name, error.to_string()))?;
        self.tiers = Some(TierLimits::new(by, limits));
        Ok(self)
    }

    /// Returns the same rule with other limits for some requests; the first override that matches applies. An override
    /// without a quota exempts the requests: the rule does not count and limit them.
    ///
    /// # Errors
    /// One of the limits is invalid with the rule's algorithm.
    pub fn with_overrides<Q: Into<Option<Quota>>>(
        mut self,
        overrides: impl IntoIterator<Item = (Vec<Condition>, Q, Option<Timestamp>)>,
    ) -> Result<Self, RuleError> {
        let items: Result<Vec<Override>, QuotaError> = overrides
            .into_iter()
            .map(|(conditions, quota, until)| {
                let limit = quota.into().map(|quota| Limit::new(self.algorithm, quota));
                Ok(Override {
                    conditions: conditions.into(),
                    limit: limit.transpose()?.map(Arc::new),
                    until,
                    rollout: None,
                })
            })
            .collect();
        let items = items.map_err(|error| RuleError::in_code(&self.name, error.to_string()))?;
        self.overrides = OverrideList::new(items);
        Ok(self)
    }

    /// Returns the same rule for only a share of its clients.
    ///
    /// # Errors
    /// The rule has no `per` yet: it does not distinguish clients.
    pub fn with_rollout(mut self, share: Rollout) -> Result<Self, RuleError> {
        self.check_clients()?;
        self.rollout = Some(share);
        Ok(self)
    }

    /// Returns the same rule with one override limited to a share of the rule's clients.
    ///
    /// # Errors
    /// The rule has no `per` yet, or no override with this index.
    pub fn with_override_rollout(
        mut self,
        index: usize,
        share: Rollout,
    ) -> Result<Self, RuleError> {
        self.check_clients()?;
        let count = self.overrides.as_slice().len();
        let Some(item) = self.overrides.get_mut(index) else {
            let message = format!("rollout must name one of {count} overrides, found {index}");
            return Err(RuleError::in_code(&self.name, message));
        };
        item.rollout = Some(share);
        Ok(self)
    }

    fn check_clients(&self) -> Result<(), RuleError> {
        match self.per.is_empty() {
            true => Err(RuleError::in_code(&self.name, ROLLOUT_NEEDS_PER)),
            false => Ok(()),
        }
    }

    /// Returns the same rule in another mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the same rule with another accuracy where nodes share a store.
    ///
    /// # Errors
    /// The accuracy does not suit one of the limits.
    pub fn with_accuracy(mut self, accuracy: Accuracy) -> Result<Self, RuleError> {
        let wrong = self.limits().find_map(|limit| accuracy.check_limit(limit).err());
        if let Some(wrong) = wrong {
            return Err(RuleError::in_code(&self.name, wrong));
        }
        self.accuracy = accuracy;
        Ok(self)
    }

    /// Returns all limits of the rule.
    fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        let tiers = self.tiers.iter().flat_map(TierLimits::iter).map(|(_, limit)| limit);
        let overrides = self.overrides.as_slice().iter().filter_map(Override::limit);
        std::iter::once(&self.limit).chain(tiers).chain(overrides)
    }

    /// Returns the same rule with another decision while the store is unavailable.
    #[must_use]
    pub fn with_on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.on_store_failure = answer;
        self
    }

    /// Returns the same rule with a penalty for clients that continue after they were denied.
    ///
    /// # Errors
    /// The rule has no `per` yet: the penalty would block all clients.
    pub fn with_penalty(mut self, penalty: Penalty) -> Result<Self, RuleError> {
        if self.per.is_empty() {
            return Err(RuleError::in_code(&self.name, PENALTY_NEEDS_PER));
        }
        self.penalty = Some(penalty);
        Ok(self)
    }

    /// Returns the name, unique in the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name, shared without a copy.
    #[must_use]
    #[inline]
    pub fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Returns the conditions that a request must satisfy; none means every request.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// Returns the attributes that name a client; none means one bucket for all.
    #[must_use]
    pub fn per(&self) -> &[AttributeChain] {
        &self.per
    }

    /// Returns the algorithm of all limits of the rule.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the limit for a request without a tier and an override.
    #[must_use]
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// Returns the limits by tier, if there are any.
    #[must_use]
    pub fn tiers(&self) -> Option<&TierLimits> {
        self.tiers.as_ref()
    }

    /// Returns the overrides in the order of the document.
    #[must_use]
    pub fn overrides(&self) -> &[Override] {
        self.overrides.as_slice()
    }

    /// Returns the accuracy of the limit where nodes share a store.
    #[must_use]
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// Returns the decision while the store is unavailable.
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// Returns the effect of the rule.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the share of its clients that the rule applies to; `None` is all of them.
    #[must_use]
    pub fn rollout(&self) -> Option<Rollout> {
        self.rollout
    }

    /// Returns the answer to refunds that callers request without a receipt.
    #[must_use]
    pub fn caller_refunds(&self) -> CallerRefunds {
        self.caller_refunds
    }

    /// Returns the penalty for a client that continues after it was denied.
    #[must_use]
    pub fn penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref()
    }

    /// Checks that the rule applies to a request.
    ///
    /// # Errors
    /// The first reason why it does not.
    #[inline]
    pub fn matches<'a>(&'a self, request: &'a Request<'_>) -> Result<(), RuleMismatch<'a>> {
        if self.mode == Mode::Off {
            return Err(RuleMismatch::Off);
        }
        for condition in &self.conditions {
            let found = present(request, condition.attribute());
            if !condition.test().passes(found) {
                return Err(RuleMismatch::Condition {
                    attribute: condition.attribute(),
                    found,
                    wanted: condition.test(),
                });
            }
        }
        match self.rollout {
            Some(share) if !share.includes(self.rollout_position(request)) => {
                Err(RuleMismatch::Rollout(share))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the rule applies to the client of a request that names the rule and need not match: the rule
    /// is not off, and its rollout includes the client.
    #[inline]
    #[must_use]
    pub fn applies_to_client(&self, request: &Request<'_>) -> bool {
        self.mode != Mode::Off
            && self.rollout.is_none_or(|share| share.includes(self.rollout_position(request)))
    }

    /// Returns the position of the client in the rule's rollout.
    #[cold]
    fn rollout_position(&self, request: &Request<'_>) -> RolloutPosition {
        RolloutPosition::of(&self.name, self.parts(request))
    }

    /// Returns the limit for a request: that of the first override that matches, has not ended at `now` and
    /// includes the client, else that of the request's tier, else the rule's own. An override may exempt the request.
    #[inline]
    #[must_use]
    pub fn limit_for(&self, request: &Request<'_>, now: Timestamp) -> AppliedLimit<'_> {
        let tiers = self.tiers.as_ref();
        self.overridden(request, now)
            .or_else(|| tiers.and_then(|tiers| tiers.applied(request)))
            .unwrap_or(AppliedLimit { limit: Some(&self.limit), origin: LimitOrigin::Rule })
    }

    #[inline]
    fn overridden(&self, request: &Request<'_>, now: Timestamp) -> Option<AppliedLimit<'_>> {
        if self.overrides().is_empty() {
            return None;
        }
        self.overrides.applied(request, now, || self.rollout_position(request))
    }

    /// Returns the parts of the client's key, one for each entry of `per`.
    ///
    /// An empty value counts as absent, so that it does not create another client.
    #[inline]
    pub fn parts<'q>(
        &'q self,
        request: &'q Request<'_>,
    ) -> impl ExactSizeIterator<Item = Part<'q>> + Clone {
        self.per.iter().map(|chain| chain.part(request))
    }

    /// Returns the canonical form of the rule.
    #[must_use]
    pub fn canonical(&self) -> CanonicalRule<'_> {
        let Self {
            name,
            conditions,
            per,
            algorithm: _, // Each limit contains it.
            limit,
            tiers,
            overrides,
            accuracy,
            on_store_failure,
            mode,
            rollout,
            penalty,
            caller_refunds,
        } = self;
        CanonicalRule {
            name,
            conditions,
            per,
            limit,
            tiers: tiers.as_ref(),
            overrides: overrides.as_slice(),
            mode: *mode,
            accuracy: *accuracy,
            on_store_failure: *on_store_failure,
            rollout: *rollout,
            penalty: penalty.as_ref(),
            caller_refunds: *caller_refunds,
        }
    }
}

/// The error of a penalty in a rule that does not count clients separately.
pub(crate) const PENALTY_NEEDS_PER: &str =
    "penalty needs per, found none (one bucket for all would block every client)";

/// The error of a rollout in a rule that does not count clients separately.
pub(crate) const ROLLOUT_NEEDS_PER: &str = "rollout needs per, found none";

/// Checks that a name needs no quotes in a metric, a header and a URL.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if (1..=Rule::MAX_NAME_CHARS).contains(&name.len()) && name.chars().all(known) {
        return Ok(());
    }
    Err(format!(
        "name must be 1 to {} letters, digits, '_', '.' or '-', found {}",
        Rule::MAX_NAME_CHARS,
        quote(name)
    ))
}
