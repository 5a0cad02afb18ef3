//! Charges that travel together: one script call decides them one after another.
//!
//! Identical requests are merged into a count, of which the script grants as many as fit. The reply contains the state of
//! each key before the call; the outcomes are computed from it with the same arithmetic as in every other store.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tidegate_core::{Key, Limit, Outcome, State, Timestamp};

use super::pending_charge::{ChargeItem, PendingCharge};
use super::reply_guard::SlotReleaser;
use super::script_batch::{EncodedBatch, ScriptBatch, ScriptRequest};
use super::shared::{RedisCounters, RedisShared};
use super::state_codec::{self, LimitTag};
use tidegate_limiter::store::{Outcomes, StoreError};

/// Charges that travel in one script call.
#[derive(Debug, Default)]
pub(crate) struct ChargeBatch {
    keys: Vec<Key>,
    key_slots: HashMap<Key, KeySlot, BuildHasherDefault<KeyHasher>>,
    priced_limits: Vec<(Arc<Limit>, u64)>,
    merged: Vec<MergedCharges>,
}

/// The use of one key in the batch.
#[derive(Debug)]
struct KeySlot {
    number: u8,
    /// `true` while only one request names the key.
    single: bool,
    /// The first of the merged charges that begins with this key.
    merged: Option<usize>,
}

/// Identical requests.
#[derive(Debug)]
struct MergedCharges {
    /// Never empty.
    requests: SmallVec<[PendingCharge; 1]>,
    /// For each item, the place of its limit and cost.
    priced_limits: SmallVec<[u8; 2]>,
}

impl MergedCharges {
    fn first(&self) -> &PendingCharge {
        &self.requests[0]
    }
}

/// The most of anything that one byte counts.
const MAX_COUNT: usize = 255;

impl ChargeBatch {
    /// The most items that a request can have.
    pub(crate) const MAX_ITEMS: usize = 120;

    /// Returns the arguments of the charge script.
    fn arguments(&self) -> Vec<Vec<u8>> {
        let mut priced_limits = Vec::with_capacity(self.priced_limits.len() * 64);
        for (limit, cost) in &self.priced_limits {
            let tag = LimitTag::of(limit);
            state_codec::put_tag(&mut priced_limits, &tag);
            state_codec::put_terms(&mut priced_limits, &limit.terms(*cost));
        }
        let mut program = Vec::with_capacity(self.merged.len() * 4);
        let mut arguments = vec![priced_limits];
        let mut migrations = Vec::new();
        for merged in &self.merged {
            let PendingCharge { items, dry_run, .. } = merged.first();
            let count = if *dry_run { 0 } else { byte(merged.requests.len()) };
            let charges = if self.is_single(merged) { 0 } else { byte(items.len()) };
            program.extend([count, charges]);
            for (item, priced_limit) in items.iter().zip(&merged.priced_limits) {
                program.extend([self.number_of(item.key), *priced_limit]);
            }
            for migration in &merged.first().migrations {
                migrations.push(self.number_of(migration.key).to_string().into_bytes());
                migrations.push(migration.tag.bytes().to_vec());
                migrations.push(migration.found.clone());
                migrations.push(migration.migrated.clone());
            }
        }
        arguments.push(program);
        arguments.append(&mut migrations);
        arguments
    }

    /// Returns the limit and the cost if the batch charges different keys once, by the same cost under the same limit.
    fn uniform_limit(&self) -> Option<(&Limit, u64)> {
        let [(limit, cost)] = self.priced_limits.as_slice() else { return None };
        let is_plain = |merged: &MergedCharges| {
            let PendingCharge { items, dry_run, migrations, .. } = merged.first();
            let is_once = merged.requests.len() == 1 && items.len() == 1 && !dry_run;
            is_once && migrations.is_empty()
        };
        let are_different = self.keys.len() == self.merged.len();
        (*cost > 0 && are_different && self.merged.iter().all(is_plain)).then_some((limit, *cost))
    }

