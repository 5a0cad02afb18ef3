//! One node's view of one client's limit, and the usage that the node has admitted by that view.
//!
//! The node's side of `docs/decisions/0013-synced-split-and-shards.md`. Time is an argument, and this module sends
//! nothing: a test can run a whole fleet.

mod unsynced_log;

use smallvec::SmallVec;
use tidegate_core::{LeaseId, LeaseRequest, Limit, Outcome, Span, State, StateSnapshot, Timestamp};
use tidegate_rules::{SyncInterval, SyncSettings};

use self::unsynced_log::{LogEntries, UnsyncedLog};

/// Number of sync intervals for which a snapshot is used.
const SNAPSHOT_TTL_INTERVALS: u64 = 10;
/// Shortest time for which a snapshot is used.
const MIN_SNAPSHOT_TTL: Span = Span::from_secs(2);
/// The store keeps reported usage for this much longer than the TTL of a snapshot.
const REPORT_TTL_MARGIN: Span = Span::from_secs(10);
/// The end of the window of a limit without windows.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// The last snapshot of a client's state in the store, and the usage that this node admitted since then.
#[derive(Debug, Default)]
pub struct ClientView {
    snapshot: Option<StoreSnapshot>,
    log: UnsyncedLog,
    /// The request in flight that reports unsynced usage.
    pending: Option<PendingSync>,
    /// The number of reports, answered or not. Reported usage can't be rolled back.
    reports_sent: u32,
    /// The time of the last check on this node.
    last_check: Timestamp,
    /// The time of the last sync request.
    last_sync: Timestamp,
    /// The time at which the store last confirmed reported usage, by this node's clock. A snapshot that was
    /// requested earlier may lack the confirmed usage.
    last_confirmation: Timestamp,
}

/// The state of a client in the store.
#[derive(Debug)]
struct StoreSnapshot {
    snapshot: StateSnapshot,
    /// The state of `snapshot`, charged with all unsynced usage.
    state: State,
    /// The time at which the request was sent, by this node's clock.
    sent: Timestamp,
    /// The time at which the reply arrived. The store took the snapshot between `sent` and `received`.
    received: Timestamp,
}

impl StoreSnapshot {
    /// Returns whether `new`, requested at `sent`, is at least as new as this snapshot.
    ///
    /// A snapshot that was requested after this one arrived is newer. The store's time is compared only for two
    /// requests that were in flight together, because its clock can be set back or belong to another server.
    fn precedes(&self, sent: Timestamp, new: &StateSnapshot) -> bool {
        self.received <= sent || self.snapshot.clock <= new.clock
    }

    /// Returns the client's time at a time of the store's clock. It never runs backwards, even if the clock is set
    /// back.
    fn time_at(&self, clock: Timestamp) -> Timestamp {
        self.snapshot.at.max(clock)
    }

    /// Returns a lower bound of the client's time at `now`.
    fn earliest_time(&self, now: Timestamp) -> Timestamp {
        let passed = now.since(self.received);
        self.time_at(self.snapshot.clock + passed.saturating_sub(max_drift(passed)))
    }
}

/// A sync request in flight.
#[derive(Debug)]
struct PendingSync {
    id: LeaseId,
    sent: Timestamp,
    reported: LogEntries,
}

/// Tokens that were admitted without the store. They can be rolled back until they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsyncedDebit {
    reports_sent: u32,
    until: Timestamp,
    amount: u64,
}

/// The decision of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncDecision {
    /// Admitted without the store.
    Admitted(Outcome, UnsyncedDebit),
    /// Denied without the store.
    Denied(Outcome),
    /// The check has to go to the store: the snapshot is too old, or unsynced usage would exceed `max_ahead`.
    AskStore,
}

