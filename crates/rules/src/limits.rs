//! The limit of a request under a rule: the rule's own, that of a tier or that of an override.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Limit, Request, Timestamp};

use crate::condition::{Condition, present};
use crate::matcher::Matcher;
use crate::rollout::{Draw, Rollout};

/// The limit of a request, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied<'a> {
    /// The limit.
    pub limit: &'a Arc<Limit>,
    /// Its origin.
    pub because: Because<'a>,
}

/// The origin of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because<'a> {
    /// The rule's own limit.
    Rule,
    /// The limit of this tier.
    Tier(&'a str),
    /// The limit of the override with this index.
    Override(usize),
}

/// Limits by the value of an attribute, `claim.plan` for example.
#[derive(Clone, Debug)]
pub struct Tiers {
    by: Box<str>,
    // A tree and not a hash table, because clients choose the values that are looked up.
    limits: BTreeMap<Box<str>, Arc<Limit>>,
}

impl Tiers {
    pub(crate) fn new(by: &str, limits: BTreeMap<Box<str>, Arc<Limit>>) -> Self {
        Self { by: by.into(), limits }
    }

    /// The attribute that names a request's tier.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Every tier and its limit, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Arc<Limit>)> {
        self.limits.iter().map(|(name, limit)| (&**name, limit))
    }

    pub(crate) fn applied(&self, request: &Request<'_>) -> Option<Applied<'_>> {
        let (name, limit) = self.limits.get_key_value(present(request, &self.by)?)?;
        Some(Applied { limit, because: Because::Tier(name) })
    }
}

/// Another limit for the requests that it matches, with or without an end.
#[derive(Clone, Debug)]
pub struct Override {
    pub(crate) conditions: Box<[Condition]>,
    pub(crate) limit: Arc<Limit>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) rollout: Option<Rollout>,
}

impl Override {
    /// The conditions that a request must satisfy.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The limit of such a request.
    #[must_use]
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The first instant at which the override no longer applies, if there is one.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// The share of the rule's clients that the override applies to; `None` is all of them.
    #[must_use]
    pub fn rollout(&self) -> Option<Rollout> {
        self.rollout
    }

    fn applies(
        &self,
        request: &Request<'_>,
        sure: bool,
        now: Timestamp,
        draw: &mut impl FnMut() -> Draw,
    ) -> bool {
        self.until.is_none_or(|end| now < end)
            && (sure || self.conditions.iter().all(|condition| condition.holds(request)))
            && self.rollout.is_none_or(|share| share.takes(draw()))
    }
}

/// The overrides of one rule, with an index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    items: Box<[Override]>,
    matcher: Matcher,
}

impl Overrides {
    pub(crate) fn new(items: Vec<Override>) -> Self {
        Self { matcher: Matcher::new(items.iter().map(Override::conditions)), items: items.into() }
    }

    pub(crate) fn as_slice(&self) -> &[Override] {
        &self.items
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Override> {
        self.items.get_mut(index)
    }

    /// The first override in the order of the document that matches, has not ended and includes the client.
    /// `draw` is called only if an override has a rollout.
    pub(crate) fn applied(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        draw: impl Fn() -> Draw,
    ) -> Option<Applied<'_>> {
        let mut drawn = None;
        let mut draw = || *drawn.get_or_insert_with(&draw);
        let mut first: Option<(usize, &Override)> = None;
        self.matcher.candidates(request, |index, sure| {
            if first.is_some_and(|(best, _)| best <= index) {
                return;
            }
            if let Some(item) = self.items.get(index)
                && item.applies(request, sure, now, &mut draw)
            {
                first = Some((index, item));
            }
        });
        first.map(|(index, item)| Applied { limit: &item.limit, because: Because::Override(index) })
    }
}
