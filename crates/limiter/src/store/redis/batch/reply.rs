//! What the script's reply means for each request of a batch.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tidegate_core::{Limit, Outcome, State, Timestamp};

use super::super::node::Node;
use super::super::state::{self, Tag};
use super::{Batch, Entry, Errand, Item, Takeover};
use crate::store::StoreError;

impl Batch {
    /// Tells every request what the script's reply means for it. Requests whose states have to be
    /// taken over from another limit come back, to be sent again.
    pub(in super::super) fn tell(
        self,
        store: &Arc<str>,
        node: &Weak<Node>,
        reply: &[u8],
    ) -> Vec<Errand> {
        let corrupt =
            |reason: &str| StoreError::Corrupt { store: Arc::clone(store), reason: reason.into() };
        let mut again = Vec::new();
        let Some((now, mut rest)) = reply.split_first_chunk::<7>() else {
            self.fail(&corrupt("the script's reply is cut short"));
            return again;
        };
        let now = now.iter().fold(0, |now, byte| now << 8 | u64::from(*byte));
        let now = Timestamp::from_micros(now);
        for entry in self.entries {
            let mut answers: SmallVec<[Kept<'_>; 4]> = SmallVec::new();
            for _ in &entry.first().items {
                match Kept::take(&mut rest) {
                    Some(kept) => answers.push(kept),
                    None => break,
                }
            }
            if answers.len() < entry.first().items.len() {
                for errand in entry.errands {
                    errand.tell(Err(corrupt("the script's reply is cut short")));
                }
            } else {
                entry.tell(&answers, now, node, &mut again, &corrupt);
            }
        }
        again
    }
}

/// What the script says of one charge.
struct Kept<'r> {
    /// How many of the identical charges were made.
    granted: u8,
    /// What the key held before; `Err` when it is of another limit, or not to be read.
    before: Result<&'r [u8], &'r [u8]>,
}

impl<'r> Kept<'r> {
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

impl Entry {
    fn tell(
        self,
        answers: &[Kept<'_>],
        now: Timestamp,
        node: &Weak<Node>,
        again: &mut Vec<Errand>,
        corrupt: &impl Fn(&str) -> StoreError,
    ) {
        if answers.iter().any(|answer| answer.before.is_err()) {
            for errand in self.errands {
                match errand.taking_over(answers, now) {
                    Ok(errand) => again.push(errand),
                    Err((errand, reason)) => errand.tell(Err(corrupt(reason))),
                }
            }
            return;
        }
        let granted = answers.first().map_or(0, |answer| answer.granted);
        let Some(mut states) = states(&self.first().items, answers, now) else {
            for errand in self.errands {
                errand.tell(Err(corrupt("its length is wrong")));
            }
            return;
        };
        for (turn, errand) in self.errands.into_iter().enumerate() {
            let spends = !errand.look && turn < usize::from(granted);
            let outcomes = replay(&errand.items, &mut states, now, spends);
            let fits = outcomes.iter().all(Outcome::is_allowed);
            if errand.look || fits == spends {
                errand.tell_from(node, Ok(outcomes));
            } else {
                errand.tell(Err(corrupt("script and node do not agree on it")));
            }
        }
    }
}

impl Errand {
    /// The errand with the states that it has to take over.
    #[allow(clippy::result_large_err, reason = "it is moved on, not kept")]
    fn taking_over(
        mut self,
        answers: &[Kept<'_>],
        now: Timestamp,
    ) -> Result<Self, (Self, &'static str)> {
        self.tries += 1;
        // The script decides on a state that it was given a takeover for, so each comes back once.
        if self.tries > self.items.len() {
            return Err((self, "its bytes can't be read, or it is no string"));
        }
        for (item, answer) in self.items.iter().zip(answers) {
            let Err(found) = answer.before else { continue };
            let tag = Tag::of(&item.limit);
            let (own, adopted) = match state::take_over(&item.limit, &tag, found, now) {
                Ok(taken) => taken,
                Err(reason) => return Err((self, reason)),
            };
            let (found, adopted) = (own.to_vec(), adopted.to_vec());
            self.takeovers.retain(|known| known.key != item.key || known.tag != tag);
            self.takeovers.push(Takeover { key: item.key, tag, found, adopted });
        }
        Ok(self)
    }
}

/// The states before the batch, one for each item; those of one key are the same.
fn states(items: &[Item], answers: &[Kept<'_>], now: Timestamp) -> Option<SmallVec<[State; 4]>> {
    let states = items.iter().zip(answers).map(|(item, answer)| {
        let before = answer.before.ok()?;
        match *item.limit {
            Limit::SlidingLog(_) => return state::read_told(before, now),
            Limit::Concurrency(_) => return state::read_told_slots(before),
            _ => {}
        }
        // What is kept begins with the tag that the script compared.
        let payload = match before.get(1) {
            Some(length) => before.get(usize::from(*length)..)?,
            None => before,
        };
        state::read(&item.limit, payload)
    });
    states.collect()
}

/// What a request is told that found these states, and the states after it.
fn replay(
    items: &[Item],
    states: &mut [State],
    now: Timestamp,
    spends: bool,
) -> SmallVec<[Outcome; 4]> {
    let told = (0..items.len()).map(|index| {
        let Item { key, limit, cost } = &items[index];
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
    told.collect()
}
