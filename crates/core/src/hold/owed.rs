//! What a node has admitted without asking, and tells afterwards.
//!
//! A node tells running totals under a name, and the store keeps beside the state how much it has heard under
//! it: what is told again, because an answer was lost, counts once. Why that is enough is in
//! `docs/decisions/0013-synced-split-and-shards.md`.

use super::{Ask, Hold, Holds, Lender};
use crate::algorithm::{Due, Limit, Meter, State};
use crate::time::{Span, Timestamp};

/// What a node has admitted without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// When the last of it was admitted, by the store's time: in that window it counts, unless it is later
    /// than now. A bucket counts it now.
    pub at: Timestamp,
    /// How much it was by then, in all that is told under one name.
    pub total: u64,
}

/// How a client stands with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The client's own time. Of windows it stays at the start of the latest one that was counted in while the
    /// store's clock is behind that.
    pub at: Timestamp,
    /// The store's clock. It can be set back.
    pub clock: Timestamp,
    /// What is remembered of it then.
    pub state: State,
}

/// Counts what is new in what is owed, and remembers how much that was.
pub(super) fn settle<M: Lender>(
    meter: &M,
    state: &mut M::State,
    holds: &mut Holds,
    now: Timestamp,
    ask: &Ask,
) {
    if ask.owed.is_empty() {
        return;
    }
    let mut known = holds.get(ask.id).map_or(0, |mark| mark.spent);
    for owed in &ask.owed {
        let total = owed.total.min(meter.countable());
        meter.count(state, now, owed.at.min(now), total.saturating_sub(known));
        known = known.max(total);
    }
    let until = now + ask.life.min(Hold::LONGEST);
    holds.mark(Hold { id: ask.id, amount: known, spent: known, until });
}

impl Limit {
    /// Counts what was admitted, whether or not it fits, and all of it.
    ///
    /// A bucket spends it now. A window that is over forgets it, unless it is the one before in a sliding
    /// one. What is owed of a limit that does not [lease](Self::leases) is not counted.
    pub fn count(&self, state: &mut State, now: Timestamp, at: Timestamp, amount: u64) {
        fn count<M: Lender>(
            meter: &M,
            state: &mut M::State,
            now: Timestamp,
            at: Timestamp,
            amount: u64,
        ) {
            let own_now = meter.advance(state, now);
            meter.count(state, own_now, at.min(own_now), amount.min(meter.countable()));
        }
        match self {
            Self::TokenBucket(meter) => meter.on(state, |own| count(meter, own, now, at, amount)),
            Self::FixedWindow(meter) => meter.on(state, |own| count(meter, own, now, at, amount)),
            Self::SlidingWindow(meter) => meter.on(state, |own| count(meter, own, now, at, amount)),
            Self::LeakyBucket(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {}
        }
    }

    /// The end of the window that an instant is in, if this limit counts by windows.
    #[must_use]
    pub fn window_end(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::FixedWindow(meter) => Some(meter.window_end(at)),
            Self::SlidingWindow(meter) => Some(meter.window_end(at)),
            Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::SlidingLog(_)
            | Self::Concurrency(_) => None,
        }
    }

    /// What a store's own code adds up for so many tokens, however many: how long a bucket takes to
    /// refill them, else their number.
    #[must_use]
    pub fn weight(&self, tokens: u64) -> Due {
        match self {
            Self::TokenBucket(meter) => meter.pace().span(tokens.min(meter.countable())),
            _ => Due { micros: tokens.min(crate::Quota::MAX_AMOUNT), parts: 0 },
        }
    }

    /// The most tokens that count as owed; no store could count more.
    #[must_use]
    pub fn countable(&self) -> u64 {
        match self {
            Self::TokenBucket(meter) => meter.countable(),
            _ => crate::Quota::MAX_AMOUNT,
        }
    }
}

impl Holds {
    /// Remembers how much was told under a name. What the same node told under others is known to be
    /// heard, or it would have gone on with that name.
    ///
    /// With too many holds already it is not remembered, and would count again if it were told again.
    fn mark(&mut self, mark: Hold) {
        let stale = |hold: &Hold| hold.is_mark() && hold.id.node == mark.id.node;
        self.list.retain(|hold| hold.id != mark.id && !stale(hold));
        self.add(mark);
    }
}

impl Hold {
    /// Whether it holds nothing, and only says what was told under its name.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        self.spent == self.amount
    }
}

/// The longest that a bucket may be in debt, besides being empty.
pub(crate) const LONGEST_DEBT: Span = crate::Quota::MAX_FILL;
