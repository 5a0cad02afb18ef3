//! One client's limit in several parts, so that several servers share one busy client.
//!
//! Parts are charged in turn. One that has not enough left borrows: the others are tried before the
//! client is denied, and a cost that fits into none of them is gathered from several, all of it or
//! nothing. Parts add up to the limit, and each is exact, so the limit is.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Key, Limit, Outcome, Slip, Span, Verdict};

use super::parts::Parts;
use super::{Taken, Takings};
use crate::store::{Answer, Charge, Refund, Share, Store, StoreError};

/// How often it is tried to gather a cost from several parts while others take from them.
const ROUNDS: usize = 3;

/// Most clients of one drawer whose parts are kept at hand. When there are more, it is emptied.
const ROOM: usize = 1_024;
const DRAWERS: usize = 64;

/// Limits in parts.
pub(crate) struct Shards {
    limits: Parts,
    turn: AtomicU64,
    /// The parts of clients that came before: to find them takes a while.
    known: Box<[Mutex<HashMap<Key, Known>>]>,
}

struct Known {
    whole: Arc<Limit>,
    parts: Arc<[Part]>,
}

/// One part of a client's limit.
struct Part {
    key: Key,
    limit: Arc<Limit>,
}

impl Part {
    fn charge<'a>(&'a self, whole: &Charge<'_>, cost: u64, alone: bool) -> Charge<'a> {
        Charge { key: self.key, shared: whole.shared, limit: &self.limit, cost, alone }
    }

    fn refund(&self, cost: u64, slip: Option<Slip>) -> Refund {
        Refund { key: self.key, limit: Arc::clone(&self.limit), cost, slip }
    }
}

/// All parts of a client, and what one request has heard of each.
struct Row {
    parts: Arc<[Part]>,
    seen: SmallVec<[Option<Outcome>; 8]>,
}

impl Row {
    /// How much is left in all parts that were seen.
    fn left(&self) -> u64 {
        self.seen.iter().flatten().map(|outcome| outcome.remaining).sum()
    }
}

impl Shards {
    pub(crate) fn new() -> Self {
        let mut known = Vec::new();
        known.resize_with(DRAWERS, Mutex::default);
        // Nodes that start together do not walk in step.
        let turn = AtomicU64::new(RandomState::new().hash_one(0));
        Self { limits: Parts::default(), turn, known: known.into() }
    }

    fn row<S: Store>(&self, store: &Arc<S>, key: Key, limit: &Arc<Limit>, of: u8) -> Row {
        let parts = self.parts(store, key, limit, of);
        let seen = parts.iter().map(|_| None).collect();
        Row { parts, seen }
    }

    fn parts<S: Store>(&self, store: &Arc<S>, key: Key, limit: &Arc<Limit>, of: u8) -> Arc<[Part]> {
        let [.., last] = key.as_u128().to_be_bytes();
        let drawer = &self.known[usize::from(last) % DRAWERS];
        let fits = |known: &&Known| {
            let same = Arc::ptr_eq(&known.whole, limit) || known.whole == *limit;
            same && known.parts.len() == usize::from(of)
        };
        if let Some(known) = drawer.lock().get(&key).filter(fits) {
            return Arc::clone(&known.parts);
        }
        let part = |(index, key): (u64, Key)| Part {
            key,
            limit: self.limits.of(limit, Share { index, of: of.into() }),
        };
        let parts: Arc<[Part]> = (0..).zip(store.parts(key, of)).map(part).collect();
        let mut drawer = drawer.lock();
        if drawer.len() >= ROOM {
            drawer.clear();
        }
        drawer.insert(key, Known { whole: Arc::clone(limit), parts: Arc::clone(&parts) });
        parts
    }

    /// Where to begin. Two clients that alternate still meet every part.
    fn first(&self, of: usize) -> usize {
        let turn = self.turn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let spread = u128::try_from(of).map_or(0, |of| (u128::from(turn) * of) >> 64);
        usize::try_from(spread).unwrap_or(0)
    }

