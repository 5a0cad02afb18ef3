//! Rules made in code.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::limits::Overrides;
use super::{
    Accuracy, Condition, Mode, OnStoreFailure, Override, Penalty, Rollout, Rule, RuleError, Tiers,
    parse,
};
use crate::algorithm::{Algorithm, Limit};
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

impl Rule {
    /// A rule for every request, which shares one bucket among all of them.
    ///
    /// # Errors
    /// The name or the limit can't be used.
    pub fn new(name: &str, algorithm: Algorithm, quota: Quota) -> Result<Self, RuleError> {
        let wrong = |message: String| RuleError::in_code(name, message);
        parse::check_name(name).map_err(wrong)?;
        let limit = Limit::new(algorithm, quota).map_err(|error| wrong(error.to_string()))?;
        Ok(Self::with_limit(name, algorithm, Arc::new(limit)))
    }

    pub(super) fn with_limit(name: &str, algorithm: Algorithm, limit: Arc<Limit>) -> Self {
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

    /// The same rule, counting clients apart by one more attribute or chain: `user | ip`.
    ///
    /// # Errors
    /// The text is no chain of attribute names, or there are too many.
    pub fn with_per(mut self, chain: &str) -> Result<Self, RuleError> {
        let wrong = |message: String| RuleError::in_code(&self.name, message);
        let chain = parse::chain(chain).map_err(wrong)?;
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

    /// The same rule with other limits for some requests, the first that matches counting.
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
    /// The rule has no `per` yet: there are no clients to choose from.
    pub fn with_rollout(mut self, share: Rollout) -> Result<Self, RuleError> {
        self.check_clients()?;
        self.rollout = Some(share);
        Ok(self)
    }

    /// The same rule, of which one override is for only a share of the rule's clients.
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
            true => Err(RuleError::in_code(&self.name, parse::NOBODY_TO_CHOOSE)),
            false => Ok(()),
        }
    }

    /// The same rule in another mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same rule, kept in another way where nodes share a store.
    ///
    /// # Errors
    /// One of its limits can't be kept like that.
    pub fn with_accuracy(mut self, accuracy: Accuracy) -> Result<Self, RuleError> {
        let wrong = self.limits().find_map(|limit| accuracy.suits(limit).err());
        if let Some(wrong) = wrong {
            return Err(RuleError::in_code(&self.name, wrong));
        }
        self.accuracy = accuracy;
        Ok(self)
    }

    /// Every limit that a client may have under this rule.
    fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        let tiers = self.tiers.iter().flat_map(Tiers::iter).map(|(_, limit)| limit);
        let overrides = self.overrides.as_slice().iter().map(Override::limit);
        std::iter::once(&self.limit).chain(tiers).chain(overrides)
    }

    /// The same rule with another answer for when the store fails.
    #[must_use]
    pub fn with_on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.on_store_failure = answer;
        self
    }

    /// The same rule, blocking clients that go on after they were denied.
    ///
    /// # Errors
    /// The rule has no `per` yet: it would block everybody.
    pub fn with_penalty(mut self, penalty: Penalty) -> Result<Self, RuleError> {
        if self.per.is_empty() {
            return Err(RuleError::in_code(&self.name, parse::NOBODY_IN_PARTICULAR));
        }
        self.penalty = Some(penalty);
        Ok(self)
    }
}
