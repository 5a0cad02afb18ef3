//! One client's part of a limit on one node, through all changes of the part.

use std::sync::Arc;

use tidegate_core::{Algorithm, Key, Limit, Outcome, Span, State, Timestamp};

use crate::coordination::membership::{MembershipView, ShareStatus, ShareTerm};
use crate::limit_shares::LimitShares;
use crate::store::{ChargeMode, Refund, Share};

/// What one client has spent here.
pub(crate) struct Client {
    /// The limit of the whole fleet.
    whole: Arc<Limit>,
    /// This node's part of it.
    part: Arc<Limit>,
    share: Share,
    /// The era that it is the part of.
    term: u64,
    state: State,
}

impl Client {
    /// A client that was not seen yet: it had nothing when the first of the eras began, since nobody
    /// knows what it had elsewhere.
    pub(crate) fn unseen(parts: &LimitShares, limit: &Arc<Limit>, terms: &[ShareTerm]) -> Self {
        let whole = Share::WHOLE;
        let first = terms.first().map_or((0, whole, Timestamp::EPOCH), |term| {
            let ShareTerm { number, share, from, .. } = *term;
            (number, share, from)
        });
        let (term, share, from) = first;
        let part = parts.of(limit, share);
        let state = left_with(&part, 0, from);
        let mut client = Self { whole: Arc::clone(limit), part, share, term, state };
        client.catch_up(parts, terms);
        client
    }

    /// Comes to the last of the eras, and to the limit that is in force now.
    pub(crate) fn follow(
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
            let left = self.left(now);
            self.whole = Arc::clone(limit);
            self.part = parts.of(limit, self.share);
            self.state = left_with(&self.part, left, now);
        }
    }

    fn catch_up(&mut self, parts: &LimitShares, terms: &[ShareTerm]) {
        let Some(place) = terms.iter().position(|term| term.number == self.term) else {
            // What led here is not remembered any more.
            if !terms.is_empty() {
                *self = Self::unseen(parts, &Arc::clone(&self.whole), terms);
            }
            return;
        };
        for pair in terms[place..].windows(2) {
            if let [before, after] = pair {
                self.cross(parts, before, after);
            }
        }
    }

    /// Goes from one era to the next, with what is left in tokens.
    ///
    /// Between the two this node may have had no share, and others may have used it since. They did not
    /// get what was left here of a window that is going on, as nobody's part grows within a window. But
    /// a bucket of theirs has filled.
    fn cross(&mut self, parts: &LimitShares, before: &ShareTerm, after: &ShareTerm) {
        let ended = before.until.min(after.from);
        let (last, kept) = match ended < after.from {
            true => {
                let last = ended - Span::MICROSECOND;
                (last, in_one_window(&self.whole, last, after.from))
            }
            false => (after.from, true),
        };
        let left = if kept { self.left(last) } else { 0 };
        (self.share, self.term) = (after.share, after.number);
        self.part = parts.of(&self.whole, after.share);
        self.state = left_with(&self.part, left, after.from);
    }

    fn left(&mut self, at: Timestamp) -> u64 {
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

    pub(crate) fn take_back(
        &mut self,
        parts: &LimitShares,
        view: &MembershipView,
        refund: &Refund,
    ) {
        if let ShareStatus::Active(terms) = view.share_status() {
            self.catch_up(parts, terms);
        }
        match refund.refund_token {
            Some(_) => refund.take_back(&self.part, &mut self.state, view.at),
            // Without a refund token the limit is named as the rule has it.
            None => {
                let cost = refund.cost.min(refund.limit.capacity());
                refund.limit == self.whole
                    && self.part.refund_latest(&mut self.state, view.at, &self.part, cost)
            }
        };
    }

    /// Whether it has all of its part, as one that was not seen for long.
    pub(crate) fn is_whole(&mut self, now: Timestamp) -> bool {
        self.part.expires_at(&mut self.state) <= now
    }
}

/// The state of who has so many tokens left at an instant, or all that there can be.
fn left_with(part: &Limit, left: u64, at: Timestamp) -> State {
    let mut state = part.fresh();
    part.charge(&mut state, at, part.capacity().saturating_sub(left));
    state
}

/// Whether a limit counts in windows, and both instants are in the same.
fn in_one_window(limit: &Limit, one: Timestamp, other: Timestamp) -> bool {
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
