//! One node's view of one client's limit, and what it has admitted by that view.
//!
//! The node's side of `docs/decisions/0013-synced-split-and-shards.md`. Time is an argument, and nothing is sent
//! here: a whole fleet runs inside a test.

mod unsynced_log;

use smallvec::SmallVec;
use tidegate_core::{LeaseId, LeaseRequest, Limit, Outcome, Span, State, StateSnapshot, Timestamp};
use tidegate_rules::{SyncInterval, SyncSettings};

use self::unsynced_log::{LogEntries, UnsyncedLog};

/// A snapshot is used for this many sync intervals, and at least for this time.
const STALE_AFTER: (u64, Span) = (10, Span::from_secs(2));
/// The store keeps reported usage this much longer than snapshots are used.
const REPORT_TTL_MARGIN: Span = Span::from_secs(10);
/// The end of a limit without windows.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// The last snapshot of a client's state in the store, and what was admitted here since.
#[derive(Debug, Default)]
pub struct ClientView {
    snapshot: Option<StoreSnapshot>,
    log: UnsyncedLog,
    /// The request in flight that reports unsynced usage.
    pending: Option<PendingSync>,
    /// The number of reports, answered or not. Reported usage can't be taken back.
    reports_sent: u32,
    /// When the client was last checked here.
    used: Timestamp,
    /// When the last request was sent.
    sent: Timestamp,
    /// When the store last confirmed reported usage, by this node's clock. A snapshot that was
    /// requested earlier may lack what was confirmed.
    confirmed: Timestamp,
}

/// The state of a client in the store.
#[derive(Debug)]
struct StoreSnapshot {
    snapshot: StateSnapshot,
    /// The same with all unsynced usage.
    state: State,
    /// The snapshot was taken between these two, by this node's clock.
    sent: Timestamp,
    received: Timestamp,
}

impl StoreSnapshot {
    /// Returns whether the reply to a request that was sent then is at least as new as this snapshot.
    ///
    /// A request that was sent after this snapshot arrived is newer, whatever the store's clock shows: that
    /// clock can be set back, or belong to another server. The store's time is compared only for two
    /// requests that were in flight together.
    fn precedes(&self, sent: Timestamp, new: &StateSnapshot) -> bool {
        self.received <= sent || self.snapshot.clock <= new.clock
    }

    /// Returns the client's time at a time of the store's clock. It does not go back with a clock that was
    /// set back.
    fn time_at(&self, clock: Timestamp) -> Timestamp {
        self.snapshot.at.max(clock)
    }

    /// Returns a lower bound of the client's time now.
    fn least_time(&self, now: Timestamp) -> Timestamp {
        let passed = now.since(self.received);
        self.time_at(self.snapshot.clock + passed.saturating_sub(drift(passed)))
    }
}

/// A request in flight.
#[derive(Debug)]
struct PendingSync {
    id: LeaseId,
    sent: Timestamp,
    reported: LogEntries,
}

/// Tokens that were admitted without the store. They can be taken back until they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsyncedDebit {
    reports_sent: u32,
    until: Timestamp,
    amount: u64,
}

/// The decision of a view about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncDecision {
    /// Admitted here.
    Admitted(Outcome, UnsyncedDebit),
    /// Denied here.
    Denied(Outcome),
    /// The store has to be asked: the snapshot is too old, or enough was admitted without the store.
    AskStore,
}

impl ClientView {
    /// Decides a check that costs at least 1 and at most the limit's capacity.
    pub fn take(
        &mut self,
        now: Timestamp,
        limit: &Limit,
        synced: SyncSettings,
        cost: u64,
    ) -> SyncDecision {
        self.used = now;
        let (most, ahead) = (synced.max_ahead.of(limit), self.log.total());
        let Some((time, until)) = self.store_time(now, limit, synced.every) else {
            return SyncDecision::AskStore;
        };
        let Some(seen) = &mut self.snapshot else { return SyncDecision::AskStore };
        if ahead.saturating_add(cost) > most {
            let outcome = limit.peek(&mut seen.state, time, cost);
            return if outcome.is_allowed() {
                SyncDecision::AskStore
            } else {
                SyncDecision::Denied(outcome)
            };
        }
        let outcome = limit.charge(&mut seen.state, time, cost);
        if !outcome.is_allowed() {
            return SyncDecision::Denied(outcome);
        }
        self.log.add(until, cost);
        let debit = UnsyncedDebit { reports_sent: self.reports_sent, until, amount: cost };
        SyncDecision::Admitted(outcome, debit)
    }

    /// Answers what a check would be answered without the bound on unsynced usage, and takes nothing.
    #[must_use]
    pub fn peek(
        &mut self,
        now: Timestamp,
        limit: &Limit,
        every: SyncInterval,
        cost: u64,
    ) -> Option<Outcome> {
        let (time, _) = self.store_time(now, limit, every)?;
        self.snapshot.as_mut().map(|seen| limit.peek(&mut seen.state, time, cost))
    }

    /// Returns a lower bound of the store's time, and the last instant of its window. `None` if the snapshot
    /// is too old, or if the time may be in either of two windows.
    fn store_time(
        &self,
        now: Timestamp,
        limit: &Limit,
        every: SyncInterval,
    ) -> Option<(Timestamp, Timestamp)> {
        let seen = self.snapshot.as_ref()?;
        let most = now.since(seen.sent);
        if most >= stale(every) {
            return None;
        }
        let time = seen.least_time(now);
        let end = limit.window_end(time);
        if end != limit.window_end(seen.time_at(seen.snapshot.clock + most + drift(most))) {
            return None;
        }
        Some((time, end.map_or(NEVER, |end| end - Span::MICROSECOND)))
    }

