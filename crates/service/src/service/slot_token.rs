//! Names of slots in flight for those outside: all that a release needs, for nobody but us to read.
//!
//! A slot is named by its key and an instant, and whoever knows both can release it. The instant can be
//! guessed, and so can the key where a fleet has no secret. Keys of a store in memory must not be seen at
//! all: they are made in a way that is safe only while nobody does. So a name is sealed: it tells nothing,
//! nobody can make one up, and each node with the same secret reads it, whatever its rules are by then.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_core::{Algorithm, Key, Keyer, Limit, Quota, RefundToken, Span, Timestamp};
use tidegate_limiter::Refund;

/// The first byte of a name, which tells how the rest is to be read.
const FORMAT: u8 = 1;
/// What the key is derived for, and for nothing else.
const PURPOSE: &str = "tidegate names of slots in flight, format 1";
/// One slot in bytes: key, instant of taking it, hold in microseconds, amount of the limit, cost.
const SLOT: usize = 16 + 8 + 4 + 2 + 2;
/// What the seal adds, in bytes.
const TAG: usize = 16;

/// Seals names, and opens them.
pub(crate) struct SlotTokenCipher(LessSafeKey);

/// Hides the key.
impl fmt::Debug for SlotTokenCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotTokenCipher")
    }
}

impl SlotTokenCipher {
    /// Most slots of one name, each of a rule of its own.
    pub(crate) const MAX_SLOTS: usize = 32;

    /// A seal that everybody with the same secret has.
    ///
    /// In a fleet without a secret it keeps out mistakes, and not somebody who knows how it is made.
    pub(crate) fn new(keyer: &Keyer) -> Self {
        let (Keyer::Local { seed: secret } | Keyer::Fleet { secret }) = keyer;
        let key = blake3::derive_key(PURPOSE, secret);
        let key = UnboundKey::new(&AES_256_GCM_SIV, &key).expect("the key has the length of one");
        Self(LessSafeKey::new(key))
    }

