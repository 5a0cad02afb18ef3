//! A map in shards, each behind its own lock.

use parking_lot::RwLock;
use tidegate_core::Key;

const SHARD_COUNT: usize = 64;

/// A map in 64 shards, so that threads with different keys rarely wait for each other. `M` is the map of
/// one shard.
#[derive(Debug)]
pub struct ShardedMap<M> {
    shards: Box<[RwLock<M>]>,
}

impl<M: Default> Default for ShardedMap<M> {
    fn default() -> Self {
        Self { shards: (0..SHARD_COUNT).map(|_| RwLock::default()).collect() }
    }
}

impl<M> ShardedMap<M> {
    /// Returns the shard of a key. Keys are hashes already, so their last byte selects it.
    #[inline]
    pub fn shard(&self, key: Key) -> &RwLock<M> {
        let [.., last] = key.as_u128().to_be_bytes();
        self.shard_of_hash(last.into())
    }

    /// Returns the shard of a hash.
    #[inline]
    pub fn shard_of_hash(&self, hash: u64) -> &RwLock<M> {
        &self.shards[hash as usize % SHARD_COUNT]
    }

    /// Returns all shards.
    pub fn shards(&self) -> &[RwLock<M>] {
        &self.shards
    }
}
