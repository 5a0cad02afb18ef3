//! What is kept of holds, byte by byte, beside the state of the same client.
//!
//! The tag of the limit, as a state has it, then for each hold its name, its tokens, how many of them
//! are spent and when it ends; for a bucket also how long these tokens take to refill, which the
//! script adds up and can't work out. Limits that nodes use at the same time have a section each, as
//! states have.

use tidegate_core::algorithm::Terms;
use tidegate_core::{Hold, HoldId, Holds, Limit};

use super::state_codec::{LimitTag, NumberReader, Unreadable, parse_tag, put_numbers};

/// StateBytes of a hold without what its tokens take.
const PLAIN: usize = 12 + 3 * 7;

/// The limit and the holds of a section.
pub(crate) fn parse(raw: &[u8]) -> Result<(Limit, Holds), Unreadable> {
    let (limit, payload) = parse_tag(raw)?;
    let holds = read(&limit, payload).ok_or("its length is wrong")?;
    Ok((limit, holds))
}

/// The holds of a limit, from what follows the tag; nothing is none.
pub(crate) fn read(limit: &Limit, payload: &[u8]) -> Option<Holds> {
    let size = PLAIN + if let Limit::TokenBucket(_) = limit { 4 * 7 } else { 0 };
    let chunks = payload.chunks_exact(size);
    if !chunks.remainder().is_empty() || chunks.len() > Holds::MOST {
        return None;
    }
    let hold = |bytes| {
        let mut at = NumberReader(bytes);
        let id = HoldId { node: at.number(8)?, number: u32::try_from(at.number(4)?).ok()? };
        Some(Hold { id, amount: at.number(7)?, spent: at.number(7)?, until: at.time()? })
    };
    chunks.map(hold).collect()
}

/// The bytes of holds under a limit; nothing for none.
pub(crate) fn write(tag: &LimitTag, limit: &Limit, holds: &Holds) -> Vec<u8> {
    if holds.is_empty() {
        return Vec::new();
    }
    let mut bytes = tag.bytes().to_vec();
    for hold in holds.iter() {
        put_name(&mut bytes, hold.id);
        put_numbers(&mut bytes, &[hold.amount, hold.spent, hold.until.as_micros()]);
        if let Limit::TokenBucket(_) = limit {
            let put = if hold.is_mark() { put_weight } else { put_span };
            put(&mut bytes, limit, hold.amount);
            put(&mut bytes, limit, hold.spent);
        }
    }
    bytes
}

/// The name of a hold as scripts compare it.
pub(crate) fn put_name(bytes: &mut Vec<u8>, id: HoldId) {
    bytes.extend(id.node.to_be_bytes());
    bytes.extend(id.number.to_be_bytes());
}

/// Writes the refill time of some tokens in two numbers. More than the capacity take as long as that.
pub(crate) fn put_span(bytes: &mut Vec<u8>, limit: &Limit, tokens: u64) {
    match limit.terms(tokens) {
        Terms::Bucket { cost, .. } => put_numbers(bytes, &[cost.micros, cost.parts]),
        Terms::Window { cost, .. } => put_numbers(bytes, &[cost, 0]),
    }
}

/// Writes the refill time of some tokens in two numbers, also if they are more than the capacity.
pub(crate) fn put_weight(bytes: &mut Vec<u8>, limit: &Limit, tokens: u64) {
    let weight = limit.weight(tokens);
    put_numbers(bytes, &[weight.micros, weight.parts]);
}
