//! What one node knows of one client's limit, and has admitted on the strength of it.
//!
//! The node's side of `docs/decisions/0013-synced-split-and-shards.md`. Time is an argument, and nothing is sent
//! here: a whole fleet runs inside a test.

mod ledger;

use smallvec::SmallVec;
use tidegate_core::rule::{Every, Synced};
use tidegate_core::{Ask, HoldId, Limit, Outcome, Span, Standing, State, Timestamp};

use self::ledger::{Ledger, Lines};

/// A view is used for so many syncs, or so long.
const STALE: (u64, Span) = (10, Span::from_secs(2));
/// So much longer the store remembers what it was told.
const REMEMBERED: Span = Span::from_secs(10);
/// When whatever has no window ends.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// How a client stood when the store was last asked, and what was admitted here since.
#[derive(Debug, Default)]
pub struct View {
    seen: Option<Seen>,
    ledger: Ledger,
    /// The question under way that tells what is owed, if there is one.
    asked: Option<Asked>,
    /// How often something was told, heard or not. What was told can't be taken back.
    tellings: u32,
    /// When a check last looked here.
    used: Timestamp,
    /// When the store was last asked.
    sent: Timestamp,
    /// When the store last confirmed something of the ledger, by this node's clock. A snapshot that was
    /// requested earlier may lack what was confirmed.
    confirmed: Timestamp,
}

/// What the store said.
#[derive(Debug)]
struct Seen {
    standing: Standing,
    /// That, and all of the ledger on top of it.
    state: State,
    /// Between these two, by this node's clock, it was so.
    sent: Timestamp,
    heard: Timestamp,
}

impl Seen {
    /// Whether the answer to a question that was sent then is known to be at least as young as this one.
    ///
    /// A question that was sent after this answer arrived is younger, whatever the store's clock shows: that clock
    /// can be set back, or belong to another server. Only of two that were under way together the store's
    /// time is compared.
    fn precedes(&self, sent: Timestamp, new: &Standing) -> bool {
        self.heard <= sent || self.standing.clock <= new.clock
    }

    /// The client's time when the store's clock shows this: it stands still until a clock that was set back has
    /// caught up with it.
    fn time_at(&self, clock: Timestamp) -> Timestamp {
        self.standing.at.max(clock)
    }

    /// The client's time now, at the least.
    fn least_time(&self, now: Timestamp) -> Timestamp {
        let passed = now.since(self.heard);
        self.time_at(self.standing.clock + passed.saturating_sub(drift(passed)))
    }
}

#[derive(Debug)]
struct Asked {
    id: HoldId,
    sent: Timestamp,
    told: Lines,
}

/// Tokens that were admitted ahead of the store: they can be taken back until it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    tellings: u32,
    until: Timestamp,
    amount: u64,
}

/// What a view says to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Admitted here.
    Yes(Outcome, Advance),
    /// Denied here.
    No(Outcome),
    /// The store has to be asked: this node does not know enough, or has admitted enough without it.
    Unknown,
}

impl View {
    /// Decides a check that costs at least 1 and at most the limit's capacity.
    pub fn take(&mut self, now: Timestamp, limit: &Limit, synced: Synced, cost: u64) -> Taken {
        self.used = now;
        let (most, ahead) = (synced.max_ahead.of(limit), self.ledger.total());
        let Some((time, until)) = self.store_time(now, limit, synced.every) else {
            return Taken::Unknown;
        };
        let Some(seen) = &mut self.seen else { return Taken::Unknown };
        if ahead.saturating_add(cost) > most {
            let outcome = limit.peek(&mut seen.state, time, cost);
            return if outcome.is_allowed() { Taken::Unknown } else { Taken::No(outcome) };
        }
        let outcome = limit.charge(&mut seen.state, time, cost);
        if !outcome.is_allowed() {
            return Taken::No(outcome);
        }
        self.ledger.add(until, cost);
        let advance = Advance { tellings: self.tellings, until, amount: cost };
        Taken::Yes(outcome, advance)
    }

    /// Answers what a check would be told if this node had admitted nothing ahead, and takes nothing.
    #[must_use]
    pub fn look(
        &mut self,
        now: Timestamp,
        limit: &Limit,
        every: Every,
        cost: u64,
    ) -> Option<Outcome> {
        let (time, _) = self.store_time(now, limit, every)?;
        self.seen.as_mut().map(|seen| limit.peek(&mut seen.state, time, cost))
    }

    /// The store's time, at the least, and the last instant of its window. Nothing if the last answer is too
    /// old, or if it may be either of two windows.
    fn store_time(
        &self,
        now: Timestamp,
        limit: &Limit,
        every: Every,
    ) -> Option<(Timestamp, Timestamp)> {
        let seen = self.seen.as_ref()?;
        let most = now.since(seen.sent);
        if most >= stale(every) {
            return None;
        }
        let time = seen.least_time(now);
        let end = limit.window_end(time);
        if end != limit.window_end(seen.time_at(seen.standing.clock + most + drift(most))) {
            return None;
        }
        Some((time, end.map_or(NEVER, |end| end - Span::MICROSECOND)))
    }