    /// Returns whether a request is one charge, made once, of a key that no other request names.
    fn is_single(&self, merged: &MergedCharges) -> bool {
        let PendingCharge { items, dry_run, migrations, .. } = merged.first();
        let [item] = items.as_slice() else { return false };
        let single = || self.key_slots.get(&item.key).is_some_and(|slot| slot.single);
        !dry_run && migrations.is_empty() && merged.requests.len() == 1 && single()
    }

    fn number_of(&self, key: Key) -> u8 {
        self.key_slots.get(&key).map_or(0, |slot| slot.number)
    }
}

impl ScriptBatch for ChargeBatch {
    type Request = PendingCharge;

    const MAX_IN_FLIGHT: usize = 4;

    fn calls(counters: &RedisCounters) -> &AtomicU64 {
        &counters.calls
    }

    fn push(&mut self, request: PendingCharge) -> Result<(), PendingCharge> {
        let Some(first) = request.items.first() else {
            request.complete(Outcomes::new(), None);
            return Ok(());
        };
        if let Some(KeySlot { merged: Some(merged), .. }) = self.key_slots.get(&first.key) {
            let same = &mut self.merged[*merged];
            if same.requests.len() < MAX_COUNT && same.first().is_same(&request) {
                same.requests.push(request);
                return Ok(());
            }
        }
        let room = MAX_COUNT - request.items.len().min(MAX_COUNT);
        let is_full = self.keys.len() > room || self.priced_limits.len() > room;
        if is_full || self.merged.len() >= MAX_COUNT {
            return Err(request);
        }
        let mut priced_limits = SmallVec::new();
        for (index, item) in request.items.iter().enumerate() {
            let next = byte(self.keys.len() + 1);
            let slot = self.key_slots.entry(item.key).or_insert_with(|| {
                self.keys.push(item.key);
                KeySlot { number: next, single: true, merged: None }
            });
            slot.single &= slot.number == next;
            if index == 0 && slot.merged.is_none() && request.migrations.is_empty() {
                slot.merged = Some(self.merged.len());
            }
            let same = |(limit, cost): &(Arc<Limit>, u64)| {
                *cost == item.cost && (Arc::ptr_eq(limit, &item.limit) || *limit == item.limit)
            };
            let known = self.priced_limits.iter().position(same);
            let priced_limit = known.unwrap_or_else(|| {
                self.priced_limits.push((Arc::clone(&item.limit), item.cost));
                self.priced_limits.len() - 1
            });
            priced_limits.push(byte(priced_limit + 1));
        }
        let requests = SmallVec::from_iter([request]);
        self.merged.push(MergedCharges { requests, priced_limits });
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.merged.is_empty()
    }

    fn is_uniform(&self) -> bool {
        self.merged.len() <= 1
    }

