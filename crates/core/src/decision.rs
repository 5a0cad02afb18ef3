//! The outcome of one limit, and the decision by several of them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Limit;
use crate::time::{Span, Timestamp};

/// How one limit stands towards one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The most that can be spent at once.
    pub limit: u64,
    /// What could still be spent now.
    pub remaining: u64,
    /// When the limit is whole again if nobody comes.
    pub reset_after: Span,
    /// Whether the request may pass.
    pub verdict: Verdict,
}

/// Whether a request may pass, and what goes with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allow {
        /// How long it has to wait for its turn; only a leaky bucket asks for that.
        delay: Span,
        /// What a refund has to name; `None` when nothing was spent.
        slip: Option<Slip>,
    },
    /// It may not.
    Deny {
        /// The wait until this cost would be admitted if nobody else came, never zero; `None` when
        /// it is more than the limit ever allows.
        retry_after: Option<Span>,
    },
}

/// Which of a client's spendings a refund takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slip {
    /// When it was spent, by the store's clock. Of slots in flight it is their name, which no two
    /// takings of one client share.
    pub at: Timestamp,
    /// The end of its window, slot or hold, or when its bucket was to be full again.
    pub until: Timestamp,
    /// Parts of a microsecond after `until`, for buckets.
    pub parts: u64,
}

impl Outcome {
    /// Whether the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allow { .. })
    }

    /// The wait of a denied request; `None` when it may pass, or never will.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.verdict {
            Verdict::Deny { retry_after } => retry_after,
            Verdict::Allow { .. } => None,
        }
    }

    /// How long an admitted request has to wait for its turn.
    #[must_use]
    pub const fn delay(&self) -> Span {
        match self.verdict {
            Verdict::Allow { delay, .. } => delay,
            Verdict::Deny { .. } => Span::ZERO,
        }
    }

    /// What a refund has to name, if anything was spent.
    #[must_use]
    pub const fn slip(&self) -> Option<Slip> {
        match self.verdict {
            Verdict::Allow { slip, .. } => slip,
            Verdict::Deny { .. } => None,
        }
    }

    /// The same outcome, not to be refunded.
    #[must_use]
    pub const fn without_slip(mut self) -> Self {
        if let Verdict::Allow { slip, .. } = &mut self.verdict {
            *slip = None;
        }
        self
    }

    /// Whether this outcome says more about the request than `other`: a denial before an allowance,
    /// of two denials the longer wait, of two allowances the one that leaves less, then the one that
    /// takes longer to be whole.
    #[must_use]
    pub fn is_stricter_than(&self, other: &Self) -> bool {
        match (&self.verdict, &other.verdict) {
            (Verdict::Deny { retry_after: mine }, Verdict::Deny { retry_after: theirs }) => {
                match (mine, theirs) {
                    (None, theirs) => theirs.is_some(),
                    (Some(_), None) => false,
                    (Some(mine), Some(theirs)) => mine > theirs,
                }
            }
            (Verdict::Deny { .. }, Verdict::Allow { .. }) => true,
            (Verdict::Allow { .. }, Verdict::Deny { .. }) => false,
            (Verdict::Allow { .. }, Verdict::Allow { .. }) => {
                (self.remaining, other.reset_after) < (other.remaining, self.reset_after)
            }
        }
    }
}

/// Returns the position of the strictest of several outcomes, the first of equals; `None` for none.
#[must_use]
pub fn strictest<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> Option<usize> {
    let mut best: Option<(usize, &Outcome)> = None;
    for (index, outcome) in outcomes.into_iter().enumerate() {
        if best.is_none_or(|(_, best)| outcome.is_stricter_than(best)) {
            best = Some((index, outcome));
        }
    }
    best.map(|(index, _)| index)
}

/// The position of a rule in its `RuleSet`: rules of the document first, then internal
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleIndex(pub usize);

/// The decision about a request by all rules that apply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    status: DecisionStatus,
    rule_outcomes: RuleOutcomes,
    undecided: Vec<UndecidedRule>,
    block: Option<Block>,
}

/// The reason why a client was denied before any rule was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The time until the block ends, never zero.
    pub retry_after: Span,
    /// The rule whose penalty this is; `None` when an operator did it.
    pub rule: Option<Arc<str>>,
}

/// The outcomes of rules, in the order of the rules file.
pub type RuleOutcomes = SmallVec<[RuleOutcome; 2]>;

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionStatus {
    /// The request may pass.
    Allow,
    /// The client exceeds a limit, or is blocked.
    Deny,
    /// The store failed for a rule that denies in that case.
    Unavailable,
}