    /// Takes back what was admitted a moment ago, unless the store may know of it. Whether it did.
    pub fn put_back(&mut self, now: Timestamp, limit: &Limit, advance: &Advance) -> bool {
        let taken = self.tellings == advance.tellings
            && self.ledger.take_back(advance.until, advance.amount);
        if taken {
            self.rebuild(now, limit);
        }
        taken
    }

    /// How much was admitted here that the store is not known to know.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        self.ledger.total()
    }

    /// The question under way that tells what is owed, if there is one.
    #[must_use]
    pub fn asking(&self) -> Option<HoldId> {
        self.asked.as_ref().map(|asked| asked.id)
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// A question with a cost, or 0, that tells all that is owed. One at a time; what was told before and not
    /// answered is told again.
    pub fn ask(&mut self, now: Timestamp, id: HoldId, every: Every, cost: u64) -> Ask {
        let (name, owed, told) = self.ledger.tell(id);
        self.tellings = self.tellings.wrapping_add(1);
        self.asked = Some(Asked { id, sent: now, told });
        self.sent = now;
        Ask { owed, ..exactly(name, every, cost) }
    }

    /// The store has answered the question `id`, which is heard now, about this limit. Nothing changes if
    /// that is not the one that is under way: it was given up.
    pub fn answered(
        &mut self,
        now: Timestamp,
        id: HoldId,
        limit: &Limit,
        standing: Option<Standing>,
    ) {
        let Some(Asked { sent, told, .. }) = self.asked.take_if(|asked| asked.id == id) else {
            return;
        };
        self.ledger.confirm(&told);
        if !told.is_empty() {
            self.confirmed = now;
        }
        match standing {
            Some(new) if self.seen.as_ref().is_none_or(|seen| seen.precedes(sent, &new)) => {
                self.replace(sent, now, limit, new);
            }
            Some(_) if told.is_empty() => {}
            // The snapshot in use may lack what was just confirmed.
            _ => self.unsee(),
        }
    }

    /// Takes over a snapshot from the answer to a question that confirms nothing, sent then and received now.
    ///
    /// It is discarded if it may lack what the store has confirmed to this node, or if it is older than the
    /// one in use.
    pub fn learn(
        &mut self,
        sent: Timestamp,
        now: Timestamp,
        limit: &Limit,
        standing: Option<Standing>,
    ) {
        let Some(new) = standing.filter(|_| sent >= self.confirmed) else { return };
        if self.seen.as_ref().is_none_or(|seen| seen.precedes(sent, &new)) {
            self.replace(sent, now, limit, new);
        }
    }

    fn replace(&mut self, sent: Timestamp, now: Timestamp, limit: &Limit, standing: Standing) {
        let state = standing.state.clone();
        self.seen = Some(Seen { standing, state, sent, heard: now });
        self.rebuild(now, limit);
    }

    /// The question `id` has no answer, or none in time.
    pub fn lost(&mut self, id: HoldId) {
        self.asked.take_if(|asked| asked.id == id);
    }

    /// What was seen is not used again. What is owed still is.
    pub fn unsee(&mut self) {
        self.seen = None;
    }

    /// What the store said, and everything that it does not know on top of it.
    fn rebuild(&mut self, now: Timestamp, limit: &Limit) {
        if let Some(seen) = &mut self.seen {
            let time = seen.least_time(now);
            seen.state = seen.standing.state.clone();
            self.ledger.count(limit, &mut seen.state, time);
        }
    }

    /// Whether the store is to be told something, or there is somebody who wants to know.
    fn has_news(&self) -> bool {
        self.used > self.sent || self.ledger.total() > 0
    }

    /// Whether it is time for a sync.
    #[must_use]
    pub fn is_due(&self, now: Timestamp, every: Every) -> bool {
        !self.is_asking() && self.has_news() && now >= self.sent + every.span()
    }

    /// Whether there is nothing to remember.
    #[must_use]
    pub fn is_over(&self, now: Timestamp, every: Every) -> bool {
        !self.is_asking() && !self.has_news() && now >= self.next(every)
    }

    /// When to look here again if nobody comes.
    #[must_use]
    pub fn next(&self, every: Every) -> Timestamp {
        let wait = if self.has_news() { every.span() } else { stale(every) };
        self.sent + wait
    }
}

/// A question with a cost, and nothing else.
#[must_use]
pub fn exactly(id: HoldId, every: Every, cost: u64) -> Ask {
    let (owed, reports) = (SmallVec::new(), SmallVec::new());
    let life = stale(every).as_micros().saturating_add(REMEMBERED.as_micros());
    let life = Span::from_micros(life);
    Ask { cost, want: 0, id, owed, reports, life, nodes: 1 }
}

/// How long an answer is used.
fn stale(every: Every) -> Span {
    let (times, least) = STALE;
    every.span().checked_mul(times).unwrap_or(least).max(least)
}

/// By how much clocks may have run apart in a time.
fn drift(passed: Span) -> Span {
    Span::from_micros(passed.as_micros() / 100)
}

#[cfg(test)]
mod tests;