impl ClientView {
    /// Decides a check with a cost of at least 1 and at most the limit's capacity.
    pub fn take(
        &mut self,
        now: Timestamp,
        limit: &Limit,
        synced: SyncSettings,
        cost: u64,
    ) -> SyncDecision {
        self.last_check = now;
        let (max_ahead, ahead) = (synced.max_ahead.of(limit), self.log.total());
        let Some((time, until)) = self.store_time(now, limit, synced.every) else {
            return SyncDecision::AskStore;
        };
        let Some(current) = &mut self.snapshot else { return SyncDecision::AskStore };
        if ahead.saturating_add(cost) > max_ahead {
            let outcome = limit.peek(&mut current.state, time, cost);
            return if outcome.is_allowed() {
                SyncDecision::AskStore
            } else {
                SyncDecision::Denied(outcome)
            };
        }
        let outcome = limit.charge(&mut current.state, time, cost);
        if !outcome.is_allowed() {
            return SyncDecision::Denied(outcome);
        }
        self.log.add(until, cost);
        let debit = UnsyncedDebit { reports_sent: self.reports_sent, until, amount: cost };
        SyncDecision::Admitted(outcome, debit)
    }

    /// Returns the outcome of a check, and takes nothing. `max_ahead` is not applied. `None` if the snapshot can't be
    /// used.
    #[must_use]
    pub fn peek(
        &mut self,
        now: Timestamp,
        limit: &Limit,
        every: SyncInterval,
        cost: u64,
    ) -> Option<Outcome> {
        let (time, _) = self.store_time(now, limit, every)?;
        self.snapshot.as_mut().map(|current| limit.peek(&mut current.state, time, cost))
    }

    /// Returns a lower bound of the store's time, and the last instant of its window. `None` if the snapshot is too
    /// old, or if clock drift leaves two possible windows.
    fn store_time(
        &self,
        now: Timestamp,
        limit: &Limit,
        every: SyncInterval,
    ) -> Option<(Timestamp, Timestamp)> {
        let current = self.snapshot.as_ref()?;
        let max_age = now.since(current.sent);
        if max_age >= snapshot_ttl(every) {
            return None;
        }
        let time = current.earliest_time(now);
        let latest = current.time_at(current.snapshot.clock + max_age + max_drift(max_age));
        let end = limit.window_end(time);
        if end != limit.window_end(latest) {
            return None;
        }
        Some((time, end.map_or(NEVER, |end| end - Span::MICROSECOND)))
    }

    /// Removes a debit from the unsynced usage, unless it may have been reported. Returns whether it was removed.
    pub fn roll_back(&mut self, now: Timestamp, limit: &Limit, debit: &UnsyncedDebit) -> bool {
        let removed =
            self.reports_sent == debit.reports_sent && self.log.remove(debit.until, debit.amount);
        if removed {
            self.rebuild(now, limit);
        }
        removed
    }

    /// Returns the admitted usage that the store has not confirmed.
    #[must_use]
    pub fn unsynced(&self) -> u64 {
        self.log.total()
    }

    /// Returns the id of the request in flight that reports unsynced usage.
    #[must_use]
    pub fn pending(&self) -> Option<LeaseId> {
        self.pending.as_ref().map(|pending| pending.id)
    }

    /// Returns whether a request that reports unsynced usage is in flight.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Creates a request that reports all unsynced usage, with the cost of a check or 0. One such request is in
    /// flight at a time. Reports without a reply are repeated.
    pub fn request(
        &mut self,
        now: Timestamp,
        id: LeaseId,
        every: SyncInterval,
        cost: u64,
    ) -> LeaseRequest {
        let (report_id, unreported, reported) = self.log.report(id);
        self.reports_sent = self.reports_sent.wrapping_add(1);
        self.pending = Some(PendingSync { id, sent: now, reported });
        self.last_sync = now;
        LeaseRequest { unreported, ..exact_request(report_id, every, cost) }
    }

