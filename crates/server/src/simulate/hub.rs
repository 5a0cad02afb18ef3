//! The store that simulated nodes share, and each node's way to it: as Redis is for those that serve, without
//! a network. It has its own time, answers at once or not at all, and knows which nodes there are.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::{
    Answer, Answers, Ask, Charge, Clock, Granted, Heard, Key, Keyer, Limit, ManualClock,
    Membership, MemoryStore, Refund, Share, Span, Stake, Store, StoreError, Timestamp,
};

use super::weather::Weather;

/// How long the store remembers a node that is silent, as Redis does.
const SILENCE: Span = Span::from_secs(4);
/// So often a node says that it is there.
pub(super) const PULSE: Span = Span::from_secs(1);
/// And so soon again if it was not heard.
pub(super) const INSISTING: Span = Span::from_millis(250);

/// What all nodes share.
pub(super) struct Hub {
    store: MemoryStore,
    time: ManualClock,
    start: Timestamp,
    weather: Weather,
    failed: StoreError,
    /// For each node until when it is known, and since which pulse.
    known: Mutex<Vec<Option<(Timestamp, u64)>>>,
}

/// One node's way to the store.
pub(super) struct Branch {
    hub: Arc<Hub>,
    index: u64,
    /// The node's own.
    clock: Clock,
    membership: Mutex<Arc<Membership>>,
}

impl Hub {
    /// A store that has been there for a while.
    pub(super) fn new(nodes: usize, start: Timestamp, weather: Weather) -> Self {
        let time = ManualClock::starting_at(start);
        let (store, reason) = ("store".into(), "it is away".into());
        Self {
            store: MemoryStore::new(time.clock()),
            time,
            start,
            weather,
            failed: StoreError::Unavailable { store, reason },
            known: Mutex::new(vec![None; nodes]),
        }
    }

    /// Moves its time to `now`.
    pub(super) fn advance(&self, now: Timestamp) {
        self.time.advance(now.since(self.time.now()));
    }

    fn reach(&self) -> Result<&MemoryStore, StoreError> {
        match self.weather.is_down(self.start, self.time.now()) {
            false => Ok(&self.store),
            true => Err(self.failed.clone()),
        }
    }

    fn nodes(&self) -> u64 {
        self.known.lock().len() as u64
    }

    /// A node says at `now` that it is there. Which part of the fleet it is, and since when it is known.
    fn register(&self, index: u64, now: Timestamp) -> (Share, u64) {
        let mut known = self.known.lock();
        for node in known.iter_mut() {
            node.take_if(|(until, _)| *until <= now);
        }
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let since = known[place].map_or(now.as_micros(), |(_, since)| since);
        known[place] = Some((now + SILENCE, since));
        let alive = |nodes: &[Option<_>]| nodes.iter().flatten().count() as u64;
        (Share { index: alive(&known[..place]), of: alive(&known) }, since)
    }
}

impl Branch {
    pub(super) fn new(hub: &Arc<Hub>, index: u64, clock: Clock) -> Self {
        let membership = Mutex::new(Arc::new(Membership::new(SILENCE)));
        Self { hub: Arc::clone(hub), index, clock, membership }
    }

    /// Has the node be there for so long before the start, and longer than it takes to be trusted.
    pub(super) fn settle(&self, long: Span, ahead: Span) {
        let (start, of) = (self.hub.start, self.hub.nodes());
        let before = long.as_micros().saturating_add(4 * SILENCE.as_micros());
        let joined = Timestamp::from_micros(start.as_micros().saturating_sub(before));
        let (share, since) = (Share { index: self.index, of }, joined.as_micros());
        if let Some(known) =
            self.hub.known.lock().get_mut(usize::try_from(self.index).unwrap_or(usize::MAX))
        {
            *known = Some((start + SILENCE, since));
        }
        let mut membership = self.membership.lock();
        let membership = Arc::make_mut(&mut membership);
        // For all the pulses in between one is enough: before the first share is its own, the last is heard.
        for (sent, received) in [(joined, joined), (start, joined + Span::MICROSECOND)] {
            let (sent, received) = (sent + ahead, received + ahead);
            membership.heard(Heard { sent, received, share, since });
        }
    }

    /// Says at `now` that this node is there. Whether it was heard.
    pub(super) fn pulse(&self, now: Timestamp, ahead: Span) -> bool {
        if self.hub.weather.is_down(self.hub.start, now) {
            return false;
        }
        let ((share, since), at) = (self.hub.register(self.index, now), now + ahead);
        let heard = Heard { sent: at, received: at, share, since };
        Arc::make_mut(&mut self.membership.lock()).heard(heard);
        true
    }
}

impl Store for Branch {
    fn keyer(&self) -> Keyer {
        // All nodes agree, and so does the same simulation on another day.
        Keyer::Local { seed: [7; 32] }
    }

    async fn charge(&self, charges: &[Charge<'_>]) -> Answers {
        match self.hub.reach() {
            Ok(store) => store.charge(charges).await,
            Err(error) => charges.iter().map(|_| Answer::Failed(error.clone())).collect(),
        }
    }

    fn leases(&self) -> bool {
        true
    }

    async fn ask(&self, asks: &[(Key, Arc<Limit>, Ask)]) -> Vec<Result<Granted, StoreError>> {
        match self.hub.reach() {
            Ok(store) => store.ask(asks).await,
            Err(error) => vec![Err(error); asks.len()],
        }
    }

    fn share(&self) -> Share {
        Share { index: self.index, of: self.hub.nodes() }
    }

    fn stake(&self) -> Option<Stake> {
        let membership = Arc::clone(&self.membership.lock());
        Some(Stake { at: self.clock.now(), membership })
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.hub.reach()?.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        if let Ok(store) = self.hub.reach() {
            for refund in &refunds {
                store.refund_one(refund);
            }
        }
    }

    async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        self.hub.reach()?.renew(slots).await
    }

    async fn forget(&self, key: Key) -> Result<(), StoreError> {
        self.hub.reach()?.forget(key).await
    }
}
