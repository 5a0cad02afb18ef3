//! Tokens of slots in flight: encrypted, with all that a release needs.
//!
//! A key and an instant identify a slot, and both together release it. The instant can be guessed. So can the key if the
//! fleet has no secret. Keys of the memory store must stay secret: a client that sees results of their fast hash could
//! construct collisions.
//!
//! Therefore a token is encrypted and authenticated. It reveals nothing and can't be forged. Every node with the same
//! secret can decrypt it, whatever its rules are.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_core::{Algorithm, Key, Keyer, Limit, Quota, RefundToken, Span, Timestamp};
use tidegate_limiter::Refund;

/// The first byte of a token: the version of its format.
const FORMAT_VERSION: u8 = 1;
/// Context of the key derivation. It separates this key from other keys of the same secret.
const KEY_CONTEXT: &str = "tidegate names of slots in flight, format 1";
/// Bytes of one slot: key, instant of acquisition, hold in microseconds, amount of the limit, cost.
const SLOT_BYTES: usize = 16 + 8 + 4 + 2 + 2;
/// Bytes of the authentication tag.
const TAG_BYTES: usize = 16;

/// Encrypts and decrypts the tokens of slots.
pub(crate) struct SlotTokenCipher(LessSafeKey);

/// Prints no key.
impl fmt::Debug for SlotTokenCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotTokenCipher")
    }
}

impl SlotTokenCipher {
    /// Most slots of one token, each of a different rule.
    pub(crate) const MAX_SLOTS: usize = 32;

    /// Returns the cipher of all nodes with this secret.
    ///
    /// A fleet without a secret has a public key. Its tokens are protected against mistakes only, not against forgery.
    pub(crate) fn new(keyer: &Keyer) -> Self {
        let (Keyer::Local { seed: secret } | Keyer::Fleet { secret }) = keyer;
        let key = blake3::derive_key(KEY_CONTEXT, secret);
        let key = UnboundKey::new(&AES_256_GCM_SIV, &key).expect("a derived key has 32 bytes");
        Self(LessSafeKey::new(key))
    }

