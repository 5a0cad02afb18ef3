//! The bytes of leases, which are stored beside the state of the same client.
//!
//! The tag of the limit, as a state has it, then for each lease its id, its tokens, the number of them that are spent
//! and its end; for a bucket also the time in which these tokens refill, which the script adds up and can't compute. Limits that nodes use at the same time have a section each, as
//! states have.

use tidegate_core::algorithm::ChargeTerms;
use tidegate_core::{Lease, LeaseId, LeaseSet, Limit};

use super::state_codec::{LimitTag, NumberReader, Unreadable, parse_tag, put_numbers};

/// Bytes of a lease without the refill time of its tokens.
const PLAIN: usize = 12 + 3 * 7;

/// Returns the limit and the leases of a section.
pub(crate) fn parse(raw: &[u8]) -> Result<(Limit, LeaseSet), Unreadable> {
    let (limit, payload) = parse_tag(raw)?;
    let leases = read(&limit, payload).ok_or("its length is wrong")?;
    Ok((limit, leases))
}

/// Returns the leases of a limit, from the bytes after the tag; without bytes there is none.
pub(crate) fn read(limit: &Limit, payload: &[u8]) -> Option<LeaseSet> {
    let size = PLAIN + if let Limit::TokenBucket(_) = limit { 4 * 7 } else { 0 };
    let chunks = payload.chunks_exact(size);
    if !chunks.remainder().is_empty() || chunks.len() > LeaseSet::MAX_LEASES {
        return None;
    }
    let lease = |bytes| {
        let mut at = NumberReader(bytes);
        let id = LeaseId { node: at.number(8)?, number: u32::try_from(at.number(4)?).ok()? };
        Some(Lease { id, amount: at.number(7)?, spent: at.number(7)?, until: at.time()? })
    };
    chunks.map(lease).collect()
}

/// Returns the bytes of leases under a limit; empty without leases.
pub(crate) fn write(tag: &LimitTag, limit: &Limit, leases: &LeaseSet) -> Vec<u8> {
    if leases.is_empty() {
        return Vec::new();
    }
    let mut bytes = tag.bytes().to_vec();
    for lease in leases.iter() {
        put_name(&mut bytes, lease.id);
        put_numbers(&mut bytes, &[lease.amount, lease.spent, lease.until.as_micros()]);
        if let Limit::TokenBucket(_) = limit {
            let put = if lease.is_mark() { put_weight } else { put_span };
            put(&mut bytes, limit, lease.amount);
            put(&mut bytes, limit, lease.spent);
        }
    }
    bytes
}

/// Writes the id of a lease as scripts compare it.
pub(crate) fn put_name(bytes: &mut Vec<u8>, id: LeaseId) {
    bytes.extend(id.node.to_be_bytes());
    bytes.extend(id.number.to_be_bytes());
}

/// Writes the refill time of some tokens in two numbers. More than the capacity take as long as that.
pub(crate) fn put_span(bytes: &mut Vec<u8>, limit: &Limit, tokens: u64) {
    match limit.terms(tokens) {
        ChargeTerms::Bucket { cost, .. } => put_numbers(bytes, &[cost.micros, cost.parts]),
        ChargeTerms::Window { cost, .. } => put_numbers(bytes, &[cost, 0]),
    }
}

/// Writes the refill time of some tokens in two numbers, also if they are more than the capacity.
pub(crate) fn put_weight(bytes: &mut Vec<u8>, limit: &Limit, tokens: u64) {
    let weight = limit.weight(tokens);
    put_numbers(bytes, &[weight.micros, weight.parts]);
}
