//! The usage of one client on one node, through all changes of the node's share.

use std::sync::Arc;

use tidegate_core::{Algorithm, Key, Limit, Outcome, Span, State, Timestamp};

use crate::coordination::membership::{MembershipView, ShareStatus, ShareTerm};
use crate::limit_shares::LimitShares;
use crate::store::{ChargeMode, Refund, Share};

/// The usage of one client under this node's part of a limit.
pub(crate) struct SplitClient {
    /// The limit of the whole fleet.
    whole: Arc<Limit>,
    /// This node's part of it.
    part: Arc<Limit>,
    share: Share,
    /// The number of the term that the part belongs to.
    term: u64,
    state: State,
}

impl SplitClient {
    /// Creates a client that was not checked on this node before.
    ///
    /// It has no tokens at the start of the first term, because its usage on other nodes is unknown.
    pub(crate) fn new(parts: &LimitShares, limit: &Arc<Limit>, terms: &[ShareTerm]) -> Self {
        let whole = Share::WHOLE;
        let first = terms.first().map_or((0, whole, Timestamp::EPOCH), |term| {
            let ShareTerm { number, share, from, .. } = *term;
            (number, share, from)
        });
        let (term, share, from) = first;
        let part = parts.share(limit, share);
        let state = state_with_remaining(&part, 0, from);
        let mut client = Self { whole: Arc::clone(limit), part, share, term, state };
        client.catch_up(parts, terms);
        client
    }

    /// Moves the usage to the last of the terms and to the current limit.
    pub(crate) fn update(
        &mut self,
        parts: &LimitShares,
        limit: &Arc<Limit>,
        terms: &[ShareTerm],
        now: Timestamp,
    ) {
        if terms.last().is_some_and(|last| last.number > self.term) {
            self.catch_up(parts, terms);
        }
        if !Arc::ptr_eq(&self.whole, limit) && self.whole != *limit {
            let remaining = self.remaining(now);
            self.whole = Arc::clone(limit);
            self.part = parts.share(limit, self.share);
            self.state = state_with_remaining(&self.part, remaining, now);
        }
    }

    fn catch_up(&mut self, parts: &LimitShares, terms: &[ShareTerm]) {
        let Some(current) = terms.iter().position(|term| term.number == self.term) else {
            // The client's term is no longer kept, so its tokens in later terms are unknown.
            if !terms.is_empty() {
                *self = Self::new(parts, &Arc::clone(&self.whole), terms);
            }
            return;
        };
        for pair in terms[current..].windows(2) {
            if let [before, after] = pair {
                self.advance_term(parts, before, after);
            }
        }
    }

    /// Moves from one term to the next, and keeps the number of remaining tokens.
    ///
    /// Between two terms this node may have had no share, and other nodes may have used it. Tokens of the
    /// current window are kept even so, because no part grows within a window. Tokens of a bucket are not
    /// kept, because buckets of other nodes have refilled.
    fn advance_term(&mut self, parts: &LimitShares, before: &ShareTerm, after: &ShareTerm) {
        let ended = before.until.min(after.from);
        let (last, kept) = match ended < after.from {
            true => {
                let last = ended - Span::MICROSECOND;
                (last, in_same_window(&self.whole, last, after.from))
            }
            false => (after.from, true),
        };
        let remaining = if kept { self.remaining(last) } else { 0 };
        (self.share, self.term) = (after.share, after.number);
        self.part = parts.share(&self.whole, after.share);
        self.state = state_with_remaining(&self.part, remaining, after.from);
    }

    fn remaining(&mut self, at: Timestamp) -> u64 {
        self.part.peek(&mut self.state, at, 0).remaining
    }

    pub(crate) fn charge(
        &mut self,
        key: Key,
        now: Timestamp,
        cost: u64,
        mode: ChargeMode,
    ) -> (Outcome, Option<Refund>) {
        if mode == ChargeMode::Peek {
            return (self.part.peek(&mut self.state, now, cost), None);
        }
        let outcome = self.part.charge(&mut self.state, now, cost);
        let refund = outcome.refund_token().map(|refund_token| {
            let limit = Arc::clone(&self.part);
            Refund { key, limit, cost, refund_token: Some(refund_token) }
        });
        (outcome, refund)
    }

    pub(crate) fn refund(&mut self, parts: &LimitShares, view: &MembershipView, refund: &Refund) {
        if let ShareStatus::Active(terms) = view.share_status() {
            self.catch_up(parts, terms);
        }
        match refund.refund_token {
            Some(_) => refund.take_back(&self.part, &mut self.state, view.at),
            // Without a refund token, the refund has the limit of the rule and not this node's part.
            None => {
                let cost = refund.cost.min(refund.limit.capacity());
                refund.limit == self.whole
                    && self.part.refund_latest(&mut self.state, view.at, &self.part, cost)
            }
        };
    }

    /// Returns whether all tokens of the part are available. Such a client need not be kept.
    pub(crate) fn is_unspent(&mut self, now: Timestamp) -> bool {
        self.part.expires_at(&mut self.state) <= now
    }
}

/// Returns the state with this number of tokens remaining at an instant, at most the capacity.
fn state_with_remaining(part: &Limit, remaining: u64, at: Timestamp) -> State {
    let mut state = part.fresh();
    part.charge(&mut state, at, part.capacity().saturating_sub(remaining));
    state
}

/// Returns whether a limit counts in windows, and both instants are in the same one.
fn in_same_window(limit: &Limit, one: Timestamp, other: Timestamp) -> bool {
    let window = limit.quota().window().as_micros().max(1);
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket { .. } | Algorithm::Concurrency { .. } => {
            false
        }
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog => {
            one.as_micros() / window == other.as_micros() / window
        }
    }
}