    /// Charges a client, or looks at it.
    ///
    /// # Errors
    /// A part could not be asked, and without it there is not enough; or it is not known whether one was
    /// charged.
    pub(crate) async fn charge<S: Store>(
        &self,
        store: &Arc<S>,
        of: u8,
        charge: &Charge<'_>,
        looks: bool,
        taken: &mut Takings,
    ) -> Result<Outcome, StoreError> {
        let mut row = self.row(store, charge.key, charge.limit, of);
        if looks {
            let away = look(store, charge, &mut row, |_| true).await;
            return answer(charge, &row, &End::Looked, away);
        }
        let (count, mut away, mut wait) = (row.parts.len(), None, None::<Span>);
        let first = self.first(count);
        for place in (first..count).chain(0..first) {
            let part = &row.parts[place];
            if part.limit.capacity() < charge.cost {
                continue;
            }
            let outcome = match one(store, &part.charge(charge, charge.cost, false)).await {
                Ok(outcome) => outcome,
                Err(error @ StoreError::Unavailable { .. }) => {
                    // Nothing was done there.
                    away = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            row.seen[place] = Some(outcome);
            if let Some(slip) = outcome.slip() {
                taken.push(Taken::Stored(part.refund(charge.cost, Some(slip))));
                return answer(charge, &row, &End::Spent, None);
            }
            let told = outcome.retry_after();
            wait = wait.into_iter().chain(told).min();
        }
        if charge.cost > 1 {
            // What was heard of a part is fresh enough; those that never have room are looked at.
            let mut wanted: fn(Option<&Outcome>) -> bool = |seen| seen.is_none();
            for _ in 0..ROUNDS {
                away = look(store, charge, &mut row, wanted).await.or(away);
                if row.left() < charge.cost {
                    break;
                }
                if gather(store, charge, &mut row, taken).await? {
                    return answer(charge, &row, &End::Spent, None);
                }
                wanted = |_| true;
            }
        }
        answer(charge, &row, &End::Denied(wait), away)
    }

    /// What is to be told to which part so that up to a cost is given back of what was spent last.
    ///
    /// # Errors
    /// A part could not be asked what was spent from it.
    pub(crate) async fn returned<S: Store>(
        &self,
        store: &Arc<S>,
        of: u8,
        refund: &Refund,
    ) -> Result<Vec<Refund>, StoreError> {
        let Refund { key, limit, .. } = refund;
        let mut row = self.row(store, *key, limit, of);
        let charge = Charge { key: *key, shared: *key, limit, cost: 0, alone: true };
        if let Some(error) = look(store, &charge, &mut row, |_| true).await {
            return Err(error);
        }
        let mut rest = refund.cost;
        let refunds = row.parts.iter().zip(&row.seen).map(|(part, seen)| {
            let left = seen.map_or(0, |outcome| outcome.remaining);
            let cost = part.limit.capacity().saturating_sub(left).min(rest);
            rest -= cost;
            part.refund(cost, None)
        });
        Ok(refunds.filter(|refund| refund.cost > 0).collect())
    }

    /// Forgets what was spent from any part.
    ///
    /// # Errors
    /// The store did not confirm it for one of them.
    pub(crate) async fn forget<S: Store>(
        &self,
        store: &Arc<S>,
        of: u8,
        key: Key,
    ) -> Result<(), StoreError> {
        let mut confirmed = Ok(());
        for part in store.parts(key, of) {
            let forgotten = store.forget(part).await;
            confirmed = confirmed.and(forgotten);
        }
        confirmed
    }
}

impl std::fmt::Debug for Shards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").finish_non_exhaustive()
    }
}

async fn one<S: Store>(store: &Arc<S>, charge: &Charge<'_>) -> Result<Outcome, StoreError> {
    match store.charge(std::slice::from_ref(charge)).await.pop() {
        Some(Answer::Decided(outcome)) => Ok(outcome),
        Some(Answer::Failed(error)) => Err(error),
        Some(Answer::Unasked) | None => Err(unanswered()),
    }
}

