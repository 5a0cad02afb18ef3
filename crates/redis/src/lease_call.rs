//! A lease request that a caller waits for: its encoding, and the meaning of the script's reply.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use tidegate_core::hold::Granted;
use tidegate_core::{Ask, Hold, Holds, Key, Limit, Quota, State, Timestamp};
use tokio::sync::oneshot;

use super::lease_codec;
use super::reply_guard::SlotReleaser;
use super::script::{Script, Scripts};
use super::script_batch::{ScriptBatch, ScriptRequest};
use super::shared::{RedisCounters, RedisShared};
use super::state_codec::{self, LimitTag, NumberReader, Unreadable, put_numbers};
use tidegate_limiter::store::StoreError;

/// Later than any time that is reported: the largest number that Lua counts exactly.
const MAX_TIME: u64 = (1 << 53) - 1;

// The first byte of the script's reply to a request.
const DECIDED: u64 = 1;
const FOREIGN: u64 = 2;
const NO_STRING: u64 = 3;

/// The result of a lease request.
pub(crate) type LeaseResult = Result<Granted, StoreError>;

/// A lease request, and the state that it takes over from another limit.
pub(crate) struct LeaseCall {
    key: Key,
    limit: Arc<Limit>,
    ask: Ask,
    migration: Option<LeaseMigration>,
    reply: oneshot::Sender<LeaseResult>,
}

/// The sections of a state and of leases under the limit of the request.
struct LeaseMigration {
    state: SectionMigration,
    leases: SectionMigration,
}

/// A section that was found, and the one to replace it; either is empty if there is none.
struct SectionMigration {
    found: Vec<u8>,
    migrated: Vec<u8>,
}

/// The script's reply to one request.
enum LeaseReply {
    Decided(Granted),
    /// Nothing was done: first the state has to be taken over.
    Migrate(LeaseMigration),
    Unreadable(Unreadable),
}

impl LeaseCall {
    /// Returns a request and the receiver of its result.
    pub(crate) fn new(
        (key, limit, ask): &(Key, Arc<Limit>, Ask),
    ) -> (Self, oneshot::Receiver<LeaseResult>) {
        let mut ask = ask.clone();
        // A node with more reports sends the rest next time.
        ask.reports.truncate(usize::from(u16::MAX));
        // Totals: the later ones contain the earlier ones.
        let surplus = ask.owed.len().saturating_sub(usize::from(u8::MAX));
        ask.owed.drain(..surplus);
        if !ask.owed.is_empty() {
            ask.want = 0;
        }
        let (reply, receiver) = oneshot::channel();
        (Self { key: *key, limit: Arc::clone(limit), ask, migration: None, reply }, receiver)
    }

    fn complete(self, result: LeaseResult) {
        // The caller may no longer wait: the lease then expires.
        let _ = self.reply.send(result);
    }

    /// Returns whether there is a cost that may fit.
    fn charges(&self) -> bool {
        (1..=self.limit.capacity()).contains(&self.ask.cost)
    }

    /// Returns the sizes that a lease can have, largest first, each with the tokens that have to be free for it.
    ///
    /// A lease is at most half of an even share of what is free, or one token: its size times twice the number of
    /// nodes has to be free, or one token.
    fn portions(&self) -> impl Iterator<Item = (u64, u64)> {
        let (want, capacity) = (self.ask.want, self.limit.capacity());
        let parts = self.ask.nodes.max(1).saturating_mul(2);
        let halves = (0..u64::BITS).map(move |halvings| want >> halvings);
        let portions = halves.take_while(|portion| *portion > 0).map(move |portion| {
            (portion, if portion == 1 { 1 } else { portion.saturating_mul(parts) })
        });
        portions.filter(move |(_, free)| *free <= capacity)
    }

