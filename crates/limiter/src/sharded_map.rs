//! A map in parts, each behind a lock of its own.

use parking_lot::RwLock;
use tidegate_core::Key;

const SHARDS: usize = 64;

/// A map in 64 parts, so that threads with different keys rarely wait for each other. `M` is the map of
/// one part.
#[derive(Debug)]
pub struct ShardedMap<M> {
    shards: Box<[RwLock<M>]>,
}

impl<M: Default> Default for ShardedMap<M> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }
}

impl<M> ShardedMap<M> {
    /// Returns the part of a key. Keys are hashes already.
    #[inline]
    pub fn shard(&self, key: Key) -> &RwLock<M> {
        let [.., last] = key.as_u128().to_be_bytes();
        self.shard_of_hash(last.into())
    }

    /// Returns the part of a hash.
    #[inline]
    pub fn shard_of_hash(&self, hash: u64) -> &RwLock<M> {
        &self.shards[hash as usize % SHARDS]
    }

    /// Returns all parts.
    pub fn shards(&self) -> &[RwLock<M>] {
        &self.shards
    }
}
