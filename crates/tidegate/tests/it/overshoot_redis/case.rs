//! One load case: an algorithm, and the number of clients and rules.

use std::fmt;
use std::ops::RangeInclusive;

use tidegate::{Algorithm, Request, RuleSet};

use super::bound::{self, Elapsed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyShape {
    /// One client, one rule.
    OneKey,
    /// A hundred clients, one rule.
    HundredKeys,
    /// Twelve items of four users under three rules: per user and item, per user, and for all.
    RuleStack,
}

impl KeyShape {
    pub(crate) const ALL: [Self; 3] = [Self::OneKey, Self::HundredKeys, Self::RuleStack];

    pub(crate) fn clients(self) -> usize {
        match self {
            Self::OneKey => 1,
            Self::HundredKeys => 100,
            Self::RuleStack => 12,
        }
    }

    /// Returns the limit of each rule, per hour.
    pub(crate) fn limits(self) -> &'static [u64] {
        match self {
            Self::OneKey => &[500],
            Self::HundredKeys => &[12],
            Self::RuleStack => &[40, 90, 250],
        }
    }

    /// Returns the number of checks that one task sends.
    pub(crate) fn checks(self) -> usize {
        match self {
            Self::OneKey | Self::HundredKeys => 16,
            Self::RuleStack => 8,
        }
    }
}

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket { queue: 0 },
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadCase {
    pub(crate) algorithm: Algorithm,
    pub(crate) shape: KeyShape,
    /// True if nodes cache denials.
    pub(crate) caches_denials: bool,
}

impl fmt::Display for LoadCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = if self.caches_denials { "denial-cache" } else { "no-denial-cache" };
        write!(f, "{} {:?} {cache}", self.algorithm, self.shape)
    }
}

impl LoadCase {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        ALGORITHMS.into_iter().flat_map(|algorithm| {
            KeyShape::ALL.into_iter().flat_map(move |shape| {
                [true, false].map(|caches_denials| Self { algorithm, shape, caches_denials })
            })
        })
    }

    /// Returns the rules. Their names are unique among all cases.
    pub(crate) fn rules(&self) -> RuleSet {
        let per_lists: &[&str] = match self.shape {
            KeyShape::OneKey | KeyShape::HundredKeys => &["user"],
            KeyShape::RuleStack => &["user, item", "user", ""],
        };
        let mut text = "rules:\n".to_owned();
        let name = self.to_string().replace(' ', "-");
        for (rule_number, (per, limit)) in per_lists.iter().zip(self.shape.limits()).enumerate() {
            // One request is served while `queue` requests wait.
            let queue = match self.algorithm {
                Algorithm::LeakyBucket { .. } => format!("queue: {}, ", limit - 1),
                _ => String::new(),
            };
            text += &format!(
                "  - {{name: {name}-{rule_number}, per: [{per}], limit: {limit} per hour, {queue}algorithm: {}, on_store_failure: deny}}\n",
                self.algorithm,
            );
        }
        RuleSet::parse("rules.yaml", &text).unwrap()
    }

    pub(crate) fn request(&self, client: usize) -> Request<'static> {
        let request = Request::new();
        let (user, item) = match self.shape {
            KeyShape::OneKey | KeyShape::HundredKeys => (client, 0),
            KeyShape::RuleStack => (client % 4, client / 4),
        };
        let request = request.with("user", format!("user {user}")).unwrap();
        request.with("item", format!("item {item}")).unwrap()
    }

    /// Returns the usage of each rule that applies to a client, including clients that share the rule's counter.
    pub(crate) fn charged(&self, admitted: &[u64], client: usize) -> Vec<u64> {
        match self.shape {
            KeyShape::OneKey | KeyShape::HundredKeys => vec![admitted[client]],
            KeyShape::RuleStack => {
                let by_user = admitted.iter().skip(client % 4).step_by(4).sum();
                vec![admitted[client], by_user, admitted.iter().sum()]
            }
        }
    }

    /// Returns the limits that this load exhausts, each with its number of admissions.
    pub(crate) fn exhausted_limits(&self, admitted: &[u64]) -> Vec<(u64, u64)> {
        match self.shape {
            KeyShape::OneKey => vec![(500, admitted[0])],
            KeyShape::HundredKeys => admitted.iter().map(|admitted| (12, *admitted)).collect(),
            KeyShape::RuleStack => vec![(250, admitted.iter().sum())],
        }
    }

    /// Returns the bounds of the admissions under an exhausted limit.
    pub(crate) fn admission_bounds(&self, amount: u64, span: Elapsed) -> RangeInclusive<u64> {
        bound::admission_bounds(self.algorithm, amount, span)
    }

    /// Returns whether `left` is a valid remainder of a limit after `charged` admissions.
    pub(crate) fn is_valid_remainder(
        &self,
        amount: u64,
        charged: u64,
        left: u64,
        span: Elapsed,
        with_refunds: bool,
    ) -> bool {
        let max = self.admission_bounds(amount, span).end() - charged;
        let min = match self.algorithm {
            // A queue refunds only its last slot. A bucket refunds less than was charged after other refunds. The
            // difference becomes available with time.
            Algorithm::LeakyBucket { .. } | Algorithm::TokenBucket if with_refunds => 0,
            _ => amount.saturating_sub(charged),
        };
        (min..=max).contains(&left)
    }
}
