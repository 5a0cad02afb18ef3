//! What a limit answers, and what several of them answer together.

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

/// The place of the strictest of several outcomes, the first of equals; `None` for none.
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

/// What all rules that match a request answer together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    ruling: Ruling,
    policies: Policies,
    undecided: Vec<Arc<str>>,
    block: Option<Block>,
}

/// Why a client was denied without asking any rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// How long it is still blocked, never zero.
    pub retry_after: Span,
    /// The rule whose penalty this is; `None` when an operator did it.
    pub rule: Option<Arc<str>>,
}

/// The rules that were asked, in the order of the rules file.
pub type Policies = SmallVec<[Policy; 2]>;

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It may.
    Allow,
    /// The client is over its share.
    Deny,
    /// A rule that denies when the store fails could not be decided.
    Unavailable,
}

/// How one rule stands towards a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The rule's name.
    pub rule: Arc<str>,
    /// The limit that applies.
    pub limit: Arc<Limit>,
    /// What it answered.
    pub outcome: Outcome,
    /// Whether it only counts: a shadow rule's denial denies nobody.
    pub shadow: bool,
}

impl Decision {
    /// A decision by the rules that were asked, none of which failed.
    #[must_use]
    pub fn of(policies: Policies) -> Self {
        let denied = policies.iter().any(|policy| !policy.shadow && !policy.outcome.is_allowed());
        let ruling = if denied { Ruling::Deny } else { Ruling::Allow };
        Self { ruling, policies, undecided: Vec::new(), block: None }
    }

    /// The same decision, with rules that could not be asked: they are let pass, or not when
    /// `unavailable`. A rule that was asked and denies still has the last word.
    #[must_use]
    pub fn with_undecided(mut self, undecided: Vec<Arc<str>>, unavailable: bool) -> Self {
        if unavailable && self.ruling == Ruling::Allow {
            self.ruling = Ruling::Unavailable;
        }
        self.undecided = undecided;
        self
    }

    /// The denial of a client that is blocked, whatever the rules say.
    #[must_use]
    pub fn blocked(block: Block) -> Self {
        let (policies, undecided) = (Policies::new(), Vec::new());
        Self { ruling: Ruling::Deny, policies, undecided, block: Some(block) }
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn ruling(&self) -> Ruling {
        self.ruling
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.ruling == Ruling::Allow
    }

    /// The block that denied the request before any rule was asked, if one did.
    #[must_use]
    pub fn block(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    /// How long a denied client has to wait; `None` when it was not denied, or when no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        match (&self.block, self.ruling) {
            (Some(block), _) => Some(block.retry_after),
            (None, Ruling::Deny) => self.decisive()?.outcome.retry_after(),
            (None, Ruling::Allow | Ruling::Unavailable) => None,
        }
    }

    /// Every rule that was asked, shadow rules too, in the order of the rules file.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The rules that apply, without those that only count.
    pub fn enforced(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().filter(|policy| !policy.shadow)
    }

    /// The rules that could not be asked because the store failed.
    #[must_use]
    pub fn undecided(&self) -> &[Arc<str>] {
        &self.undecided
    }

    /// The rule that decided: on a denial the one with the longest wait, else the one that leaves
    /// least. `None` when no rule applies.
    #[must_use]
    pub fn decisive(&self) -> Option<&Policy> {
        let place = strictest(self.enforced().map(|policy| &policy.outcome))?;
        self.enforced().nth(place)
    }

    /// How long an admitted request has to wait for its turn: the longest of all delays.
    #[must_use]
    pub fn delay(&self) -> Span {
        self.enforced().map(|policy| policy.outcome.delay()).max().unwrap_or(Span::ZERO)
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