    /// Takes back what was admitted, unless it may have been reported. Returns whether it did.
    pub fn roll_back(&mut self, now: Timestamp, limit: &Limit, debit: &UnsyncedDebit) -> bool {
        let taken = self.reports_sent == debit.reports_sent
            && self.log.take_back(debit.until, debit.amount);
        if taken {
            self.rebuild(now, limit);
        }
        taken
    }

    /// Returns how much was admitted here that the store has not confirmed.
    #[must_use]
    pub fn unsynced(&self) -> u64 {
        self.log.total()
    }

    /// Returns the id of the request in flight that reports unsynced usage.
    #[must_use]
    pub fn pending(&self) -> Option<LeaseId> {
        self.pending.as_ref().map(|pending| pending.id)
    }

    /// Returns whether such a request is in flight.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Makes a request with a cost, or 0, that reports all unsynced usage. One is in flight at a time; reports
    /// without a reply are sent again.
    pub fn request(
        &mut self,
        now: Timestamp,
        id: LeaseId,
        every: SyncInterval,
        cost: u64,
    ) -> LeaseRequest {
        let (name, unreported, reported) = self.log.report(id);
        self.reports_sent = self.reports_sent.wrapping_add(1);
        self.pending = Some(PendingSync { id, sent: now, reported });
        self.sent = now;
        LeaseRequest { unreported, ..exact_request(name, every, cost) }
    }

    /// Applies the store's reply to request `id` under this limit. Nothing changes if that is not the one in
    /// flight: it was given up.
    pub fn on_reply(
        &mut self,
        now: Timestamp,
        id: LeaseId,
        limit: &Limit,
        snapshot: Option<StateSnapshot>,
    ) {
        let Some(PendingSync { sent, reported, .. }) =
            self.pending.take_if(|pending| pending.id == id)
        else {
            return;
        };
        self.log.confirm(&reported);
        if !reported.is_empty() {
            self.confirmed = now;
        }
        match snapshot {
            Some(new) if self.snapshot.as_ref().is_none_or(|seen| seen.precedes(sent, &new)) => {
                self.replace(sent, now, limit, new);
            }
            Some(_) if reported.is_empty() => {}
            // The snapshot in use may lack what was just confirmed.
            _ => self.invalidate(),
        }
    }

    /// Uses the snapshot of a reply that confirms nothing, to a request that was sent then.
    ///
    /// It is discarded if it may lack what the store has confirmed to this node, or if it is older than the
    /// one in use.
    pub fn learn(
        &mut self,
        sent: Timestamp,
        now: Timestamp,
        limit: &Limit,
        snapshot: Option<StateSnapshot>,
    ) {
        let Some(new) = snapshot.filter(|_| sent >= self.confirmed) else { return };
        if self.snapshot.as_ref().is_none_or(|seen| seen.precedes(sent, &new)) {
            self.replace(sent, now, limit, new);
        }
    }

    fn replace(&mut self, sent: Timestamp, now: Timestamp, limit: &Limit, snapshot: StateSnapshot) {
        let state = snapshot.state.clone();
        self.snapshot = Some(StoreSnapshot { snapshot, state, sent, received: now });
        self.rebuild(now, limit);
    }

    /// Ends request `id` without a reply.
    pub fn on_failure(&mut self, id: LeaseId) {
        self.pending.take_if(|pending| pending.id == id);
    }

    /// Drops the snapshot. Unsynced usage stays.
    pub fn invalidate(&mut self) {
        self.snapshot = None;
    }

    /// Adds all unsynced usage to the snapshot.
    fn rebuild(&mut self, now: Timestamp, limit: &Limit) {
        if let Some(seen) = &mut self.snapshot {
            let time = seen.least_time(now);
            seen.state = seen.snapshot.state.clone();
            self.log.count(limit, &mut seen.state, time);
        }
    }

    /// Returns whether there is usage to report, or the client was checked since the last request.
    fn has_news(&self) -> bool {
        self.used > self.sent || self.log.total() > 0
    }

    /// Returns whether it is time for a sync.
    #[must_use]
    pub fn is_due(&self, now: Timestamp, every: SyncInterval) -> bool {
        !self.is_pending() && self.has_news() && now >= self.sent + every.span()
    }

    /// Returns whether the view can be dropped.
    #[must_use]
    pub fn is_over(&self, now: Timestamp, every: SyncInterval) -> bool {
        !self.is_pending() && !self.has_news() && now >= self.next(every)
    }

    /// Returns when the view is due next if the client is not checked.
    #[must_use]
    pub fn next(&self, every: SyncInterval) -> Timestamp {
        let wait = if self.has_news() { every.span() } else { stale(every) };
        self.sent + wait
    }
}

/// Makes a request with a cost that reports nothing.
#[must_use]
pub fn exact_request(id: LeaseId, every: SyncInterval, cost: u64) -> LeaseRequest {
    let (unreported, reports) = (SmallVec::new(), SmallVec::new());
    let ttl = stale(every).as_micros().saturating_add(REPORT_TTL_MARGIN.as_micros());
    let ttl = Span::from_micros(ttl);
    LeaseRequest { cost, requested: 0, id, unreported, reports, ttl, fleet_size: 1 }
}

/// Returns how long a snapshot is used.
fn stale(every: SyncInterval) -> Span {
    let (times, least) = STALE_AFTER;
    every.span().checked_mul(times).unwrap_or(least).max(least)
}

/// Returns how far clocks may have drifted apart in a time.
fn drift(passed: Span) -> Span {
    Span::from_micros(passed.as_micros() / 100)
}

#[cfg(test)]
mod tests;
