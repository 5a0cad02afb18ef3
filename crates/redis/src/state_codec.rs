//! What is kept under a key, byte by byte.
//!
//! A tag, then the state's numbers in network order. The tag is the version of the format, its own
//! length, and the limit that the state belongs to: two releases may share a Redis, and a changed
//! limit has to know what it takes over. The scripts compare tags, and read no more of them than the
//! algorithm and the window.
//!
//! While nodes with different limits use one key, its value has a section for each of them: the byte
//! [`MIXED`], then each section after its length in four bytes, the limit that was used last first. A
//! section is a tag and a state, as it would be alone.

use smallvec::SmallVec;
use tidegate_core::algorithm::concurrency::{Slot, SlotSet};
use tidegate_core::algorithm::fixed_window::WindowCount;
use tidegate_core::algorithm::sliding_log::AdmissionLog;
use tidegate_core::algorithm::sliding_window::WindowCounts;
use tidegate_core::algorithm::token_bucket::BucketLevel;
use tidegate_core::algorithm::{ChargeTerms, PreciseTime};
use tidegate_core::{Algorithm, ClientStates, Limit, Quota, RefundToken, Span, State, Timestamp};

/// The version of the format.
const VERSION: u8 = 1;
/// In place of the version: a value of several sections.
const MIXED: u8 = 2;

/// StateBytes that are almost always few.
pub(crate) type StateBytes = SmallVec<[u8; 48]>;

/// The limit of a state, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LimitTag {
    bytes: StateBytes,
    /// The end of the window in the bytes.
    window_end: usize,
}

const fn id(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::TokenBucket => 1,
        Algorithm::LeakyBucket { .. } => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::SlidingWindow => 4,
        Algorithm::SlidingLog => 5,
        Algorithm::Concurrency { .. } => 6,
    }
}

impl LimitTag {
    pub(crate) fn of(limit: &Limit) -> Self {
        let (quota, algorithm) = (limit.quota(), limit.algorithm());
        let mut bytes = StateBytes::from_slice(&[VERSION, 0, id(algorithm)]);
        let window = match algorithm {
            Algorithm::Concurrency { hold } => hold,
            _ => quota.window(),
        };
        put_varint(&mut bytes, window.as_micros());
        let window_end = bytes.len();
        put_varint(&mut bytes, quota.amount());
        match algorithm {
            Algorithm::TokenBucket => {
                put_varint(&mut bytes, quota.explicit_burst().map_or(0, |burst| burst + 1));
            }
            Algorithm::LeakyBucket { queue } => put_varint(&mut bytes, queue),
            Algorithm::FixedWindow
            | Algorithm::SlidingWindow
            | Algorithm::SlidingLog
            | Algorithm::Concurrency { .. } => {}
        }
        // At most 3 bytes and three numbers of at most 10 bytes each.
        bytes[1] = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        Self { bytes, window_end }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn algorithm(&self) -> u8 {
        self.bytes[2]
    }

    /// Returns the bytes that follow the first two in the tags of limits that
    /// [share a state](Limit::shares_state_with) with this one: all of it for buckets, for windows as
    /// much as has the window, and for slots in flight the algorithm alone.
    pub(crate) fn shared(&self) -> &[u8] {
        if self.algorithm() == id(Algorithm::Concurrency { hold: Span::ZERO }) {
            return &self.bytes[2..3];
        }
        let bucket = self.algorithm() <= id(Algorithm::LeakyBucket { queue: 0 });
        &self.bytes[2..if bucket { self.bytes.len() } else { self.window_end }]
    }
}

/// A tag as the scripts read it: algorithm, its length, how much of it is shared, and it.
pub(crate) fn put_tag(bytes: &mut Vec<u8>, tag: &LimitTag) {
    let byte = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    bytes.extend([tag.algorithm(), byte(tag.bytes.len()), byte(tag.shared().len())]);
    bytes.extend_from_slice(&tag.bytes);
}

/// The reason why bytes are no state.
pub(crate) type Unreadable = &'static str;

/// The sections of a key's value, the limit that was used last first.
pub(crate) fn sections(raw: &[u8]) -> Result<SmallVec<[&[u8]; 2]>, Unreadable> {
    if raw.first() != Some(&MIXED) {
        return Ok(SmallVec::from_iter((!raw.is_empty()).then_some(raw)));
    }
    let (mut sections, mut rest) = (SmallVec::<[&[u8]; 2]>::new(), &raw[1..]);
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let (section, after) = after.split_at_checked(length).ok_or("a section is cut short")?;
        sections.push(section);
        rest = after;
    }
    if sections.len() < 2 || !rest.is_empty() {
        return Err("its sections can't be split");
    }
    Ok(sections)
}

