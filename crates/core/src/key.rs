//! Keys of clients: a 128-bit keyed hash of the values that identify a client under a rule.
//!
//! Each value has a prefix with its length and its attribute, so the hashed bytes of two different clients differ. The
//! hash is keyed, so an attacker can't search for two clients with the same key. Identifiers such as an API key or a
//! user id can't be recovered from the key.

mod multilinear;

use self::multilinear::Multilinear;

/// The key of one client under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u128);

impl Key {
    /// Returns the key with this number.
    #[must_use]
    pub const fn from_u128(number: u128) -> Self {
        Self(number)
    }

    /// Returns the key as a number, evenly distributed over its 128 bits.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Returns the `index`-th key after this one, for states that belong together.
    #[must_use]
    pub const fn offset(self, index: u64) -> Self {
        // The widening is lossless; `From` is not const.
        #[allow(clippy::as_conversions, reason = "u64 to u128 in a const fn")]
        Self(self.0.wrapping_add(index as u128))
    }
}

/// One piece of a client's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The request has none of the attributes that the rule counts by.
    Absent,
    /// The value of the first attribute present.
    Value {
        /// Its index among the rule's alternatives: `user | api_key` has 0 and 1.
        alternative: u16,
        /// The value in the request.
        value: &'a [u8],
    },
}

impl<'a> Part<'a> {
    /// Returns the value of a rule's only, or first, alternative.
    #[must_use]
    pub const fn first(value: &'a [u8]) -> Self {
        Self::Value { alternative: 0, value }
    }

    /// Returns the prefix of the value: its alternative and its length. Never zero.
    #[inline]
    fn header(&self) -> u64 {
        const LENGTH: u64 = u64::MAX >> 16;
        match self {
            Self::Absent => u64::MAX,
            Self::Value { alternative, value } => {
                let length = u64::try_from(value.len()).unwrap_or(LENGTH);
                (u64::from(*alternative) << 48) | ((length + 1) & LENGTH)
            }
        }
    }

    /// Adds the part to a hash. Different sequences of parts add different bytes.
    pub fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.header().to_le_bytes());
        hasher.update(self.value());
    }

    #[inline]
    fn value(&self) -> &'a [u8] {
        match self {
            Self::Absent => &[],
            Self::Value { value, .. } => value,
        }
    }
}

/// The secret of a set of keys, for one process or for a fleet.
#[derive(Clone)]
pub enum Keyer {
    /// Keys of this process only, computed by a fast hash with random numbers.
    Local {
        /// Random bytes, drawn once per process.
        seed: [u8; 32],
    },
    /// Keys that are the same on every node of a fleet: BLAKE3, with the fleet's secret if it has one.
    Fleet {
        /// 32 bytes that all nodes share; zeros when no secret is set.
        secret: [u8; 32],
    },
}

/// Hides the secret.
impl std::fmt::Debug for Keyer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Local { .. } => "Keyer::Local",
            Self::Fleet { .. } => "Keyer::Fleet",
        })
    }
}

impl Keyer {
    /// Returns the key function of one rule. It depends on the rule's name and on the attributes that the rule counts
    /// by.
    #[must_use]
    pub fn scope<'n>(&self, rule: &'n str, per: impl IntoIterator<Item = &'n str>) -> Scope {
        let mut encoded = Vec::new();
        for word in std::iter::once(rule).chain(per) {
            encoded.extend_from_slice(&Part::first(word.as_bytes()).header().to_le_bytes());
            encoded.extend_from_slice(word.as_bytes());
        }
        match self {
            Self::Local { seed } => {
                let secret = *blake3::keyed_hash(seed, &encoded).as_bytes();
                Scope { secret, local: Some(Multilinear::new(&secret)) }
            }
            Self::Fleet { secret } => {
                Scope { secret: *blake3::keyed_hash(secret, &encoded).as_bytes(), local: None }
            }
        }
    }
}

/// The key function of one rule.
#[derive(Clone)]
pub struct Scope {
    secret: [u8; 32],
    local: Option<Multilinear>,
}

/// Hides the derived secret.
impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scope")
    }
}

impl Scope {
    /// Returns the key of the client that these parts identify.
    #[inline]
    pub fn key<'p, P>(&self, parts: P) -> Key
    where
        P: IntoIterator<Item = Part<'p>>,
        P::IntoIter: Clone,
    {
        let parts = parts.into_iter();
        if let Some(local) = &self.local
            && let Some(key) = Self::multilinear_key(local, parts.clone())
        {
            return key;
        }
        self.blake3_key(parts)
    }

    /// Returns the key of the client that a single part identifies. Faster than [`key`](Self::key), with the same
    /// result.
    #[inline]
    #[must_use]
    pub fn key_of(&self, part: Part<'_>) -> Key {
        if let Some(local) = &self.local {
            let mut sum = local.sum();
            if sum.add_part(part.header(), part.value()).is_some() {
                return Key(sum.finish());
            }
        }
        self.blake3_key(std::iter::once(part))
    }

