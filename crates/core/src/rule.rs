//! Rules: which requests a limit is for, whom it counts, and what it does.

mod accuracy;
mod build;
mod condition;
mod error;
mod glob;
mod limits;
mod mark;
mod matcher;
mod network;
mod parse;
mod penalty;
mod per;
mod raw;
mod rollout;
pub mod schema;
mod set;
mod yaml;

use std::sync::Arc;

use smallvec::SmallVec;

pub use accuracy::{Accuracy, Every, FleetBound, MaxAhead, Synced};
pub use condition::{Condition, Mismatch, Pattern, Patterns, Test};
pub use error::{RuleError, RuleErrors};
pub use glob::Glob;
pub use limits::{Applied, Because, Override, Tiers};
pub use mark::Mark;
pub use network::{NetworkError, Networks, address, network, unmapped};
pub use penalty::{After, Penalty, PenaltyError};
pub use per::{Chain, Picked};
pub use rollout::{Rollout, RolloutError};
pub use set::RuleSet;

use condition::present;
use limits::Overrides;
use rollout::Draw;

use crate::algorithm::{Algorithm, Limit};
use crate::key::Part;
use crate::request::Request;
use crate::time::Timestamp;

/// What a rule does with what it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denies what is over the limit.
    #[default]
    Enforce,
    /// Counts and reports, and never denies.
    Shadow,
    /// Applies to no request at all.
    Off,
}

/// What a rule answers when its store can't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Lets the request through.
    #[default]
    Allow,
    /// Refuses it.
    Deny,
    /// Decides on its own, by this node's share of the limit.
    Local,
}

/// A limit, the requests it is for, and the clients it counts apart.
///
/// Usually read from YAML by [`RuleSet::parse`]; in code:
///
/// ```
/// use tidegate_core::rule::{Condition, Test};
/// use tidegate_core::{Algorithm, Quota, Rule, RuleSet};
///
/// let rule = Rule::new("api", Algorithm::TokenBucket, Quota::per_second(100))?
///     .with_condition(Condition::new("path", Test::like("/v1/**")))
///     .with_per("user | ip")?;
/// let rules = RuleSet::new(vec![rule]).unwrap();
/// assert_eq!(rules.rules()[0].per()[0].as_str(), "user | ip");
/// # Ok::<(), tidegate_core::rule::RuleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    name: Arc<str>,
    conditions: Vec<Condition>,
    per: Vec<Chain>,
    algorithm: Algorithm,
    limit: Arc<Limit>,
    tiers: Option<Tiers>,
    overrides: Overrides,
    accuracy: Accuracy,
    on_store_failure: OnStoreFailure,
    mode: Mode,
    rollout: Option<Rollout>,
    penalty: Option<Penalty>,
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

    /// The name, unlike that of any other rule of its set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, to keep without copying it.
    #[must_use]
    pub fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// What a request must be like for the rule to apply; nothing means every request.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The attributes that name a client; nothing means one bucket for all.
    #[must_use]
    pub fn per(&self) -> &[Chain] {
        &self.per
    }

    /// How the rule counts, whichever limit applies.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The limit for a request that has no tier and no override.
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

    /// How the limit is kept where nodes share a store.
    #[must_use]
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// What to answer when the store can't.
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// Whether the rule denies, only counts, or does nothing.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The share of its clients that the rule is for; `None` is all of them.
    #[must_use]
    pub fn rollout(&self) -> Option<Rollout> {
        self.rollout
    }

    /// What becomes of a client that goes on after it was denied, if anything does.
    #[must_use]
    pub fn penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref()
    }

    /// Whether the rule applies to a request.
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

    /// Whether the rule applies to the client of a request that names the rule and need not match: it
    /// is not off, and its rollout reaches the client.
    #[inline]
    #[must_use]
    pub fn reaches(&self, request: &Request<'_>) -> bool {
        self.mode != Mode::Off && self.rollout.is_none_or(|share| share.takes(self.draw(request)))
    }

    /// Where the client stands among all of the rule's.
    #[cold]
    fn draw(&self, request: &Request<'_>) -> Draw {
        Draw::of(&self.name, self.parts(request))
    }

    /// The limit for a request: the first override that matches, is not over at `now` and reaches
    /// the client, else that of the request's tier, else the rule's own.
    #[must_use]
    pub fn limit_for(&self, request: &Request<'_>, now: Timestamp) -> Applied<'_> {
        let tiers = self.tiers.as_ref();
        self.overrides
            .applied(request, now, || self.draw(request))
            .or_else(|| tiers.and_then(|tiers| tiers.applied(request)))
            .unwrap_or(Applied { limit: &self.limit, because: Because::Rule })
    }

    /// The parts of the client's key, one for each entry of `per`.
    ///
    /// An empty value counts as absent, so that sending one does not make another client.
    #[must_use]
    pub fn parts<'q>(&self, request: &'q Request<'_>) -> SmallVec<[Part<'q>; 4]> {
        self.per.iter().map(|chain| chain.part(request)).collect()
    }
}
