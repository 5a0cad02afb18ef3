//! An ask as the lease script reads it, and what the script's reply means for it.

use std::sync::Arc;

use tidegate_core::hold::Granted;
use tidegate_core::{Ask, Hold, Holds, Key, Limit, Quota, State, Timestamp};

use super::super::holds;
use super::super::shared::Shared;
use super::super::state::{self, Numbers, Tag, Unreadable, put_numbers};

/// Later than any time that is told: what Lua counts exactly.
const FAR: u64 = (1 << 53) - 1;

/// One ask, and the state that it takes over from another limit.
pub(super) struct Letter {
    key: Key,
    limit: Arc<Limit>,
    ask: Ask,
    pub(super) takeover: Option<Takeover>,
}

/// The sections of a state and of holds under the limit of the ask.
pub(super) struct Takeover {
    state: Replacement,
    holds: Replacement,
}

/// A section that was found, and the one to replace it; either is empty if there is none.
struct Replacement {
    found: Vec<u8>,
    adopted: Vec<u8>,
}

/// What became of an ask.
pub(super) enum Read {
    Decided(Granted),
    /// Nothing: first the state has to be taken over.
    TakeOver(Takeover),
    Unreadable(Unreadable),
}

impl Letter {
    pub(super) fn new((key, limit, ask): &(Key, Arc<Limit>, Ask)) -> Self {
        let mut ask = ask.clone();
        // A node that says more says the rest next time.
        ask.reports.truncate(usize::from(u16::MAX));
        // Totals: the later ones say what the earlier ones did.
        let surplus = ask.owed.len().saturating_sub(usize::from(u8::MAX));
        ask.owed.drain(..surplus);
        if !ask.owed.is_empty() {
            ask.want = 0;
        }
        Self { key: *key, limit: Arc::clone(limit), ask, takeover: None }
    }

    /// Whether there is a cost that may fit.
    fn charges(&self) -> bool {
        (1..=self.limit.capacity()).contains(&self.ask.cost)
    }

    /// What may be held, largest first, each with what has to be free for it.
    ///
    /// At most half of an even share of what is free may be held, or one token: that is, so many
    /// tokens times twice the number of nodes are free, or one is.
    fn portions(&self) -> impl Iterator<Item = (u64, u64)> {
        let (want, capacity) = (self.ask.want, self.limit.capacity());
        let parts = self.ask.nodes.max(1).saturating_mul(2);
        let halves = (0..u64::BITS).map(move |halvings| want >> halvings);
        let portions = halves.take_while(|portion| *portion > 0).map(move |portion| {
            (portion, if portion == 1 { 1 } else { portion.saturating_mul(parts) })
        });
        portions.filter(move |(_, free)| *free <= capacity)
    }

    fn argument(&self) -> Vec<u8> {
        let Self { limit, ask, .. } = self;
        let tag = Tag::of(limit);
        let mut text = Vec::new();
        state::put_tag(&mut text, &tag);
        state::put_terms(&mut text, &limit.terms(ask.cost));
        text.push(u8::from(self.charges()));
        text.push(u8::try_from(ask.owed.len()).unwrap_or(u8::MAX));
        text.extend(u16::try_from(ask.reports.len()).unwrap_or(u16::MAX).to_be_bytes());
        holds::put_name(&mut text, ask.id);
        put_numbers(&mut text, &[ask.life.min(Hold::LONGEST).as_micros()]);
        for owed in &ask.owed {
            let total = owed.total.min(limit.countable());
            put_numbers(&mut text, &[owed.at.as_micros().min(FAR), total]);
            holds::put_weight(&mut text, limit, total);
        }
        for report in &ask.reports {
            holds::put_name(&mut text, report.id);
            text.push(u8::from(report.closed));
            // No hold is larger.
            put_numbers(&mut text, &[report.spent.min(Quota::MAX_AMOUNT)]);
            holds::put_span(&mut text, limit, report.spent);
        }
        for (portion, free) in self.portions() {
            put_numbers(&mut text, &[portion]);
            holds::put_span(&mut text, limit, portion);
            holds::put_span(&mut text, limit, free);
        }
        text
    }
}

