//! A lease request that a caller waits for: its encoding, and the meaning of the script's reply.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use tidegate_core::lease::LeaseGrant;
use tidegate_core::{Key, Lease, LeaseRequest, LeaseSet, Limit, Quota, State, Timestamp};
use tokio::sync::oneshot;

use super::lease_codec;
use super::reply_guard::SlotReleaser;
use super::script_batch::{EncodedBatch, ScriptBatch, ScriptRequest};
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
pub(crate) type LeaseResult = Result<LeaseGrant, StoreError>;

/// A lease request, and the state that it takes over from another limit.
pub(crate) struct LeaseCall {
    key: Key,
    limit: Arc<Limit>,
    request: LeaseRequest,
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
    Decided(LeaseGrant),
    /// Nothing was done: first the state has to be taken over.
    Migrate(LeaseMigration),
    Unreadable(Unreadable),
}

impl LeaseCall {
    /// Returns a request and the receiver of its result.
    pub(crate) fn new(
        (key, limit, request): &(Key, Arc<Limit>, LeaseRequest),
    ) -> (Self, oneshot::Receiver<LeaseResult>) {
        let mut request = request.clone();
        // A node with more reports sends the rest next time.
        request.reports.truncate(usize::from(u16::MAX));
        // Totals: the later ones contain the earlier ones.
        let surplus = request.unreported.len().saturating_sub(usize::from(u8::MAX));
        request.unreported.drain(..surplus);
        if !request.unreported.is_empty() {
            request.requested = 0;
        }
        let (reply, receiver) = oneshot::channel();
        (Self { key: *key, limit: Arc::clone(limit), request, migration: None, reply }, receiver)
    }

    fn complete(self, result: LeaseResult) {
        // The caller may no longer wait: the lease then expires.
        let _ = self.reply.send(result);
    }

    /// Returns whether there is a cost that may fit.
    fn charges(&self) -> bool {
        (1..=self.limit.capacity()).contains(&self.request.cost)
    }

    /// Returns the sizes that a lease can have, largest first, each with the tokens that have to be free for it.
    ///
    /// A lease is at most half of an even share of what is free, or one token: its size times twice the number of
    /// nodes has to be free, or one token.
    fn grant_sizes(&self) -> impl Iterator<Item = (u64, u64)> {
        let (requested, capacity) = (self.request.requested, self.limit.capacity());
        let parts = self.request.fleet_size.max(1).saturating_mul(2);
        let halves = (0..u64::BITS).map(move |halvings| requested >> halvings);
        let grant_sizes = halves
            .take_while(|size| *size > 0)
            .map(move |size| (size, if size == 1 { 1 } else { size.saturating_mul(parts) }));
        grant_sizes.filter(move |(_, free)| *free <= capacity)
    }

    /// Returns the call as the lease script reads it.
    fn encode(&self) -> Vec<u8> {
        let Self { limit, request, .. } = self;
        let tag = LimitTag::of(limit);
        let mut text = Vec::new();
        state_codec::put_tag(&mut text, &tag);
        state_codec::put_terms(&mut text, &limit.terms(request.cost));
        text.push(u8::from(self.charges()));
        text.push(u8::try_from(request.unreported.len()).unwrap_or(u8::MAX));
        text.extend(u16::try_from(request.reports.len()).unwrap_or(u16::MAX).to_be_bytes());
        lease_codec::put_name(&mut text, request.id);
        put_numbers(&mut text, &[request.ttl.min(Lease::MAX_TTL).as_micros()]);
        for usage in &request.unreported {
            let total = usage.total.min(limit.countable());
            put_numbers(&mut text, &[usage.at.as_micros().min(MAX_TIME), total]);
            lease_codec::put_weight(&mut text, limit, total);
        }
        for report in &request.reports {
            lease_codec::put_name(&mut text, report.id);
            text.push(u8::from(report.closed));
            // No hold is larger.
            put_numbers(&mut text, &[report.spent.min(Quota::MAX_AMOUNT)]);
            lease_codec::put_span(&mut text, limit, report.spent);
        }
        for (size, free) in self.grant_sizes() {
            put_numbers(&mut text, &[size]);
            lease_codec::put_span(&mut text, limit, size);
            lease_codec::put_span(&mut text, limit, free);
        }
        text
    }

    fn read(&self, now: Timestamp, rest: &mut NumberReader<'_>) -> Option<LeaseReply> {
        let read = match rest.number(1)? {
            DECIDED => {
                let (charged, granted) = (rest.number(1)? == 1, rest.number(1)?);
                let [state, leases] = [rest.text()?, rest.text()?];
                self.replay(now, charged, granted, state, leases)
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
        let mut leases = self.leases(held).ok_or("the length of its holds is wrong")?;
        let before = leases.get(self.request.id).copied().filter(|lease| lease.until > now);
        let grant = self.limit.apply_lease_request(&mut state, &mut leases, now, &self.request);
        let place = usize::try_from(granted).unwrap_or(usize::MAX);
        let size = match place.checked_sub(1) {
            Some(place) => self.grant_sizes().nth(place).map(|(size, _)| size),
            None => before.filter(|_| grant.granted > 0).map(|lease| lease.amount).or(Some(0)),
        };
        let spent = self.charges() && grant.outcome.is_allowed();
        if spent == charged && size == Some(grant.granted) {
            Ok(LeaseReply::Decided(grant))
        } else {
            Err("script and node do not agree on it")
        }
    }

    fn state(&self, raw: &[u8]) -> Option<State> {
        state_codec::read(&self.limit, after_tag(raw)?)
    }

    fn leases(&self, raw: &[u8]) -> Option<LeaseSet> {
        lease_codec::read(&self.limit, after_tag(raw)?)
    }

    /// Returns the state that this limit takes over from the one that was used last. Unless it has leases of its own, it
    /// begins with those of the other.
    fn migrate(&self, now: Timestamp, found: [&[u8]; 2]) -> Result<LeaseMigration, Unreadable> {
        let (limit, tag) = (&*self.limit, LimitTag::of(&self.limit));
        let (own, migrated) = state_codec::migrate_state(limit, &tag, found[0], now)?;
        let state = SectionMigration { found: own.to_vec(), migrated: migrated.to_vec() };
        let sections = state_codec::sections(found[1])?;
        let own = state_codec::find_section(&sections, &tag).map(|place| sections[place].to_vec());
        let copied = match (&own, sections.first()) {
            (Some(own), _) => own.clone(),
            (None, Some(last)) => lease_codec::write(&tag, limit, &lease_codec::parse(last)?.1),
            (None, None) => Vec::new(),
        };
        let leases = SectionMigration { found: own.unwrap_or_default(), migrated: copied };
        Ok(LeaseMigration { state, leases })
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

    fn encode<'s>(&self, shared: &'s RedisShared) -> EncodedBatch<'s> {
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
        EncodedBatch { script: &shared.scripts.lease, keys, arguments }
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