    /// Returns the call as the lease script reads it.
    fn encode(&self) -> Vec<u8> {
        let Self { limit, ask, .. } = self;
        let tag = LimitTag::of(limit);
        let mut text = Vec::new();
        state_codec::put_tag(&mut text, &tag);
        state_codec::put_terms(&mut text, &limit.terms(ask.cost));
        text.push(u8::from(self.charges()));
        text.push(u8::try_from(ask.owed.len()).unwrap_or(u8::MAX));
        text.extend(u16::try_from(ask.reports.len()).unwrap_or(u16::MAX).to_be_bytes());
        lease_codec::put_name(&mut text, ask.id);
        put_numbers(&mut text, &[ask.life.min(Hold::LONGEST).as_micros()]);
        for owed in &ask.owed {
            let total = owed.total.min(limit.countable());
            put_numbers(&mut text, &[owed.at.as_micros().min(MAX_TIME), total]);
            lease_codec::put_weight(&mut text, limit, total);
        }
        for report in &ask.reports {
            lease_codec::put_name(&mut text, report.id);
            text.push(u8::from(report.closed));
            // No hold is larger.
            put_numbers(&mut text, &[report.spent.min(Quota::MAX_AMOUNT)]);
            lease_codec::put_span(&mut text, limit, report.spent);
        }
        for (portion, free) in self.portions() {
            put_numbers(&mut text, &[portion]);
            lease_codec::put_span(&mut text, limit, portion);
            lease_codec::put_span(&mut text, limit, free);
        }
        text
    }

    fn read(&self, now: Timestamp, rest: &mut NumberReader<'_>) -> Option<LeaseReply> {
        let read = match rest.number(1)? {
            DECIDED => {
                let (charged, granted) = (rest.number(1)? == 1, rest.number(1)?);
                let [state, holds] = [rest.text()?, rest.text()?];
                self.replay(now, charged, granted, state, holds)
            }
            FOREIGN => {
                let found = [rest.text()?, rest.text()?];
                self.migrate(now, found).map(LeaseReply::Migrate)
            }
            NO_STRING => Err("it is no string"),
            _ => return None,
        };
        Some(read.unwrap_or_else(LeaseReply::Unreadable))
    }

    /// Decides the request again from the state before it: the script reports what it did, and the core computes the
    /// grant.
    fn replay(
        &self,
        now: Timestamp,
        charged: bool,
        granted: u64,
        state: &[u8],
        held: &[u8],
    ) -> Result<LeaseReply, Unreadable> {
        let mut state = self.state(state).ok_or("its length is wrong")?;
        let mut holds = self.holds(held).ok_or("the length of its holds is wrong")?;
        let before = holds.get(self.ask.id).copied().filter(|hold| hold.until > now);
        let told = self.limit.ask(&mut state, &mut holds, now, &self.ask);
        let place = usize::try_from(granted).unwrap_or(usize::MAX);
        let portion = match place.checked_sub(1) {
            Some(place) => self.portions().nth(place).map(|(portion, _)| portion),
            None => before.filter(|_| told.held > 0).map(|hold| hold.amount).or(Some(0)),
        };
        let spent = self.charges() && told.outcome.is_allowed();
        if spent == charged && portion == Some(told.held) {
            Ok(LeaseReply::Decided(told))
        } else {
            Err("script and node do not agree on it")
        }
    }

    fn state(&self, raw: &[u8]) -> Option<State> {
        state_codec::read(&self.limit, after_tag(raw)?)
    }

    fn holds(&self, raw: &[u8]) -> Option<Holds> {
        lease_codec::read(&self.limit, after_tag(raw)?)
    }