/// The keys and arguments of one call.
pub(super) fn address(shared: &Shared, letters: &[&Letter]) -> (Vec<String>, Vec<Vec<u8>>) {
    let keys = letters.iter().flat_map(|letter| {
        let state = shared.spell(letter.key);
        let holds = shared.spell_holds(letter.key);
        [state, holds]
    });
    let mut arguments: Vec<Vec<u8>> = letters.iter().map(|letter| letter.argument()).collect();
    for (place, letter) in (1..).zip(letters) {
        if let Some(Takeover { state, holds }) = &letter.takeover {
            let place: usize = place;
            arguments.push(place.to_string().into_bytes());
            for replacement in [state, holds] {
                arguments.extend([replacement.found.clone(), replacement.adopted.clone()]);
            }
        }
    }
    (keys.collect(), arguments)
}

const DECIDED: u64 = 1;
const FOREIGN: u64 = 2;
const NO_STRING: u64 = 3;

/// What a reply means for each letter.
pub(super) fn read(letters: &[&Letter], reply: &[u8]) -> Vec<Read> {
    const SHORT: Read = Read::Unreadable("the script's reply is cut short");
    let mut rest = Numbers(reply);
    let Some(now) = rest.time() else { return letters.iter().map(|_| SHORT).collect() };
    letters.iter().map(|letter| letter.read(now, &mut rest).unwrap_or(SHORT)).collect()
}

impl Letter {
    fn read(&self, now: Timestamp, rest: &mut Numbers<'_>) -> Option<Read> {
        let read = match rest.number(1)? {
            DECIDED => {
                let (charged, granted) = (rest.number(1)? == 1, rest.number(1)?);
                let [state, holds] = [rest.text()?, rest.text()?];
                self.replay(now, charged, granted, state, holds)
            }
            FOREIGN => {
                let found = [rest.text()?, rest.text()?];
                self.take_over(now, found).map(Read::TakeOver)
            }
            NO_STRING => Err("it is no string"),
            _ => return None,
        };
        Some(read.unwrap_or_else(Read::Unreadable))
    }

    /// Decides the ask again from what was there before: the script says what it did, and the core
    /// what the node is told of it.
    fn replay(
        &self,
        now: Timestamp,
        charged: bool,
        granted: u64,
        state: &[u8],
        held: &[u8],
    ) -> Result<Read, Unreadable> {
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
            Ok(Read::Decided(told))
        } else {
            Err("script and node do not agree on it")
        }
    }

    fn state(&self, raw: &[u8]) -> Option<State> {
        state::read(&self.limit, after_tag(raw)?)
    }

    fn holds(&self, raw: &[u8]) -> Option<Holds> {
        holds::read(&self.limit, after_tag(raw)?)
    }

    /// The state that this limit takes over from the one that was used last. Unless it has holds of
    /// its own, it begins with those of the other.
    fn take_over(&self, now: Timestamp, found: [&[u8]; 2]) -> Result<Takeover, Unreadable> {
        let (limit, tag) = (&*self.limit, Tag::of(&self.limit));
        let (own, adopted) = state::take_over(limit, &tag, found[0], now)?;
        let state = Replacement { found: own.to_vec(), adopted: adopted.to_vec() };
        let sections = state::sections(found[1])?;
        let own = state::find_section(&sections, &tag).map(|place| sections[place].to_vec());
        let copied = match (&own, sections.first()) {
            (Some(own), _) => own.clone(),
            (None, Some(last)) => holds::write(&tag, limit, &holds::parse(last)?.1),
            (None, None) => Vec::new(),
        };
        let holds = Replacement { found: own.unwrap_or_default(), adopted: copied };
        Ok(Takeover { state, holds })
    }
}

/// What follows the tag that the script compared.
fn after_tag(raw: &[u8]) -> Option<&[u8]> {
    match raw.get(1) {
        Some(length) => raw.get(usize::from(*length)..),
        None => Some(raw),
    }
}

impl<'b> Numbers<'b> {
    /// Bytes after their number.
    fn text(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(self.number(4)?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }
}