    fn encode<'s>(&self, shared: &'s RedisShared) -> EncodedBatch<'s> {
        let keys = self.keys.iter().map(|key| shared.counter_key(*key)).collect();
        if let Some((limit, cost)) = self.uniform_limit()
            && let Some(script) = shared.scripts.uniform(limit, self.keys.len())
            && !shared.other_limits.are_likely()
        {
            let mut terms = Vec::with_capacity(35);
            state_codec::put_terms(&mut terms, &limit.terms(cost));
            let arguments = vec![LimitTag::of(limit).bytes().to_vec(), terms];
            return EncodedBatch { script, keys, arguments };
        }
        EncodedBatch { script: &shared.scripts.charge, keys, arguments: self.arguments() }
    }

    fn complete(
        self,
        store: &Arc<str>,
        releaser: &Weak<dyn SlotReleaser>,
        reply: &[u8],
    ) -> Vec<PendingCharge> {
        let corrupt =
            |reason: &str| StoreError::Corrupt { store: Arc::clone(store), reason: reason.into() };
        let mut again = Vec::new();
        let Some((now, mut rest)) = reply.split_first_chunk::<7>() else {
            self.fail(&corrupt("the script's reply is cut short"));
            return again;
        };
        let now = now.iter().fold(0, |now, byte| now << 8 | u64::from(*byte));
        let now = Timestamp::from_micros(now);
        for merged in self.merged {
            let mut results: SmallVec<[ScriptResult<'_>; 4]> = SmallVec::new();
            for _ in &merged.first().items {
                match ScriptResult::take(&mut rest) {
                    Some(result) => results.push(result),
                    None => break,
                }
            }
            if results.len() < merged.first().items.len() {
                for request in merged.requests {
                    request.fail(corrupt("the script's reply is cut short"));
                }
            } else {
                merged.complete(&results, now, releaser, &mut again, &corrupt);
            }
        }
        again
    }

    fn into_requests(self) -> impl Iterator<Item = PendingCharge> + Send {
        self.merged.into_iter().flat_map(|merged| merged.requests)
    }

    fn split(self) -> impl Iterator<Item = Self> + Send {
        self.merged.into_iter().map(|merged| {
            let mut batch = Self::default();
            for request in merged.requests {
                // They fitted one batch before.
                let _ = batch.push(request);
            }
            batch
        })
    }
}

/// The result of one charge in the script.
struct ScriptResult<'r> {
    /// The number of identical charges that were made.
    granted: u8,
    /// The state of the key before; `Err` with the value when it is of another limit, or can't be read.
    before: Result<&'r [u8], &'r [u8]>,
}

impl<'r> ScriptResult<'r> {
    fn take(rest: &mut &'r [u8]) -> Option<Self> {
        let (&[granted, length], after) = rest.split_first_chunk()?;
        if length < u8::MAX {
            let (before, after) = after.split_at_checked(length.into())?;
            *rest = after;
            return Some(Self { granted, before: Ok(before) });
        }
        let (length, after) = after.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (before, after) = after.split_at_checked(length)?;
        *rest = after;
        Some(Self { granted, before: Err(before) })
    }
}

