//! Which of several independent servers a key lives on.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use pingora_ketama::{Bucket, Continuum};

use super::address::Address;

/// Spreads keys over shards so that a new shard takes its share and moves nothing else.
///
/// All nodes of a fleet agree, whatever the order in which they list the shards: a shard is known
/// by its address as it is written, so `localhost` and `127.0.0.1` are two. A shard that does not
/// answer keeps its keys.
pub(super) struct Ring {
    continuum: Continuum,
    /// What the continuum calls each shard, sorted, and its place in the list.
    shards: Box<[(SocketAddr, usize)]>,
}

impl Ring {
    /// 640 points for each shard, so that shares differ by a few percent.
    const WEIGHT: u32 = 4;

    /// A ring of these shards; there is at least one, and none twice.
    pub(super) fn new(addresses: &[Address]) -> Self {
        let mut shards: Box<[_]> = addresses.iter().map(alias).zip(0..).collect();
        // Where points of two shards meet, the order of the buckets decides whose it is.
        shards.sort_unstable();
        let buckets: Vec<Bucket> =
            shards.iter().map(|(alias, _)| Bucket::new(*alias, Self::WEIGHT)).collect();
        Self { continuum: Continuum::new(&buckets), shards }
    }

    /// The place in the list of the shard that has this key.
    pub(super) fn shard_of(&self, key: u128) -> usize {
        self.shards.get(self.rank_of(key)).map_or(0, |(_, place)| *place)
    }

    /// The place of the shard that has this key, in an order that does not depend on the list's.
    pub(super) fn rank_of(&self, key: u128) -> usize {
        let alias = self.continuum.node(&key.to_le_bytes());
        let known = alias
            .and_then(|alias| self.shards.binary_search_by_key(&alias, |(alias, _)| *alias).ok());
        known.unwrap_or(0)
    }
}

/// The continuum hashes IP addresses and nothing else, with a checksum that is weak on texts as
/// alike as these: every address gets one made from a hash of what it prints as.
fn alias(address: &Address) -> SocketAddr {
    let hash = blake3::hash(address.to_string().as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    SocketAddr::new(IpAddr::V6(Ipv6Addr::from(bytes)), 0)
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
                let before = Ring::new(&addresses[..count]);
                let after = Ring::new(&addresses[..=count]);
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
                let ring = Ring::new(&addresses[..count]);
                let mut shares = vec![0_usize; count];
                keys().for_each(|key| shares[ring.shard_of(key)] += 1);
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
            let forward = Ring::new(&addresses);
            let mut turned = addresses.clone();
            turned.rotate_left(5);
            turned.swap(0, 9);
            let turned_ring = Ring::new(&turned);
            for key in keys() {
                assert_eq!(addresses[forward.shard_of(key)], turned[turned_ring.shard_of(key)],);
            }
        }
    }

    #[test]
    fn every_release_finds_a_key_where_the_last_one_left_it() {
        let ring = Ring::new(&families()[2][..5]);
        let places: Vec<usize> = keys().take(16).map(|key| ring.shard_of(key)).collect();
        assert_eq!(places, [2, 4, 3, 4, 3, 1, 2, 2, 3, 1, 1, 4, 0, 1, 1, 1]);
    }
}