/// The place of the section that belongs to a tag.
pub(crate) fn find_section(sections: &[&[u8]], tag: &LimitTag) -> Option<usize> {
    sections.iter().position(|section| {
        section.first() == Some(&VERSION)
            && section.get(2..).is_some_and(|rest| rest.starts_with(tag.shared()))
    })
}

/// The section of a limit in a value that another limit used last, and the section to replace it;
/// either is empty if there is none.
pub(crate) fn migrate_state<'r>(
    limit: &Limit,
    tag: &LimitTag,
    raw: &'r [u8],
    now: Timestamp,
) -> Result<(&'r [u8], StateBytes), Unreadable> {
    let sections = sections(raw)?;
    let mut states: ClientStates = parse_all(raw, parse)?.into_iter().collect();
    // The script passes over sections that have expired.
    states.drop_expired(now);
    let own = states.find(limit).and_then(|_| find_section(&sections, tag));
    let found = own.map_or(&[][..], |place| sections[place]);
    let migrated = write(tag, states.enter(limit, now)).unwrap_or_default();
    Ok((found, migrated))
}

/// The sections of a key's value, each read by `parse`, the limit that was used last first.
pub(crate) fn parse_all<T>(
    raw: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, Unreadable>,
) -> Result<Vec<T>, Unreadable> {
    sections(raw)?.into_iter().map(parse).collect()
}

/// The first section of a key's value, read by `parse`: that of the limit that was used last.
pub(crate) fn parse_first<T>(
    raw: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, Unreadable>,
) -> Result<T, Unreadable> {
    parse(sections(raw)?.first().ok_or("it is empty")?)
}

/// The limit and the state of a section.
pub(crate) fn parse(raw: &[u8]) -> Result<(Limit, State), Unreadable> {
    let (limit, payload) = parse_tag(raw)?;
    let state = match limit {
        _ if payload.is_empty() => limit.fresh(),
        Limit::SlidingLog(_) => parse_log(payload).ok_or("its log can't be")?,
        Limit::Concurrency(_) => parse_slots(payload).ok_or("its slots can't be")?,
        _ => read(&limit, payload).ok_or("its length is wrong")?,
    };
    Ok((limit, state))
}

/// The limit that a key's bytes belong to, and what follows its tag.
pub(crate) fn parse_tag(raw: &[u8]) -> Result<(Limit, &[u8]), Unreadable> {
    let (&[version, length, algorithm], _) = raw.split_first_chunk().ok_or("it is cut short")?;
    if version != VERSION {
        return Err("its format is of another version");
    }
    let (tag, payload) = raw.split_at_checked(length.into()).ok_or("its tag is cut short")?;
    let mut rest = tag.get(3..).ok_or("its tag is cut short")?;
    let mut next = || take_varint(&mut rest).ok_or("its tag is cut short");
    let (window, amount) = (Span::from_micros(next()?), next()?);
    let quota = Quota::per(amount, window);
    let (algorithm, quota) = match algorithm {
        1 => match next()? {
            0 => (Algorithm::TokenBucket, quota),
            burst => (Algorithm::TokenBucket, quota.burst(burst - 1)),
        },
        2 => (Algorithm::LeakyBucket { queue: next()? }, quota),
        3 => (Algorithm::FixedWindow, quota),
        4 => (Algorithm::SlidingWindow, quota),
        5 => (Algorithm::SlidingLog, quota),
        6 => (Algorithm::Concurrency { hold: window }, Quota::in_flight(amount)),
        _ => return Err("its algorithm is unknown"),
    };
    let limit = Limit::new(algorithm, quota).map_err(|_| "its limit can't be")?;
    Ok((limit, payload))
}

