//! The decision about a request by several limits.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Limit;
use crate::outcome::{Outcome, strictest};
use crate::time::Span;

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
    is_allow_listed: bool,
}

/// The reason why a client was denied before any rule was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The time until the block ends, never zero.
    pub retry_after: Span,
    /// The rule that blocked the client as a penalty; `None` if an operator blocked it.
    pub rule: Option<Arc<str>>,
}

/// The outcomes of rules, in the order of the rules file.
pub type RuleOutcomes = SmallVec<[RuleOutcome; 2]>;

/// The result of a decision.
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
    /// True for a shadow rule: its denial denies no request.
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
    /// Returns the decision that follows from the outcomes of all rules.
    #[inline]
    #[must_use]
    pub fn of(rule_outcomes: RuleOutcomes) -> Self {
        let denies = |rule: &RuleOutcome| !rule.shadow && !rule.outcome.is_allowed();
        let status = match rule_outcomes.iter().any(denies) {
            true => DecisionStatus::Deny,
            false => DecisionStatus::Allow,
        };
        let undecided = Vec::new();
        Self { status, rule_outcomes, undecided, block: None, is_allow_listed: false }
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

    /// Returns the denial of a blocked client.
    #[must_use]
    pub fn blocked(block: Block) -> Self {
        let (rule_outcomes, undecided) = (RuleOutcomes::new(), Vec::new());
        let status = DecisionStatus::Deny;
        Self { status, rule_outcomes, undecided, block: Some(block), is_allow_listed: false }
    }

    /// Returns the permission of a client to which no rule applies, because an operator allowed it.
    #[must_use]
    pub fn allow_listed() -> Self {
        Self { is_allow_listed: true, ..Self::of(RuleOutcomes::new()) }
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

    /// Returns whether the request was allowed before any rule was charged, because an operator allowed its client.
    #[must_use]
    pub fn is_allow_listed(&self) -> bool {
        self.is_allow_listed
    }

    /// Returns the time that a denied client has to wait; `None` if it was not denied, or if no wait helps.
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

    /// Returns the time that an admitted request has to wait in queues: the longest of all delays.
    #[must_use]
    pub fn delay(&self) -> Span {
        self.enforced().map(|rule| rule.outcome.delay()).max().unwrap_or(Span::ZERO)
    }
}
