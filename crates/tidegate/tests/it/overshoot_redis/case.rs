//! What is hammered: an algorithm, and how many clients share how many rules.

use std::fmt;
use std::ops::RangeInclusive;

use tidegate::{Algorithm, Request, RuleSet};

use super::bound::{self, Elapsed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One client, one rule.
    OneKey,
    /// A hundred clients, one rule.
    HundredKeys,
    /// Twelve items of four users under three rules: per user and item, per user, and for all.
    Stack,
}

impl Shape {
    pub(crate) const ALL: [Self; 3] = [Self::OneKey, Self::HundredKeys, Self::Stack];

    pub(crate) fn clients(self) -> usize {
        match self {
            Self::OneKey => 1,
            Self::HundredKeys => 100,
            Self::Stack => 12,
        }
    }

    /// Per hour, for each rule.
    pub(crate) fn limits(self) -> &'static [u64] {
        match self {
            Self::OneKey => &[500],
            Self::HundredKeys => &[12],
            Self::Stack => &[40, 90, 250],
        }
    }

    /// The checks of one task.
    pub(crate) fn checks(self) -> usize {
        match self {
            Self::OneKey | Self::HundredKeys => 16,
            Self::Stack => 8,
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
pub(crate) struct Case {
    pub(crate) algorithm: Algorithm,
    pub(crate) shape: Shape,
    /// Whether nodes remember denials.
    pub(crate) memory: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = if self.memory { "remembering" } else { "forgetting" };
        write!(f, "{} {:?} {memory}", self.algorithm, self.shape)
    }
}

impl Case {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        ALGORITHMS.into_iter().flat_map(|algorithm| {
            Shape::ALL.into_iter().flat_map(move |shape| {
                [true, false].map(|memory| Self { algorithm, shape, memory })
            })
        })
    }

    /// The rules, called by names that no other case has.
    pub(crate) fn rules(&self) -> RuleSet {
        let pers: &[&str] = match self.shape {
            Shape::OneKey | Shape::HundredKeys => &["user"],
            Shape::Stack => &["user, item", "user", ""],
        };
        let mut text = "rules:\n".to_owned();
        let name = self.to_string().replace(' ', "-");
        for (place, (per, limit)) in pers.iter().zip(self.shape.limits()).enumerate() {
            // A queue has room for one more than may wait.
            let queue = match self.algorithm {
                Algorithm::LeakyBucket { .. } => format!("queue: {}, ", limit - 1),
                _ => String::new(),
            };
            text += &format!(
                "  - {{name: {name}-{place}, per: [{per}], limit: {limit} per hour, {queue}algorithm: {}, on_store_failure: deny}}\n",
                self.algorithm,
            );
        }
        RuleSet::parse("rules.yaml", &text).unwrap()
    }

    pub(crate) fn request(&self, client: usize) -> Request<'static> {
        let request = Request::new();
        let (user, item) = match self.shape {
            Shape::OneKey | Shape::HundredKeys => (client, 0),
            Shape::Stack => (client % 4, client / 4),
        };
        let request = request.with("user", format!("user {user}")).unwrap();
        request.with("item", format!("item {item}")).unwrap()
    }

    /// What each rule was charged for the requests of one client and of those it shares with.
    pub(crate) fn charged(&self, admitted: &[u64], client: usize) -> Vec<u64> {
        match self.shape {
            Shape::OneKey | Shape::HundredKeys => vec![admitted[client]],
            Shape::Stack => {
                let of_user = admitted.iter().skip(client % 4).step_by(4).sum();
                vec![admitted[client], of_user, admitted.iter().sum()]
            }
        }
    }

    /// The limits that so many requests exhaust, and what was admitted under each.
    pub(crate) fn tightest(&self, admitted: &[u64]) -> Vec<(u64, u64)> {
        match self.shape {
            Shape::OneKey => vec![(500, admitted[0])],
            Shape::HundredKeys => admitted.iter().map(|admitted| (12, *admitted)).collect(),
            Shape::Stack => vec![(250, admitted.iter().sum())],
        }
    }

    /// How many may be admitted under a limit that is exhausted.
    pub(crate) fn range(&self, amount: u64, span: Elapsed) -> RangeInclusive<u64> {
        bound::admits(self.algorithm, amount, span)
    }

    /// Whether what is left of a limit is what `charged` leaves of it.
    pub(crate) fn stands(
        &self,
        amount: u64,
        charged: u64,
        left: u64,
        span: Elapsed,
        give_backs: bool,
    ) -> bool {
        let most = self.range(amount, span).end() - charged;
        let least = match self.algorithm {
            // A queue takes back its last slot and no other, and a bucket less than was charged when
            // others were refunded before: what they can't take back passes with time.
            Algorithm::LeakyBucket { .. } | Algorithm::TokenBucket if give_backs => 0,
            _ => amount.saturating_sub(charged),
        };
        (least..=most).contains(&left)
    }
}