    /// Returns the token of slots, in characters that need no escape in a URL. `None` for no slots, for more than
    /// [`MAX_SLOTS`](Self::MAX_SLOTS), and for refunds that are no slots.
    pub(crate) fn encrypt(&self, slots: &[Refund]) -> Option<String> {
        if slots.is_empty() || slots.len() > Self::MAX_SLOTS {
            return None;
        }
        let mut bytes = Vec::with_capacity(slots.len() * SLOT_BYTES + TAG_BYTES);
        for slot in slots {
            encode_slot(&mut bytes, slot)?;
        }
        self.0.seal_in_place_append_tag(nonce(), Aad::from([FORMAT_VERSION]), &mut bytes).ok()?;
        bytes.insert(0, FORMAT_VERSION);
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Returns the slots of a token; `None` if it was not encrypted with this key.
    pub(crate) fn decrypt(&self, token: &str) -> Option<Vec<Refund>> {
        const MAX_TOKEN_BYTES: usize = 1 + SlotTokenCipher::MAX_SLOTS * SLOT_BYTES + TAG_BYTES;
        if token.len() > MAX_TOKEN_BYTES.div_ceil(3) * 4 {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (&mut FORMAT_VERSION, sealed) = bytes.split_first_mut()? else { return None };
        let opened = self.0.open_in_place(nonce(), Aad::from([FORMAT_VERSION]), sealed).ok()?;
        let (slots, rest) = opened.as_chunks::<SLOT_BYTES>();
        if slots.is_empty() || !rest.is_empty() {
            return None;
        }
        slots.iter().map(|slot| decode_slot(slot)).collect()
    }
}

/// Returns the nonce, which is always zero. AES-GCM-SIV tolerates a repeated nonce: it reveals only whether two
/// plaintexts are equal.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// Appends the bytes of a slot. Returns `None` if the refund is not one of a slot.
fn encode_slot(bytes: &mut Vec<u8>, slot: &Refund) -> Option<()> {
    let Limit::Concurrency(limit) = &*slot.limit else { return None };
    bytes.extend_from_slice(&slot.key.as_u128().to_be_bytes());
    bytes.extend_from_slice(&slot.refund_token?.at.as_micros().to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(limit.hold().as_micros()).ok()?.to_be_bytes());
    bytes.extend_from_slice(&u16::try_from(slot.limit.quota().amount()).ok()?.to_be_bytes());
    bytes.extend_from_slice(&u16::try_from(slot.cost).ok()?.to_be_bytes());
    Some(())
}

/// Parses the bytes of a slot. Returns `None` if the limit is invalid.
fn decode_slot(mut bytes: &[u8]) -> Option<Refund> {
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

    fn cipher(secret: u8) -> SlotTokenCipher {
        SlotTokenCipher::new(&Keyer::Fleet { secret: [secret; 32] })
    }

    fn debug_text(slots: &[Refund]) -> String {
        format!("{slots:?}")
    }

    proptest! {
        #[test]
        fn token_is_decrypted_with_the_same_secret_only(slots in slots()) {
            let token = cipher(1).encrypt(&slots).unwrap();
            prop_assert!(token.len() < 1_400, "{} bytes", token.len());
            prop_assert!(token.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"-_".contains(&letter)));
            prop_assert_eq!(debug_text(&cipher(1).decrypt(&token).unwrap()), debug_text(&slots));
            prop_assert!(cipher(2).decrypt(&token).is_none());
            let process = SlotTokenCipher::new(&Keyer::Local { seed: [3; 32] });
            prop_assert!(process.decrypt(&token).is_none());
        }

        #[test]
        fn altered_token_is_rejected(
            slots in slots(), position: prop::sample::Index, letter in "[ -~é]", cut: prop::sample::Index,
        ) {
            let token = cipher(1).encrypt(&slots).unwrap();
            let at = position.index(token.len());
            let changed = format!("{}{letter}{}", &token[..at], &token[at + 1..]);
            prop_assert!(changed == token || cipher(1).decrypt(&changed).is_none());
            prop_assert!(cipher(1).decrypt(&token[..cut.index(token.len())]).is_none());
            let longer = token + &letter;
            prop_assert!(cipher(1).decrypt(&longer).is_none());
        }

        #[test]
        fn made_up_token_is_rejected(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(cipher(1).decrypt(&text).is_none());
            prop_assert!(cipher(1).decrypt(&URL_SAFE_NO_PAD.encode(&bytes)).is_none());
            prop_assert!(cipher(1).decrypt(&URL_SAFE_NO_PAD.encode([&[FORMAT_VERSION], bytes.as_slice()].concat())).is_none());
        }
    }

    #[test]
    fn token_does_not_contain_the_key() {
        let token = cipher(1).encrypt(&[slot(0, 0, 1_000_000, 1, 1)]).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        assert_eq!((bytes.len(), bytes[0]), (1 + SLOT_BYTES + TAG_BYTES, FORMAT_VERSION));
        assert!(bytes[1..].iter().filter(|byte| **byte == 0).count() < 8, "{bytes:?}");
    }

    #[test]
    fn no_slots_too_many_slots_and_other_refunds_have_no_token() {
        let one = slot(1, 2, 1_000_000, 3, 1);
        assert!(cipher(1).encrypt(&[]).is_none());
        assert!(cipher(1).encrypt(&vec![one.clone(); SlotTokenCipher::MAX_SLOTS + 1]).is_none());
        let limit = Limit::new(Algorithm::TokenBucket, Quota::per_second(1)).unwrap();
        assert!(cipher(1).encrypt(&[Refund { limit: Arc::new(limit), ..one.clone() }]).is_none());
        assert!(cipher(1).encrypt(&[Refund { refund_token: None, ..one }]).is_none());
    }
}