/// Looks at those parts that are wanted, all at once. One that could not be asked has nothing.
async fn look<S: Store>(
    store: &Arc<S>,
    charge: &Charge<'_>,
    row: &mut Row,
    wanted: impl Fn(Option<&Outcome>) -> bool,
) -> Option<StoreError> {
    let places = (0..row.parts.len()).filter(|at| wanted(row.seen[*at].as_ref()));
    let places: SmallVec<[usize; 8]> = places.collect();
    if places.is_empty() {
        return None;
    }
    let looks = places.iter().map(|at| row.parts[*at].charge(charge, 0, true));
    let looks: SmallVec<[Charge<'_>; 8]> = looks.collect();
    let mut away = None;
    for (at, answer) in places.iter().zip(store.charge(&looks).await) {
        row.seen[*at] = answer.outcome().copied();
        match answer {
            Answer::Decided(_) => {}
            Answer::Failed(error) => away = Some(error),
            Answer::Unasked => away = Some(unanswered()),
        }
    }
    away
}

/// Charges the cost to as many parts as it takes, all of it or nothing. Whether it fitted; others may
/// have been faster.
async fn gather<S: Store>(
    store: &Arc<S>,
    charge: &Charge<'_>,
    row: &mut Row,
    taken: &mut Takings,
) -> Result<bool, StoreError> {
    let mut rest = charge.cost;
    let mut asked: SmallVec<[(usize, u64); 8]> = SmallVec::new();
    for (at, seen) in row.seen.iter().enumerate() {
        let cost = seen.map_or(0, |outcome| outcome.remaining).min(rest);
        if cost > 0 {
            asked.push((at, cost));
            rest -= cost;
        }
    }
    let charges = asked.iter().map(|(at, cost)| row.parts[*at].charge(charge, *cost, false));
    let charges: SmallVec<[Charge<'_>; 8]> = charges.collect();
    let answers = store.charge(&charges).await;
    let (mut got, mut failed) = (Vec::new(), None);
    for ((at, cost), answer) in asked.iter().zip(answers) {
        match answer {
            Answer::Decided(outcome) => {
                row.seen[*at] = Some(outcome);
                let part = &row.parts[*at];
                got.extend(outcome.slip().map(|slip| part.refund(*cost, Some(slip))));
            }
            Answer::Failed(error) => failed = Some(error),
            Answer::Unasked => {}
        }
    }
    if got.len() == asked.len() {
        taken.extend(got.into_iter().map(Taken::Stored));
        return Ok(true);
    }
    // A part that fails does not hold the others back in a store.
    if !got.is_empty() {
        store.refund_detached(got);
    }
    failed.map_or(Ok(false), Err)
}

/// What became of a request.
enum End {
    Looked,
    Spent,
    /// With the shortest wait that a part has told for this cost.
    Denied(Option<Span>),
}

/// What the client is told: the limit as a whole, as far as its parts were seen.
///
/// # Errors
/// The request did not pass, and a part could not be asked.
fn answer(
    charge: &Charge<'_>,
    row: &Row,
    end: &End,
    away: Option<StoreError>,
) -> Result<Outcome, StoreError> {
    let (limit, cost) = (charge.limit.capacity(), charge.cost.max(1));
    let seen = || row.seen.iter().flatten();
    // Those that were not asked are taken to be like the one that was charged: all are used alike.
    let charged = seen().find(|outcome| outcome.slip().is_some());
    let unseen = u64::try_from(row.parts.len() - seen().count()).unwrap_or(u64::MAX);
    let guess = charged.map_or(0, |outcome| outcome.remaining.saturating_mul(unseen));
    let most = match end {
        End::Looked => limit,
        End::Spent => limit.saturating_sub(cost),
        // Others were faster; what they took may be coming back.
        End::Denied(_) => limit.min(cost - 1),
    };
    let remaining = row.left().saturating_add(guess).min(most);
    let reset_after = seen().map(|outcome| outcome.reset_after).max().unwrap_or(Span::ZERO);
    let passes = match end {
        End::Looked => cost <= remaining,
        End::Spent => true,
        End::Denied(_) => false,
    };
    let verdict = match away {
        _ if passes => Verdict::Allow { delay: Span::ZERO, slip: None },
        Some(error) => return Err(error),
        None => {
            let told = match end {
                End::Denied(told) => *told,
                // A look asks for 1.
                End::Looked if cost == 1 => seen().filter_map(Outcome::retry_after).min(),
                End::Looked | End::Spent => None,
            };
            let wait = || together(charge.limit, cost, remaining, reset_after);
            let wait = told.unwrap_or_else(wait).max(Span::MICROSECOND);
            Verdict::Deny { retry_after: (cost <= limit).then_some(wait) }
        }
    };
    Ok(Outcome { limit, remaining, reset_after, verdict })
}

/// How long it takes, at a guess, until a cost fits into all parts together.
fn together(limit: &Limit, cost: u64, remaining: u64, reset_after: Span) -> Span {
    if limit.algorithm() != Algorithm::TokenBucket {
        return reset_after;
    }
    // As much as is missing comes back in its part of the time in which all of it does.
    let used = u128::from(limit.capacity().saturating_sub(remaining).max(1));
    let missing = u128::from(cost.saturating_sub(remaining));
    let wait = (u128::from(reset_after.as_micros()) * missing).div_ceil(used);
    Span::from_micros(u64::try_from(wait).unwrap_or(u64::MAX))
}

fn unanswered() -> StoreError {
    let reason = "it answered nothing".into();
    StoreError::Unavailable { store: "store".into(), reason }
}