/// The state of a limit other than a log or slots, from what follows the tag; nothing is a new client.
pub(crate) fn read(limit: &Limit, payload: &[u8]) -> Option<State> {
    if payload.is_empty() {
        return Some(limit.fresh());
    }
    let mut at = NumberReader(payload);
    let state = match (limit, payload.len()) {
        (Limit::TokenBucket(_), 7) => {
            BucketLevel { due: at.instant()?, returned: PreciseTime::default() }.into()
        }
        (Limit::TokenBucket(_), 14) => {
            BucketLevel { due: at.due()?, returned: PreciseTime::default() }.into()
        }
        (Limit::TokenBucket(_), 28) => BucketLevel { due: at.due()?, returned: at.due()? }.into(),
        (Limit::LeakyBucket(_), 7) => at.instant()?.into(),
        (Limit::LeakyBucket(_), 14) => at.due()?.into(),
        (Limit::FixedWindow(_), 11) => WindowCount { end: at.time()?, spent: at.number(4)? }.into(),
        (Limit::FixedWindow(_), 14) => WindowCount { end: at.time()?, spent: at.number(7)? }.into(),
        (Limit::SlidingWindow(_), 15 | 21) => {
            let size = (payload.len() - 7) / 2;
            let end = at.time()?;
            WindowCounts { end, current: at.number(size)?, previous: at.number(size)? }.into()
        }
        _ => return None,
    };
    Some(state)
}

/// Reads the charge script's summary of a log, as the shortest log that decides its cost alike.
pub(crate) fn read_log_summary(payload: &[u8], now: Timestamp) -> Option<State> {
    let mut at = NumberReader(payload);
    let (spent, added, freed) = (at.number(4)?, at.number(4)?, at.number(4)?);
    let (freed_at, last) = (at.time()?, at.time()?);
    let kept = spent.checked_sub(added)?.checked_sub(freed)?;
    let mut entries: SmallVec<[(Timestamp, u64); 3]> = SmallVec::new();
    for (instant, cost) in [(freed_at, freed), (last, kept), (now.max(last), added)] {
        match entries.last_mut() {
            _ if cost == 0 => {}
            Some((same, spent)) if *same == instant => *spent += cost,
            _ => entries.push((instant, cost)),
        }
    }
    at.0.is_empty().then(|| AdmissionLog::new(entries).into())
}

/// Reads the charge script's summary of slots, as the fewest slots that decide its cost alike.
pub(crate) fn read_slots_summary(payload: &[u8]) -> Option<State> {
    let mut at = NumberReader(payload);
    let (used, last, freed) = (at.number(4)?, at.time()?, at.number(4)?);
    let (freed_at, latest) = (at.time()?, at.time()?);
    let slot = |count, until| Slot { id: Timestamp::EPOCH, until, count };
    let held = [slot(freed, freed_at), slot(used.checked_sub(freed)?, latest)];
    at.0.is_empty().then(|| SlotSet::new(held, last, Timestamp::EPOCH).into())
}

const SLOT: usize = 16;

fn parse_slots(payload: &[u8]) -> Option<State> {
    let mut at = NumberReader(payload);
    let (last, complete_from) = (at.time()?, at.time()?);
    let slot = |bytes: &[u8]| {
        let mut at = NumberReader(bytes);
        Some(Slot { id: at.time()?, until: at.time()?, count: at.number(2)? })
    };
    if !at.0.len().is_multiple_of(SLOT) {
        return None;
    }
    let taken: Option<Vec<Slot>> = at.0.chunks_exact(SLOT).map(slot).collect();
    Some(SlotSet::new(taken?, last, complete_from).into())
}

const LOG_ENTRY: usize = 9;

fn parse_log(payload: &[u8]) -> Option<State> {
    let mut at = NumberReader(payload);
    let (first, count) = (at.number(4)?, at.number(4)?);
    let (_, _) = (at.number(4)?, at.time()?);
    let (first, count) = (usize::try_from(first).ok()?, usize::try_from(count).ok()?);
    let live = at.0.get(first.checked_mul(LOG_ENTRY)?..count.checked_mul(LOG_ENTRY)?)?;
    let entry = |bytes: &[u8]| {
        let mut at = NumberReader(bytes);
        Some((at.time()?, at.number(2)?))
    };
    let entries: Option<Vec<_>> = live.chunks_exact(LOG_ENTRY).map(entry).collect();
    Some(AdmissionLog::new(entries?).into())
}