/// The outcome of one rule for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOutcome {
    /// The rule's index among the rules that decided.
    pub rule_index: RuleIndex,
    /// The rule's name.
    pub rule: Arc<str>,
    /// The limit that applies.
    pub limit: Arc<Limit>,
    /// The outcome of the charge.
    pub outcome: Outcome,
    /// Whether the rule only counts: a shadow rule's denial denies no request.
    pub shadow: bool,
}

/// A rule without an outcome, because the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecidedRule {
    /// The rule's index among the rules that decided.
    pub rule_index: RuleIndex,
    /// The rule's name.
    pub rule: Arc<str>,
}

impl Decision {
    /// Makes a decision of the outcomes of all rules.
    #[must_use]
    pub fn of(rule_outcomes: RuleOutcomes) -> Self {
        let denies = |rule: &RuleOutcome| !rule.shadow && !rule.outcome.is_allowed();
        let status = match rule_outcomes.iter().any(denies) {
            true => DecisionStatus::Deny,
            false => DecisionStatus::Allow,
        };
        Self { status, rule_outcomes, undecided: Vec::new(), block: None }
    }

    /// Adds rules without an outcome. They allow, or deny if `unavailable`. A rule with an outcome that
    /// denies still decides.
    #[must_use]
    pub fn with_undecided(mut self, undecided: Vec<UndecidedRule>, unavailable: bool) -> Self {
        if unavailable && self.status == DecisionStatus::Allow {
            self.status = DecisionStatus::Unavailable;
        }
        self.undecided = undecided;
        self
    }

    /// Makes the denial of a blocked client.
    #[must_use]
    pub fn blocked(block: Block) -> Self {
        let (rule_outcomes, undecided) = (RuleOutcomes::new(), Vec::new());
        Self { status: DecisionStatus::Deny, rule_outcomes, undecided, block: Some(block) }
    }

    /// Returns whether the request may pass, and why not.
    #[must_use]
    pub fn status(&self) -> DecisionStatus {
        self.status
    }

    /// Returns whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.status == DecisionStatus::Allow
    }

    /// Returns the block that denied the request before any rule was charged.
    #[must_use]
    pub fn block(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    /// Returns how long a denied client has to wait; `None` if it was not denied, or if no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        match (&self.block, self.status) {
            (Some(block), _) => Some(block.retry_after),
            (None, DecisionStatus::Deny) => self.strictest_rule()?.outcome.retry_after(),
            (None, DecisionStatus::Allow | DecisionStatus::Unavailable) => None,
        }
    }

    /// Returns the outcomes of all rules, shadow rules too, in the order of the rules file.
    #[must_use]
    pub fn rule_outcomes(&self) -> &[RuleOutcome] {
        &self.rule_outcomes
    }

    /// Returns the outcomes of the rules that can deny.
    pub fn enforced(&self) -> impl Iterator<Item = &RuleOutcome> {
        self.rule_outcomes.iter().filter(|rule| !rule.shadow)
    }

    /// Returns the rules without an outcome, because the store failed.
    #[must_use]
    pub fn undecided(&self) -> &[UndecidedRule] {
        &self.undecided
    }

    /// Returns the rule that decided: on a denial the one with the longest wait, else the one that leaves
    /// least. `None` when no rule applies.
    #[must_use]
    pub fn strictest_rule(&self) -> Option<&RuleOutcome> {
        let index = strictest(self.enforced().map(|rule| &rule.outcome))?;
        self.enforced().nth(index)
    }

    /// Returns how long an admitted request has to wait in queues: the longest of all delays.
    #[must_use]
    pub fn delay(&self) -> Span {
        self.enforced().map(|rule| rule.outcome.delay()).max().unwrap_or(Span::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(remaining: u64, reset: u64) -> Outcome {
        let verdict = Verdict::Allow { delay: Span::ZERO, slip: None };
        Outcome { limit: 100, remaining, reset_after: Span::from_secs(reset), verdict }
    }

    fn deny(seconds: Option<u64>) -> Outcome {
        let verdict = Verdict::Deny { retry_after: seconds.map(Span::from_secs) };
        Outcome { limit: 100, remaining: 0, reset_after: Span::SECOND, verdict }
    }

    #[test]
    fn the_strictest_is_reported() {
        assert_eq!(strictest([]), None);
        assert_eq!(strictest(&[allow(5, 1), allow(3, 1), allow(4, 1)]), Some(1));
        assert_eq!(strictest(&[allow(3, 1), allow(3, 9)]), Some(1));
        assert_eq!(strictest(&[allow(3, 1), allow(3, 1)]), Some(0));
        assert_eq!(strictest(&[allow(0, 1), deny(Some(1)), deny(Some(7))]), Some(2));
        assert_eq!(strictest(&[deny(Some(900)), deny(None), deny(Some(7))]), Some(1));
    }
}