    /// Applies the store's reply to request `id` under this limit. A reply to any other request than the one in flight
    /// is ignored.
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
            self.last_confirmation = now;
        }
        match snapshot {
            Some(new)
                if self.snapshot.as_ref().is_none_or(|current| current.precedes(sent, &new)) =>
            {
                self.replace(sent, now, limit, new);
            }
            Some(_) if reported.is_empty() => {}
            // The current snapshot may lack the usage that was just confirmed.
            _ => self.invalidate(),
        }
    }

    /// Applies the snapshot of a reply that confirms no usage, to a request that was sent at `sent`.
    ///
    /// The snapshot is discarded if it may lack confirmed usage of this node, or if it is older than the current one.
    pub fn on_snapshot(
        &mut self,
        sent: Timestamp,
        now: Timestamp,
        limit: &Limit,
        snapshot: Option<StateSnapshot>,
    ) {
        let Some(new) = snapshot.filter(|_| sent >= self.last_confirmation) else { return };
        if self.snapshot.as_ref().is_none_or(|current| current.precedes(sent, &new)) {
            self.replace(sent, now, limit, new);
        }
    }

    fn replace(&mut self, sent: Timestamp, now: Timestamp, limit: &Limit, snapshot: StateSnapshot) {
        let state = snapshot.state.clone();
        self.snapshot = Some(StoreSnapshot { snapshot, state, sent, received: now });
        self.rebuild(now, limit);
    }

    /// Ends request `id` after a failure. Its usage stays unsynced.
    pub fn on_failure(&mut self, id: LeaseId) {
        self.pending.take_if(|pending| pending.id == id);
    }

    /// Drops the snapshot. Unsynced usage stays.
    pub fn invalidate(&mut self) {
        self.snapshot = None;
    }

    /// Recomputes the state: the snapshot, charged with all unsynced usage.
    fn rebuild(&mut self, now: Timestamp, limit: &Limit) {
        if let Some(current) = &mut self.snapshot {
            let time = current.earliest_time(now);
            current.state = current.snapshot.state.clone();
            self.log.charge(limit, &mut current.state, time);
        }
    }

    /// Returns whether there is usage to report, or the client was checked since the last sync.
    fn needs_sync(&self) -> bool {
        self.last_check > self.last_sync || self.log.total() > 0
    }

    /// Returns whether a sync is due.
    #[must_use]
    pub fn is_due(&self, now: Timestamp, every: SyncInterval) -> bool {
        !self.is_pending() && self.needs_sync() && now >= self.last_sync + every.span()
    }

    /// Returns whether the view can be dropped: it has no usage to report, and its snapshot is too old.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp, every: SyncInterval) -> bool {
        !self.is_pending() && !self.needs_sync() && now >= self.next_due(every)
    }

    /// Returns the time at which the view is synced or dropped if no further check arrives.
    #[must_use]
    pub fn next_due(&self, every: SyncInterval) -> Timestamp {
        let wait = if self.needs_sync() { every.span() } else { snapshot_ttl(every) };
        self.last_sync + wait
    }
}

/// Creates a request with a cost and without a report.
#[must_use]
pub fn exact_request(id: LeaseId, every: SyncInterval, cost: u64) -> LeaseRequest {
    let (unreported, reports) = (SmallVec::new(), SmallVec::new());
    let ttl = snapshot_ttl(every).as_micros().saturating_add(REPORT_TTL_MARGIN.as_micros());
    let ttl = Span::from_micros(ttl);
    LeaseRequest { cost, requested: 0, id, unreported, reports, ttl, fleet_size: 1 }
}

/// Returns the time for which a snapshot is used.
fn snapshot_ttl(every: SyncInterval) -> Span {
    let ttl = every.span().checked_mul(SNAPSHOT_TTL_INTERVALS);
    ttl.unwrap_or(MIN_SNAPSHOT_TTL).max(MIN_SNAPSHOT_TTL)
}

/// Returns the largest drift between two clocks in a time: 1 %.
fn max_drift(passed: Span) -> Span {
    Span::from_micros(passed.as_micros() / 100)
}

#[cfg(test)]
mod tests;
