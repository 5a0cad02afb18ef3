//! A rule: a limit, the requests it applies to, the clients it counts, and what it does.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Algorithm, Limit, Part, Quota, QuotaError, Request, Timestamp};

use crate::accuracy::Accuracy;
use crate::canonical::CanonicalRule;
use crate::condition::{Condition, Mismatch, present};
use crate::error::{RuleError, quote};
use crate::limits::{Applied, Because, Override, Overrides, Tiers};
use crate::penalty::Penalty;
use crate::per::Chain;
use crate::rollout::{Draw, Rollout};

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
    /// The word for it in a rules document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}

/// The answer of a rule while its store is unavailable.
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
    /// The word for it in a rules document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

/// A limit, the requests it applies to, and the clients that it counts separately.
///
/// Usually read from YAML by [`RuleSet::parse`](crate::RuleSet::parse); in code:
///
/// ```
/// use tidegate_core::{Algorithm, Quota};
/// use tidegate_rules::{Condition, Rule, RuleSet, Test};
///
/// let rule = Rule::new("api", Algorithm::TokenBucket, Quota::per_second(100))?
///     .with_condition(Condition::new("path", Test::like("/v1/**")))
///     .with_per("user | ip")?;
/// let rules = RuleSet::new(vec![rule]).unwrap();
/// assert_eq!(rules.rules()[0].per()[0].as_str(), "user | ip");
/// # Ok::<(), tidegate_rules::RuleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: Arc<str>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) per: Vec<Chain>,
    pub(crate) algorithm: Algorithm,
    pub(crate) limit: Arc<Limit>,
    pub(crate) tiers: Option<Tiers>,
    pub(crate) overrides: Overrides,
    pub(crate) accuracy: Accuracy,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) mode: Mode,
    pub(crate) rollout: Option<Rollout>,
    pub(crate) penalty: Option<Penalty>,
}

impl Rule {
    /// Longest name in characters.
    pub const MAX_NAME: usize = 64;
    /// Most conditions of one `match`.
    pub const MAX_CONDITIONS: usize = 64;
    /// Most alternatives of one condition.
    pub const MAX_ALTERNATIVES: usize = 100_000;
    /// Longest value or pattern of a condition, and longest name of a tier, in bytes.
    pub const MAX_VALUE: usize = 1024;
    /// Most entries of `per`.
    pub const MAX_PER: usize = 16;
    /// Most tiers.
    pub const MAX_TIERS: usize = 1_000;

