//! The independent server that a key is stored on.

use super::address::Address;

/// Rendezvous hashing over independent servers: the shard with the highest score for a key stores it.
///
/// A new shard takes its share of the keys and moves no others. All nodes of a fleet agree, whatever the order in
/// which they list the shards: a shard is known by its address as it is written, so `localhost` and `127.0.0.1` are
/// two. A shard that does not answer keeps its keys.
pub(crate) struct RendezvousHash {
    /// A hash of each shard's address and its place in the list, sorted by hash.
    shards: Box<[(u128, usize)]>,
}

impl RendezvousHash {
    /// For these shards; there is at least one, and none twice.
    pub(crate) fn new(addresses: &[Address]) -> Self {
        let mut shards: Box<[_]> = addresses.iter().map(address_hash).zip(0..).collect();
        shards.sort_unstable();
        Self { shards }
    }

    /// Returns the place in the list of the shard that stores this key.
    pub(crate) fn shard_of(&self, key: u128) -> usize {
        self.shards.get(self.rank_of(key)).map_or(0, |(_, place)| *place)
    }

    /// Returns the place of the shard that stores this key, in an order that does not depend on the list's.
    pub(crate) fn rank_of(&self, key: u128) -> usize {
        let scores = self.shards.iter().map(|(hash, _)| score(key, *hash));
        scores.enumerate().max_by_key(|(_, score)| *score).map_or(0, |(rank, _)| rank)
    }
}

/// Mixes a key, which is as random as a hash, with the hash of a shard: both halves are multiplied into each other.
fn score(key: u128, shard: u128) -> u64 {
    let mixed = key ^ shard;
    let product = u128::from(mixed as u64) * u128::from((mixed >> 64) as u64);
    (product as u64) ^ ((product >> 64) as u64)
}

fn address_hash(address: &Address) -> u128 {
    let hash = blake3::hash(address.to_string().as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: usize = 20_000;

    /// Keys as they are in use: 128 bits of a hash.
    fn keys() -> impl Iterator<Item = u128> {
        (0..KEYS).map(|number| {
            let hash = blake3::hash(&number.to_le_bytes());
            u128::from_le_bytes(hash.as_bytes()[..16].try_into().unwrap())
        })
    }

    /// Addresses as people have them: ports of one host, hosts of one network, names, sockets.
    fn families() -> [Vec<Address>; 4] {
        let tcp = |host: &str, port| Address::tcp(host, port).unwrap();
        let family = |make: &dyn Fn(u16) -> Address| (0..17).map(make).collect();
        [
            family(&|n| tcp("127.0.0.1", 6379 + n)),
            family(&|n| tcp(&format!("10.0.0.{n}"), 6379)),
            family(&|n| tcp(&format!("redis-{n}.example.com"), 6379)),
            family(&|n| Address::Unix(format!("/run/redis-{n}.sock").into())),
        ]
    }

    #[test]
    fn a_new_shard_takes_its_share_and_moves_nothing_else() {
        for addresses in families() {
            for count in 1..=16 {
                let before = RendezvousHash::new(&addresses[..count]);
                let after = RendezvousHash::new(&addresses[..=count]);
                let mut moved = 0;
                for key in keys() {
                    let (from, to) = (before.shard_of(key), after.shard_of(key));
                    if from != to {
                        assert_eq!(to, count, "{key} moved from {from} to {to}");
                        moved += 1;
                    }
                }
                let most = KEYS * 3 / 2 / (count + 1);
                assert!(moved <= most, "{moved} keys moved from {count} shards, wanted {most}");
            }
        }
    }

    #[test]
    fn every_shard_has_its_share_within_a_fifth() {
        for addresses in families() {
            for count in 1..=17 {
                let hash = RendezvousHash::new(&addresses[..count]);
                let mut shares = vec![0_usize; count];
                keys().for_each(|key| shares[hash.shard_of(key)] += 1);
                let even = KEYS / count;
                for share in &shares {
                    assert!(share.abs_diff(even) * 5 <= even, "{count}: {shares:?}");
                }
            }
        }
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        for addresses in families() {
            let forward = RendezvousHash::new(&addresses);
            let mut turned = addresses.clone();
            turned.rotate_left(5);
            turned.swap(0, 9);
            let turned_hash = RendezvousHash::new(&turned);
            for key in keys() {
                assert_eq!(addresses[forward.shard_of(key)], turned[turned_hash.shard_of(key)],);
            }
        }
    }

    #[test]
    fn every_release_finds_a_key_where_the_last_one_left_it() {
        let hash = RendezvousHash::new(&families()[2][..5]);
        let places: Vec<usize> = keys().take(16).map(|key| hash.shard_of(key)).collect();
        assert_eq!(places, [2, 3, 2, 2, 0, 0, 4, 1, 1, 2, 0, 1, 2, 2, 4, 3]);
    }
}
