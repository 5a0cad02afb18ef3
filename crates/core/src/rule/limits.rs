//! Which limit a request gets under a rule: the rule's own, its tier's, or an override.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::condition::{Condition, present};
use super::matcher::Matcher;
use super::rollout::{Draw, Rollout};
use crate::algorithm::Limit;
use crate::request::Request;
use crate::time::Timestamp;

/// The limit that holds for a request, and why that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied<'a> {
    /// The limit.
    pub limit: &'a Arc<Limit>,
    /// Where it comes from.
    pub because: Because<'a>,
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because<'a> {
    /// It is the rule's own.
    Rule,
    /// The request is of this tier.
    Tier(&'a str),
    /// The override with this index applies.
    Override(usize),
}

/// Limits by the value of an attribute, `claim.plan` for example.
#[derive(Clone, Debug)]
pub struct Tiers {
    by: Box<str>,
    // A tree and not a hash table: clients choose the values that are looked up.
    limits: BTreeMap<Box<str>, Arc<Limit>>,
}

impl Tiers {
    pub(super) fn new(by: &str, limits: BTreeMap<Box<str>, Arc<Limit>>) -> Self {
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

    pub(super) fn applied(&self, request: &Request<'_>) -> Option<Applied<'_>> {
        let (name, limit) = self.limits.get_key_value(present(request, &self.by)?)?;
        Some(Applied { limit, because: Because::Tier(name) })
    }
}

/// Another limit for the requests that it matches, for good or until some day.
#[derive(Clone, Debug)]
pub struct Override {
    pub(super) conditions: Box<[Condition]>,
    pub(super) limit: Arc<Limit>,
    pub(super) until: Option<Timestamp>,
    pub(super) rollout: Option<Rollout>,
}

impl Override {
    /// What a request must be like.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The limit it gets.
    #[must_use]
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The first instant at which the override is over, if it ever is.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// The share of the rule's clients that the override is for; `None` is all of them.
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

/// The overrides of one rule, found without trying each.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    items: Box<[Override]>,
    matcher: Matcher,
}

impl Overrides {
    pub(super) fn new(items: Vec<Override>) -> Self {
        Self { matcher: Matcher::new(items.iter().map(Override::conditions)), items: items.into() }
    }

    pub(super) fn as_slice(&self) -> &[Override] {
        &self.items
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Override> {
        self.items.get_mut(index)
    }

    /// The first override in the order of the file that matches, is not over and reaches the client;
    /// `draw` is asked only where a rollout wants to know.
    pub(super) fn applied(
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