    /// A rule for every request, with one bucket for all of them.
    ///
    /// # Errors
    /// The name or the limit can't be used.
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
            overrides: Overrides::default(),
            accuracy: Accuracy::default(),
            on_store_failure: OnStoreFailure::default(),
            mode: Mode::default(),
            rollout: None,
            penalty: None,
        }
    }

    /// The same rule for only those requests that satisfy one more condition.
    #[must_use]
    pub fn with_condition(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// The same rule, counting clients separately by one more attribute or chain: `user | ip`.
    ///
    /// # Errors
    /// The text is no chain of attribute names, or there are too many.
    pub fn with_per(mut self, text: &str) -> Result<Self, RuleError> {
        let wrong = |message: String| RuleError::in_code(&self.name, message);
        let chain = Chain::parse(text).map_err(wrong)?;
        if self.per.len() == Self::MAX_PER {
            return Err(wrong(format!("per must have at most {} entries", Self::MAX_PER)));
        }
        self.per.push(chain);
        Ok(self)
    }

    /// The same rule with a limit for each value of the attribute `by`.
    ///
    /// # Errors
    /// One of the limits can't be used with the rule's algorithm.
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
        self.tiers = Some(Tiers::new(by, limits));
        Ok(self)
    }

    /// The same rule with other limits for some requests; the first override that matches applies.
    ///
    /// # Errors
    /// One of the limits can't be used with the rule's algorithm.
    pub fn with_overrides(
        mut self,
        overrides: impl IntoIterator<Item = (Vec<Condition>, Quota, Option<Timestamp>)>,
    ) -> Result<Self, RuleError> {
        let items: Result<Vec<Override>, QuotaError> = overrides
            .into_iter()
            .map(|(conditions, quota, until)| {
                Ok(Override {
                    conditions: conditions.into(),
                    limit: Arc::new(Limit::new(self.algorithm, quota)?),
                    until,
                    rollout: None,
                })
            })
            .collect();
        let items = items.map_err(|error| RuleError::in_code(&self.name, error.to_string()))?;
        self.overrides = Overrides::new(items);
        Ok(self)
    }

    /// The same rule for only a share of its clients.
    ///
    /// # Errors
    /// The rule has no `per` yet, so that there are no clients to choose from.
    pub fn with_rollout(mut self, share: Rollout) -> Result<Self, RuleError> {
        self.check_clients()?;
        self.rollout = Some(share);
        Ok(self)
    }

    /// The same rule with one override limited to a share of the rule's clients.
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

    /// The same rule in another mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same rule with another accuracy where nodes share a store.
    ///
    /// # Errors
    /// The accuracy does not suit one of the limits.
    pub fn with_accuracy(mut self, accuracy: Accuracy) -> Result<Self, RuleError> {
        let wrong = self.limits().find_map(|limit| accuracy.suits(limit).err());
        if let Some(wrong) = wrong {
            return Err(RuleError::in_code(&self.name, wrong));
        }
        self.accuracy = accuracy;
        Ok(self)
    }

    /// All limits of the rule.
    fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        let tiers = self.tiers.iter().flat_map(Tiers::iter).map(|(_, limit)| limit);
        let overrides = self.overrides.as_slice().iter().map(Override::limit);
        std::iter::once(&self.limit).chain(tiers).chain(overrides)
    }

    /// The same rule with another answer while the store is unavailable.
    #[must_use]
    pub fn with_on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.on_store_failure = answer;
        self
    }

    /// The same rule with a penalty for clients that continue after they were denied.
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

    /// The name, unique in the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, shared without a copy.
    #[must_use]
    #[inline]
    pub fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The conditions that a request must satisfy; none means every request.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The attributes that name a client; none means one bucket for all.
    #[must_use]
    pub fn per(&self) -> &[Chain] {
        &self.per
    }

    /// The algorithm of all limits of the rule.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The limit for a request without a tier and an override.
    #[must_use]
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The limits by tier, if there are any.
    #[must_use]
    pub fn tiers(&self) -> Option<&Tiers> {
        self.tiers.as_ref()
    }

    /// The overrides in the order of the document.
    #[must_use]
    pub fn overrides(&self) -> &[Override] {
        self.overrides.as_slice()
    }

    /// The accuracy of the limit where nodes share a store.
    #[must_use]
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// The answer while the store is unavailable.
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// The effect of the rule.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The share of its clients that the rule applies to; `None` is all of them.
    #[must_use]
    pub fn rollout(&self) -> Option<Rollout> {
        self.rollout
    }

    /// The penalty for a client that continues after it was denied.
    #[must_use]
    pub fn penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref()
    }

    /// Checks that the rule applies to a request.
    ///
    /// # Errors
    /// The first reason why it does not.
    #[inline]
    pub fn matches<'a>(&'a self, request: &'a Request<'_>) -> Result<(), Mismatch<'a>> {
        if self.mode == Mode::Off {
            return Err(Mismatch::Off);
        }
        for condition in &self.conditions {
            let found = present(request, condition.attribute());
            if !condition.test().passes(found) {
                return Err(Mismatch::Condition {
                    attribute: condition.attribute(),
                    found,
                    wanted: condition.test(),
                });
            }
        }
        match self.rollout {
            Some(share) if !share.takes(self.draw(request)) => Err(Mismatch::Rollout(share)),
            _ => Ok(()),
        }
    }

    /// Whether the rule applies to the client of a request that names the rule and need not match: the rule
    /// is not off, and its rollout includes the client.
    #[inline]
    #[must_use]
    pub fn reaches(&self, request: &Request<'_>) -> bool {
        self.mode != Mode::Off && self.rollout.is_none_or(|share| share.takes(self.draw(request)))
    }

    /// The position of the client in the rule's rollout.
    #[cold]
    fn draw(&self, request: &Request<'_>) -> Draw {
        Draw::of(&self.name, self.parts(request))
    }

    /// The limit for a request: that of the first override that matches, has not ended at `now` and
    /// includes the client, else that of the request's tier, else the rule's own.
    #[inline]
    #[must_use]
    pub fn limit_for(&self, request: &Request<'_>, now: Timestamp) -> Applied<'_> {
        let tiers = self.tiers.as_ref();
        self.overridden(request, now)
            .or_else(|| tiers.and_then(|tiers| tiers.applied(request)))
            .unwrap_or(Applied { limit: &self.limit, because: Because::Rule })
    }

    #[inline]
    fn overridden(&self, request: &Request<'_>, now: Timestamp) -> Option<Applied<'_>> {
        if self.overrides().is_empty() {
            return None;
        }
        self.overrides.applied(request, now, || self.draw(request))
    }

    /// The parts of the client's key, one for each entry of `per`.
    ///
    /// An empty value counts as absent, so that sending one does not make another client.
    #[inline]
    pub fn parts<'q>(
        &'q self,
        request: &'q Request<'_>,
    ) -> impl ExactSizeIterator<Item = Part<'q>> + Clone {
        self.per.iter().map(|chain| chain.part(request))
    }

    /// The canonical form of the rule.
    #[must_use]
    pub fn canonical(&self) -> CanonicalRule<'_> {
        let Self {
            name,
            conditions,
            per,
            algorithm: _, // That of every limit.
            limit,
            tiers,
            overrides,
            accuracy,
            on_store_failure,
            mode,
            rollout,
            penalty,
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
        }
    }
}

/// The error of a penalty in a rule that does not count clients separately.
pub(crate) const PENALTY_NEEDS_PER: &str =
    "penalty needs per, found none (one bucket for all would block everybody)";

/// The error of a rollout in a rule that does not count clients separately.
pub(crate) const ROLLOUT_NEEDS_PER: &str = "rollout needs per, found none";

/// Checks that a name needs no quotes in a metric, a header and a URL.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if (1..=Rule::MAX_NAME).contains(&name.len()) && name.chars().all(known) {
        return Ok(());
    }
    Err(format!(
        "name must be 1 to {} letters, digits, '_', '.' or '-', found {}",
        Rule::MAX_NAME,
        quote(name)
    ))
}
