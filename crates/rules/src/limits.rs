//! The limit of a request under a rule: the rule's own, that of a tier or that of an override.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Limit, Request, Timestamp};

use crate::condition::{Condition, present};
use crate::condition_index::{ConditionIndex, DecidedCondition};
use crate::rollout::{Rollout, RolloutPosition};

/// The limit of a request, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedLimit<'a> {
    /// The limit; `None` if an override exempts the request.
    pub limit: Option<&'a Arc<Limit>>,
    /// Its origin.
    pub origin: LimitOrigin<'a>,
}

/// The origin of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOrigin<'a> {
    /// The rule's own limit.
    Rule,
    /// The limit of this tier.
    Tier(&'a str),
    /// The limit of the override with this index.
    Override(usize),
}

/// Limits by the value of an attribute, `claim.plan` for example.
#[derive(Clone, Debug)]
pub struct TierLimits {
    by: Box<str>,
    // A tree, not a hash table: clients choose the values that are looked up.
    limits: BTreeMap<Box<str>, Arc<Limit>>,
}

impl TierLimits {
    pub(crate) fn new(by: &str, limits: BTreeMap<Box<str>, Arc<Limit>>) -> Self {
        Self { by: by.into(), limits }
    }

    /// Returns the attribute that names a request's tier.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Returns every tier and its limit, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Arc<Limit>)> {
        self.limits.iter().map(|(name, limit)| (&**name, limit))
    }

    pub(crate) fn applied(&self, request: &Request<'_>) -> Option<AppliedLimit<'_>> {
        let (name, limit) = self.limits.get_key_value(present(request, &self.by)?)?;
        Some(AppliedLimit { limit: Some(limit), origin: LimitOrigin::Tier(name) })
    }
}

/// A different limit or an exemption for the requests that it matches, permanent or until an instant.
#[derive(Clone, Debug)]
pub struct Override {
    pub(crate) conditions: Box<[Condition]>,
    /// `None` exempts the requests.
    pub(crate) limit: Option<Arc<Limit>>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) rollout: Option<Rollout>,
}

impl Override {
    /// Returns the conditions that a request must satisfy.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The word for `limit` that exempts requests.
    pub const EXEMPT_WORD: &'static str = "exempt";

    /// Returns the limit of a request that satisfies the conditions; `None` if the rule does not count and limit it.
    #[must_use]
    pub fn limit(&self) -> Option<&Arc<Limit>> {
        self.limit.as_ref()
    }

    /// Returns the first instant at which the override no longer applies, if there is one.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns the share of the rule's clients that the override applies to; `None` is all of them.
    #[must_use]
    pub fn rollout(&self) -> Option<Rollout> {
        self.rollout
    }

    fn applies(
        &self,
        request: &Request<'_>,
        decided: DecidedCondition,
        now: Timestamp,
        position: &mut impl FnMut() -> RolloutPosition,
    ) -> bool {
        self.until.is_none_or(|end| now < end)
            && decided.others_are_satisfied(&self.conditions, request)
            && self.rollout.is_none_or(|share| share.includes(position()))
    }
}

/// The overrides of one rule, with an index.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverrideList {
    items: Box<[Override]>,
    index: ConditionIndex,
}

impl OverrideList {
    pub(crate) fn new(items: Vec<Override>) -> Self {
        Self {
            index: ConditionIndex::new(items.iter().map(Override::conditions)),
            items: items.into(),
        }
    }

    pub(crate) fn as_slice(&self) -> &[Override] {
        &self.items
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Override> {
        self.items.get_mut(index)
    }

    /// Returns the first override in the order of the document that matches, has not ended and includes the client.
    /// `position` is called only if an override has a rollout.
    pub(crate) fn applied(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        position: impl Fn() -> RolloutPosition,
    ) -> Option<AppliedLimit<'_>> {
        let mut cached = None;
        let mut position = || *cached.get_or_insert_with(&position);
        let mut first: Option<(usize, &Override)> = None;
        self.index.candidates(request, |index, decided| {
            if first.is_some_and(|(best, _)| best <= index) {
                return;
            }
            if let Some(item) = self.items.get(index)
                && item.applies(request, decided, now, &mut position)
            {
                first = Some((index, item));
            }
        });
        first.map(|(index, item)| AppliedLimit {
            limit: item.limit.as_ref(),
            origin: LimitOrigin::Override(index),
        })
    }
}