    /// Returns the key of the client that this value names. An empty value counts as absent: all of them share one key.
    #[inline]
    #[must_use]
    pub fn key_of_value(&self, value: &[u8]) -> Key {
        self.key_of(if value.is_empty() { Part::Absent } else { Part::first(value) })
    }

    /// Returns the multilinear hash; `None` if the parts are too long for it.
    #[inline]
    fn multilinear_key<'p>(
        local: &Multilinear,
        parts: impl Iterator<Item = Part<'p>>,
    ) -> Option<Key> {
        let mut sum = local.sum();
        for part in parts {
            sum.add_part(part.header(), part.value())?;
        }
        Some(Key(sum.finish()))
    }

    /// Returns the BLAKE3 hash.
    #[cold]
    fn blake3_key<'p>(&self, parts: impl Iterator<Item = Part<'p>>) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        parts.for_each(|part| part.hash_into(&mut hasher));
        let mut cut = [0; 16];
        hasher.finalize_xof().fill(&mut cut);
        Key(u128::from_le_bytes(cut))
    }

    /// Returns the first key of the states that new clients share when a store has no room for their own.
    #[must_use]
    pub fn overflow_key(&self) -> Key {
        // No client has this key: the parts of a client start with a header, and no header has this value.
        const SHARED: [u8; 8] = (u64::MAX - 1).to_le_bytes();
        let mut cut = [0; 16];
        blake3::Hasher::new_keyed(&self.secret).update(&SHARED).finalize_xof().fill(&mut cut);
        Key(u128::from_le_bytes(cut))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn keyers() -> [Keyer; 2] {
        [Keyer::Local { seed: [7; 32] }, Keyer::Fleet { secret: [0; 32] }]
    }

    fn value(alternative: u16, text: &str) -> Part<'_> {
        Part::Value { alternative, value: text.as_bytes() }
    }

    #[test]
    fn different_clients_have_different_keys() {
        for keyer in keyers() {
            let scope = keyer.scope("api", ["a", "b"]);
            let clients: [&[Part<'_>]; 9] = [
                &[value(0, "user"), value(0, "id_5")],
                &[value(0, "user_id"), value(0, "5")],
                &[value(0, "user_id5")],
                &[value(0, ""), value(0, "user_id5")],
                &[value(0, "user_id5"), value(0, "")],
                &[value(1, "user_id5")],
                &[Part::Absent],
                &[value(0, "")],
                &[Part::Absent, Part::Absent],
            ];
            let keys: HashSet<Key> =
                clients.iter().map(|parts| scope.key(parts.iter().copied())).collect();
            assert_eq!(keys.len(), clients.len(), "{keyer:?}");
            assert!(!keys.contains(&scope.overflow_key()));
        }
    }

    #[test]
    fn every_byte_of_a_long_value_changes_the_key() {
        for keyer in keyers() {
            let scope = keyer.scope("api", ["a"]);
            let mut keys = HashSet::new();
            for length in 0..600 {
                let mut value = vec![b'x'; length];
                keys.insert(scope.key([Part::first(&value)]));
                assert_eq!(scope.key_of(Part::first(&value)), scope.key([Part::first(&value)]));
                if let Some(last) = value.last_mut() {
                    *last = b'y';
                    keys.insert(scope.key([Part::first(&value)]));
                }
            }
            assert_eq!(keys.len(), 600 + 599, "{keyer:?}");
        }
    }

    #[test]
    fn rules_with_another_name_or_attribute_have_other_keys() {
        for keyer in keyers() {
            let keys: HashSet<Key> = [
                keyer.scope("api", ["user"]),
                keyer.scope("login", ["user"]),
                keyer.scope("api", ["ip"]),
                keyer.scope("apiuser", []),
            ]
            .iter()
            .map(|scope| scope.key([Part::first(b"5")]))
            .collect();
            assert_eq!(keys.len(), 4, "{keyer:?}");
        }
    }

    #[test]
    fn keys_depend_on_the_secret_only() {
        let key = |keyer: Keyer| keyer.scope("api", ["user"]).key([Part::first(b"alice")]);
        let fleet = |secret| Keyer::Fleet { secret };
        assert_eq!(key(fleet([1; 32])), key(fleet([1; 32])));
        assert_ne!(key(fleet([1; 32])), key(fleet([2; 32])));
        assert_ne!(key(Keyer::Local { seed: [1; 32] }), key(Keyer::Local { seed: [2; 32] }));
    }

    #[test]
    fn debug_output_hides_secrets() {
        for keyer in keyers() {
            assert!(!format!("{keyer:?} {:?}", keyer.scope("a", [])).contains('7'));
        }
    }
}