impl MergedCharges {
    fn complete(
        self,
        results: &[ScriptResult<'_>],
        now: Timestamp,
        releaser: &Weak<dyn SlotReleaser>,
        again: &mut Vec<PendingCharge>,
        corrupt: &impl Fn(&str) -> StoreError,
    ) {
        if results.iter().any(|result| result.before.is_err()) {
            for request in self.requests {
                let found = results.iter().map(|result| result.before.err());
                match request.migrate(found, now) {
                    Ok(request) => again.push(request),
                    Err((request, reason)) => request.fail(corrupt(reason)),
                }
            }
            return;
        }
        let granted = results.first().map_or(0, |result| result.granted);
        let Some(mut states) = states(&self.first().items, results, now) else {
            for request in self.requests {
                request.fail(corrupt("its length is wrong"));
            }
            return;
        };
        for (turn, request) in self.requests.into_iter().enumerate() {
            let spends = !request.dry_run && turn < usize::from(granted);
            let outcomes = replay(&request.items, &mut states, now, spends);
            let fits = outcomes.iter().all(Outcome::is_allowed);
            if request.dry_run || fits == spends {
                request.complete(outcomes, Some(releaser));
            } else {
                request.fail(corrupt("script and node do not agree on it"));
            }
        }
    }
}

/// Returns the states before the batch, one for each item; those of one key are the same.
fn states(
    items: &[ChargeItem],
    results: &[ScriptResult<'_>],
    now: Timestamp,
) -> Option<SmallVec<[State; 4]>> {
    let states = items.iter().zip(results).map(|(item, result)| {
        let before = result.before.ok()?;
        match *item.limit {
            Limit::SlidingLog(_) => return state_codec::read_log_summary(before, now),
            Limit::Concurrency(_) => return state_codec::read_slots_summary(before),
            _ => {}
        }
        // The value begins with the tag that the script compared.
        let payload = match before.get(1) {
            Some(length) => before.get(usize::from(*length)..)?,
            None => before,
        };
        state_codec::read(&item.limit, payload)
    });
    states.collect()
}

/// Returns the outcomes of a request that found these states, and changes them as the request did.
fn replay(
    items: &[ChargeItem],
    states: &mut [State],
    now: Timestamp,
    spends: bool,
) -> SmallVec<[Outcome; 4]> {
    let outcomes = (0..items.len()).map(|index| {
        let ChargeItem { key, limit, cost } = &items[index];
        let earlier = items[..index].iter().position(|item| item.key == *key);
        // Charges of one key add up, so they share the first one's state.
        let state = &mut states[earlier.unwrap_or(index)];
        if spends {
            return limit.charge(state, now, *cost);
        }
        let same = items[..index].iter().filter(|item| item.key == *key);
        let cost = same.fold(*cost, |sum, item| sum.saturating_add(item.cost));
        limit.peek(state, now, cost)
    });
    outcomes.collect()
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// A hasher for keys, which are hashes already: any of their bits will do.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, key: u128) {
        let (upper, lower) = (key >> 64, key & u128::from(u64::MAX));
        self.0 = u64::try_from(upper ^ lower).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Quota};
    use tidegate_limiter::store::ChargeMode;

    use super::*;
    use crate::pending_charge::StateMigration;

    fn limit(amount: u64) -> Arc<Limit> {
        Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_minute(amount)).unwrap())
    }

    /// A batch of requests, each with the keys, limits and costs of its charges.
    fn batch(requests: &[&[(u128, &Arc<Limit>, u64)]], mode: ChargeMode) -> ChargeBatch {
        let mut batch = ChargeBatch::default();
        for charges in requests {
            let items = charges.iter().map(|(key, limit, cost)| ChargeItem {
                key: Key::from_u128(*key),
                limit: Arc::clone(limit),
                cost: *cost,
            });
            batch.push(PendingCharge::new(items.collect(), mode).0).unwrap();
        }
        batch
    }

    #[test]
    fn batch_is_uniform_if_it_charges_different_keys_once_by_one_cost() {
        let (limit, other) = (limit(10), limit(20));
        let uniform = |requests: &[&[(u128, &Arc<Limit>, u64)]], mode| {
            batch(requests, mode).uniform_limit().map(|(_, cost)| cost)
        };
        let two: [&[_]; 2] = [&[(1, &limit, 3)], &[(2, &limit, 3)]];
        assert_eq!(uniform(&two[..1], ChargeMode::Spend), Some(3));
        assert_eq!(uniform(&two, ChargeMode::Spend), Some(3));
        assert_eq!(uniform(&two, ChargeMode::Peek), None, "peeks");
        let cases: [(&str, &[&[_]]); 6] = [
            ("a cost of zero", &[&[(1, &limit, 0)]]),
            ("a cost that never fits", &[&[(1, &limit, 11)]]),
            ("identical requests", &[&[(1, &limit, 1)], &[(1, &limit, 1)]]),
            ("two costs", &[&[(1, &limit, 1)], &[(2, &limit, 2)]]),
            ("two limits", &[&[(1, &limit, 1)], &[(2, &other, 1)]]),
            ("a request of two charges", &[&[(1, &limit, 1), (2, &limit, 1)]]),
        ];
        for (case, requests) in cases {
            assert_eq!(uniform(requests, ChargeMode::Spend), None, "{case}");
        }
        let mut batch = batch(&two, ChargeMode::Spend);
        let (key, tag) = (Key::from_u128(1), LimitTag::of(&limit));
        let migration = StateMigration { key, tag, found: Vec::new(), migrated: Vec::new() };
        batch.merged[0].requests[0].migrations.push(migration);
        assert!(batch.uniform_limit().is_none(), "a migration");
    }
}