/// The bytes of a state under a limit; `None` when there is nothing to keep.
pub(crate) fn write(tag: &LimitTag, state: &State) -> Option<StateBytes> {
    let mut bytes = tag.bytes.clone();
    match state {
        State::Tokens(BucketLevel { due, returned }) => {
            if *returned != PreciseTime::default() {
                put_numbers(&mut bytes, &[due.micros, due.parts, returned.micros, returned.parts]);
            } else if due.parts > 0 {
                put_numbers(&mut bytes, &[due.micros, due.parts]);
            } else {
                put_numbers(&mut bytes, &[due.micros]);
            }
        }
        State::Queue(due) if due.parts > 0 => put_numbers(&mut bytes, &[due.micros, due.parts]),
        State::Queue(due) => put_numbers(&mut bytes, &[due.micros]),
        State::Fixed(WindowCount { end, spent }) => {
            put_numbers(&mut bytes, &[end.as_micros(), *spent]);
        }
        State::Sliding(WindowCounts { end, current, previous }) => {
            put_numbers(&mut bytes, &[end.as_micros(), *current, *previous]);
        }
        State::Log(log) => {
            let entries: Vec<(Timestamp, u64)> = log.entries().collect();
            let (last, _) = entries.last()?;
            let spent: u64 = entries.iter().map(|(_, cost)| cost).sum();
            for number in [0, u64::try_from(entries.len()).ok()?, spent] {
                bytes.extend_from_slice(&number.to_be_bytes()[4..]);
            }
            put_numbers(&mut bytes, &[last.as_micros()]);
            for (instant, cost) in entries {
                put_numbers(&mut bytes, &[instant.as_micros()]);
                bytes.extend_from_slice(&cost.to_be_bytes()[6..]);
            }
        }
        State::Slots(slots) => {
            if *slots == SlotSet::default() {
                return None;
            }
            let numbers = [slots.last(), slots.complete_from()];
            put_numbers(&mut bytes, &numbers.map(Timestamp::as_micros));
            for slot in slots.taken() {
                put_numbers(&mut bytes, &[slot.id.as_micros(), slot.until.as_micros()]);
                bytes.extend_from_slice(&slot.count.to_be_bytes()[6..]);
            }
        }
    }
    Some(bytes)
}

/// The numbers of a limit and a cost as the scripts read them.
pub(crate) fn put_terms(bytes: &mut Vec<u8>, terms: &ChargeTerms) {
    match *terms {
        ChargeTerms::Bucket { parts, depth, cost } => {
            put_numbers(bytes, &[parts, depth.micros, depth.parts, cost.micros, cost.parts]);
        }
        ChargeTerms::Window { window, amount, cost } => put_numbers(bytes, &[window, amount, cost]),
    }
}

/// A refund token as the refund script reads it.
pub(crate) fn put_refund_token(bytes: &mut Vec<u8>, refund_token: &RefundToken) {
    put_numbers(
        bytes,
        &[refund_token.at.as_micros(), refund_token.until.as_micros(), refund_token.parts],
    );
}

/// Each number in seven bytes: all of them are below 2^53.
pub(crate) fn put_numbers(bytes: &mut impl Extend<u8>, numbers: &[u64]) {
    for number in numbers {
        let [_, seven @ ..] = number.to_be_bytes();
        bytes.extend(seven);
    }
}

/// NumberReader in network order, one after another.
pub(crate) struct NumberReader<'b>(pub(crate) &'b [u8]);

impl<'b> NumberReader<'b> {
    pub(crate) fn number(&mut self, size: usize) -> Option<u64> {
        let (bytes, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        self.number(7).map(Timestamp::from_micros)
    }

    /// Reads bytes after their number.
    pub(crate) fn text(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(self.number(4)?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }

    fn instant(&mut self) -> Option<PreciseTime> {
        Some(PreciseTime { micros: self.number(7)?, parts: 0 })
    }

    fn due(&mut self) -> Option<PreciseTime> {
        Some(PreciseTime { micros: self.number(7)?, parts: self.number(7)? })
    }
}

fn put_varint(bytes: &mut StateBytes, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