    /// The name of some slots: short, and of letters that are safe in a URL. `None` for slots that no
    /// name has room for: none at all, or too many.
    pub(crate) fn close(&self, slots: &[Refund]) -> Option<String> {
        if slots.is_empty() || slots.len() > Self::MAX_SLOTS {
            return None;
        }
        let mut sealed = Vec::with_capacity(slots.len() * SLOT + TAG);
        for slot in slots {
            put(&mut sealed, slot)?;
        }
        self.0.seal_in_place_append_tag(nonce(), Aad::from([FORMAT]), &mut sealed).ok()?;
        sealed.insert(0, FORMAT);
        Some(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// The slots of a name; `None` if it is not one of ours.
    pub(crate) fn open(&self, name: &str) -> Option<Vec<Refund>> {
        const LONGEST: usize = 1 + SlotTokenCipher::MAX_SLOTS * SLOT + TAG;
        if name.len() > LONGEST.div_ceil(3) * 4 {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(name).ok()?;
        let (&mut FORMAT, sealed) = bytes.split_first_mut()? else { return None };
        let opened = self.0.open_in_place(nonce(), Aad::from([FORMAT]), sealed).ok()?;
        let (slots, rest) = opened.as_chunks::<SLOT>();
        if slots.is_empty() || !rest.is_empty() {
            return None;
        }
        slots.iter().map(|slot| take(slot)).collect()
    }
}

/// The same for all: no two different things are ever sealed alike, and this cipher gives away no more
/// than whether two of them are the same.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// Adds a slot. `None` if it is none.
fn put(bytes: &mut Vec<u8>, slot: &Refund) -> Option<()> {
    let Limit::Concurrency(limit) = &*slot.limit else { return None };
    bytes.extend_from_slice(&slot.key.as_u128().to_be_bytes());
    bytes.extend_from_slice(&slot.refund_token?.at.as_micros().to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(limit.hold().as_micros()).ok()?.to_be_bytes());
    bytes.extend_from_slice(&u16::try_from(slot.limit.quota().amount()).ok()?.to_be_bytes());
    bytes.extend_from_slice(&u16::try_from(slot.cost).ok()?.to_be_bytes());
    Some(())
}

/// Reads a slot. `None` if there is no such limit.
fn take(mut bytes: &[u8]) -> Option<Refund> {
    fn next<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (first, rest) = bytes.split_first_chunk::<N>()?;
        *bytes = rest;
        Some(*first)
    }
    let key = Key::from_u128(u128::from_be_bytes(next(&mut bytes)?));
    let at = Timestamp::from_micros(u64::from_be_bytes(next(&mut bytes)?));
    let hold = Span::from_micros(u32::from_be_bytes(next(&mut bytes)?).into());
    let quota = Quota::in_flight(u16::from_be_bytes(next(&mut bytes)?).into());
    let cost = u16::from_be_bytes(next(&mut bytes)?).into();
    let limit = Arc::new(Limit::new(Algorithm::Concurrency { hold }, quota).ok()?);
    Some(Refund {
        key,
        limit,
        cost,
        refund_token: Some(RefundToken { at, until: at + hold, parts: 0 }),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(key: u128, at: u64, hold: u64, amount: u64, cost: u64) -> Refund {
        let (at, hold) = (Timestamp::from_micros(at), Span::from_micros(hold));
        let limit = Limit::new(Algorithm::Concurrency { hold }, Quota::in_flight(amount)).unwrap();
        let refund_token = RefundToken { at, until: at + hold, parts: 0 };
        Refund {
            key: Key::from_u128(key),
            limit: Arc::new(limit),
            cost,
            refund_token: Some(refund_token),
        }
    }

    fn slots() -> impl Strategy<Value = Vec<Refund>> {
        let numbers = (any::<u128>(), 0..1u64 << 53, 1_000_000..=3_600_000_000u64, 1..=10_000u64);
        let slot = numbers.prop_flat_map(|(key, at, hold, amount)| {
            (1..=amount).prop_map(move |cost| slot(key, at, hold, amount, cost))
        });
        proptest::collection::vec(slot, 1..=SlotTokenCipher::MAX_SLOTS)
    }

    fn seal(secret: u8) -> SlotTokenCipher {
        SlotTokenCipher::new(&Keyer::Fleet { secret: [secret; 32] })
    }

    fn shown(slots: &[Refund]) -> String {
        format!("{slots:?}")
    }

    proptest! {
        #[test]
        fn a_name_is_read_by_who_has_the_secret_and_by_nobody_else(slots in slots()) {
            let name = seal(1).close(&slots).unwrap();
            prop_assert!(name.len() < 1_400, "{} letters", name.len());
            prop_assert!(name.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"-_".contains(&letter)));
            prop_assert_eq!(shown(&seal(1).open(&name).unwrap()), shown(&slots));
            prop_assert!(seal(2).open(&name).is_none());
            let process = SlotTokenCipher::new(&Keyer::Local { seed: [3; 32] });
            prop_assert!(process.open(&name).is_none());
        }

        #[test]
        fn a_name_with_anything_changed_is_none(
            slots in slots(), place: prop::sample::Index, letter in "[ -~é]", cut: prop::sample::Index,
        ) {
            let name = seal(1).close(&slots).unwrap();
            let at = place.index(name.len());
            let changed = format!("{}{letter}{}", &name[..at], &name[at + 1..]);
            prop_assert!(changed == name || seal(1).open(&changed).is_none());
            prop_assert!(seal(1).open(&name[..cut.index(name.len())]).is_none());
            let longer = name + &letter;
            prop_assert!(seal(1).open(&longer).is_none());
        }

        #[test]
        fn whatever_is_made_up_is_no_name(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(seal(1).open(&text).is_none());
            prop_assert!(seal(1).open(&URL_SAFE_NO_PAD.encode(&bytes)).is_none());
            prop_assert!(seal(1).open(&URL_SAFE_NO_PAD.encode([&[FORMAT], bytes.as_slice()].concat())).is_none());
        }
    }

    #[test]
    fn a_name_shows_nothing_of_the_key() {
        let name = seal(1).close(&[slot(0, 0, 1_000_000, 1, 1)]).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&name).unwrap();
        assert_eq!((bytes.len(), bytes[0]), (1 + SLOT + TAG, FORMAT));
        assert!(bytes[1..].iter().filter(|byte| **byte == 0).count() < 8, "{bytes:?}");
    }

    #[test]
    fn there_is_no_name_for_nothing_for_too_many_and_for_what_is_no_slot() {
        let one = slot(1, 2, 1_000_000, 3, 1);
        assert!(seal(1).close(&[]).is_none());
        assert!(seal(1).close(&vec![one.clone(); SlotTokenCipher::MAX_SLOTS + 1]).is_none());
        let limit = Limit::new(Algorithm::TokenBucket, Quota::per_second(1)).unwrap();
        assert!(seal(1).close(&[Refund { limit: Arc::new(limit), ..one.clone() }]).is_none());
        assert!(seal(1).close(&[Refund { refund_token: None, ..one }]).is_none());
    }
}