    /// Returns the state that this limit takes over from the one that was used last. Unless it has leases of its own, it
    /// begins with those of the other.
    fn migrate(&self, now: Timestamp, found: [&[u8]; 2]) -> Result<LeaseMigration, Unreadable> {
        let (limit, tag) = (&*self.limit, LimitTag::of(&self.limit));
        let (own, migrated) = state_codec::take_over(limit, &tag, found[0], now)?;
        let state = SectionMigration { found: own.to_vec(), migrated: migrated.to_vec() };
        let sections = state_codec::sections(found[1])?;
        let own = state_codec::find_section(&sections, &tag).map(|place| sections[place].to_vec());
        let copied = match (&own, sections.first()) {
            (Some(own), _) => own.clone(),
            (None, Some(last)) => lease_codec::write(&tag, limit, &lease_codec::parse(last)?.1),
            (None, None) => Vec::new(),
        };
        let holds = SectionMigration { found: own.unwrap_or_default(), migrated: copied };
        Ok(LeaseMigration { state, leases: holds })
    }
}

/// Returns what follows the tag that the script compared.
fn after_tag(raw: &[u8]) -> Option<&[u8]> {
    match raw.get(1) {
        Some(length) => raw.get(usize::from(*length)..),
        None => Some(raw),
    }
}

impl ScriptRequest for LeaseCall {
    fn key(&self) -> Option<Key> {
        Some(self.key)
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn fail(self, error: StoreError) {
        self.complete(Err(error));
    }
}

/// Lease requests that travel in one script call.
#[derive(Default)]
pub(crate) struct LeaseBatch(Vec<LeaseCall>);

impl LeaseBatch {
    /// The most requests of one script call.
    const MAX_REQUESTS: usize = 64;
}

impl ScriptBatch for LeaseBatch {
    type Request = LeaseCall;

    const MAX_IN_FLIGHT: usize = 2;

    fn script(scripts: &Scripts) -> &Script {
        &scripts.lease
    }

    fn calls(counters: &RedisCounters) -> &AtomicU64 {
        &counters.ask_calls
    }

    fn push(&mut self, request: LeaseCall) -> Result<(), LeaseCall> {
        if self.0.len() >= Self::MAX_REQUESTS {
            return Err(request);
        }
        self.0.push(request);
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_uniform(&self) -> bool {
        self.0.len() <= 1
    }

    fn encode(&self, shared: &RedisShared) -> (Vec<String>, Vec<Vec<u8>>) {
        let keys = |call: &LeaseCall| [shared.counter_key(call.key), shared.lease_key(call.key)];
        let keys = self.0.iter().flat_map(keys).collect();
        let mut arguments: Vec<Vec<u8>> = self.0.iter().map(LeaseCall::encode).collect();
        for (place, call) in (1_usize..).zip(&self.0) {
            if let Some(LeaseMigration { state, leases }) = &call.migration {
                arguments.push(place.to_string().into_bytes());
                for section in [state, leases] {
                    arguments.extend([section.found.clone(), section.migrated.clone()]);
                }
            }
        }
        (keys, arguments)
    }

    fn complete(
        self,
        store: &Arc<str>,
        _: &Weak<dyn SlotReleaser>,
        reply: &[u8],
    ) -> Vec<LeaseCall> {
        let corrupt = |reason: &str| {
            Err(StoreError::Corrupt { store: Arc::clone(store), reason: reason.into() })
        };
        let mut rest = NumberReader(reply);
        let now = rest.time();
        let mut again = Vec::new();
        for mut call in self.0 {
            match now.and_then(|now| call.read(now, &mut rest)) {
                Some(LeaseReply::Decided(granted)) => call.complete(Ok(granted)),
                // The script decides on a state that comes with its migration, so each is sent again once.
                Some(LeaseReply::Migrate(migration)) if call.migration.is_none() => {
                    call.migration = Some(migration);
                    again.push(call);
                }
                Some(LeaseReply::Migrate(_)) => call.complete(corrupt("its bytes can't be read")),
                Some(LeaseReply::Unreadable(reason)) => call.complete(corrupt(reason)),
                None => call.complete(corrupt("the script's reply is cut short")),
            }
        }
        again
    }

    fn into_requests(self) -> impl Iterator<Item = LeaseCall> + Send {
        self.0.into_iter()
    }

    fn split(self) -> impl Iterator<Item = Self> + Send {
        self.0.into_iter().map(|call| Self(vec![call]))
    }
}
