//! One question of a node: what it spent, what a request costs, and what it wants to hold.

use smallvec::SmallVec;

use super::{Hold, HoldId, Holds, margin, portion, usable};
use crate::algorithm::{LeasableAlgorithm, Limit, Meter, State};
use crate::outcome::{Outcome, Verdict};
use crate::time::{Span, Timestamp};

/// How much of a hold was spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which hold.
    pub id: HoldId,
    /// Spent of it in all, so far.
    pub spent: u64,
    /// Nothing more will be: what is left of it is free again.
    pub closed: bool,
}

/// What a node asks of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What the request costs; 0 only looks.
    pub cost: u64,
    /// How many tokens to hold at the most; 0 for none.
    pub want: u64,
    /// The name of that hold, or of what is owed.
    pub id: HoldId,
    /// What the node admitted on its own, as running totals, oldest first. What was told under the same
    /// name before counts once. Who owes is held nothing.
    pub owed: SmallVec<[Owed; 1]>,
    /// What was spent of earlier ones.
    pub reports: SmallVec<[Report; 2]>,
    /// How long to hold them, without the margin, or to remember what was told; at most
    /// [`Hold::LONGEST`].
    pub life: Span,
    /// How many nodes there are, as far as the asker knows.
    pub nodes: u64,
}

/// What a node is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Of the cost; a look for a cost of 0. What others hold counts as spent in it, the new hold
    /// does not yet, so its waits are estimates: a hold may be given back.
    pub outcome: Outcome,
    /// How many tokens are held for the node now; 0 for none.
    pub held: u64,
    /// How long it may use them, from when it asked.
    pub life: Span,
    /// How the client stands after all that; nothing of a limit that does not [lease](Limit::leases).
    pub standing: Option<Standing>,
}

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

impl Limit {
    /// Whether some of this limit can be held ahead of use.
    #[must_use]
    pub fn leases(&self) -> bool {
        matches!(self, Self::TokenBucket(_) | Self::FixedWindow(_) | Self::SlidingWindow(_))
    }

    /// Decides an ask in one step at `now`: expiry, what is owed, reports, the cost and a new hold, in
    /// this order.
    ///
    /// What is used and what is held never exceed the capacity together, unless nodes owe. A limit that does not
    /// [lease](Self::leases) charges the cost, and neither holds anything nor hears anything else.
    ///
    /// # When the limit changes
    /// The state is [adopted](Self::adopt); holds stay as they are, since the nodes that have them do
    /// not know of the change yet. Each counts under the new limit, for its capacity at the most, so
    /// what is admitted after a change exceeds the new limit by no more than was held at that moment.
    /// It exceeds it by nothing if used and held fit under the new limit together.
    pub fn ask(&self, state: &mut State, holds: &mut Holds, now: Timestamp, ask: &Ask) -> Granted {
        match self {
            Self::TokenBucket(meter) => meter.on(state, |own| decide(meter, own, holds, now, ask)),
            Self::FixedWindow(meter) => meter.on(state, |own| decide(meter, own, holds, now, ask)),
            Self::SlidingWindow(meter) => {
                meter.on(state, |own| decide(meter, own, holds, now, ask))
            }
            Self::LeakyBucket(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {
                let outcome = self.charge(state, now, ask.cost);
                Granted { outcome, held: 0, life: Span::ZERO, standing: None }
            }
        }
    }

    /// From when on a state and what is held beside it say no more than a fresh state and nothing.
    #[must_use]
    pub fn settled_at(&self, state: &State, holds: &Holds) -> Timestamp {
        fn settled<M: LeasableAlgorithm>(
            meter: &M,
            state: &mut M::State,
            holds: &Holds,
        ) -> Timestamp {
            let mut over = Timestamp::EPOCH;
            // In the order in which they will be counted, which is not that of their ends.
            for hold in holds.iter() {
                over = over.max(hold.until);
                meter.advance(state, hold.last_use());
                meter.owe(state, hold.last_use(), hold.rest(meter.capacity()));
            }
            meter.whole_at(state).max(over)
        }
        let mut state = state.clone();
        match self {
            Self::TokenBucket(meter) => meter.on(&mut state, |own| settled(meter, own, holds)),
            Self::FixedWindow(meter) => meter.on(&mut state, |own| settled(meter, own, holds)),
            Self::SlidingWindow(meter) => meter.on(&mut state, |own| settled(meter, own, holds)),
            Self::LeakyBucket(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {
                self.whole_at(&mut state)
            }
        }
    }
}

fn decide<M: LeasableAlgorithm>(
    meter: &M,
    state: &mut M::State,
    holds: &mut Holds,
    now: Timestamp,
    ask: &Ask,
) -> Granted {
    let (own_now, capacity) = (meter.advance(state, now), meter.capacity());
    holds.expire(now, |hold| meter.owe(state, hold.last_use(), hold.rest(capacity)));
    settle_unreported(meter, state, holds, own_now, ask);
    for report in &ask.reports {
        let news = holds.settle(report, capacity);
        meter.owe(state, own_now, news);
    }
    // A cost fits if it would after all that is held was spent.
    let mut spent = state.clone();
    meter.owe(&mut spent, own_now, holds.held(capacity));
    let mut outcome = meter.charge(&mut spent, now, ask.cost);
    if let Verdict::Allow { slip: Some(slip), .. } = &mut outcome.verdict {
        *slip = meter.spend(state, own_now, ask.cost);
    }
    let (held, life) = hold(ask, holds, outcome.remaining, own_now, meter.ends(state));
    let standing = Some(Standing { at: own_now, clock: now, state: state.clone().into() });
    Granted { outcome, held, life, standing }
}

/// Counts what is new in what is owed, and remembers how much that was.
fn settle_unreported<M: LeasableAlgorithm>(
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

/// Holds a portion of what is free. How much of it, and for how long.
fn hold(
    ask: &Ask,
    holds: &mut Holds,
    free: u64,
    now: Timestamp,
    ends: Option<Timestamp>,
) -> (u64, Span) {
    const NOTHING: (u64, Span) = (0, Span::ZERO);
    if ask.want == 0 || !ask.owed.is_empty() {
        return NOTHING;
    }
    let life = ask.life.min(Hold::LONGEST);
    if let Some(known) = holds.get(ask.id) {
        if known.is_mark() {
            return NOTHING;
        }
        // Asked twice: whichever answer arrives, it is the same hold and ends at the same time.
        return (known.amount, life.min(usable(known.until.since(now))));
    }
    let life = ends.map_or(life, |end| life.min(usable(end.since(now))));
    let amount = portion(ask.want, free, ask.nodes);
    if amount == 0 || life.is_zero() {
        return NOTHING;
    }
    let until = now + life + margin(life);
    let added = holds.add(Hold { id: ask.id, amount, spent: 0, until });
    if added { (amount, life) } else { NOTHING }
}
