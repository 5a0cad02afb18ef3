//! The size of a memory store, as metrics report it.

/// The size and the capacity of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Keys with their own bucket.
    pub keys: usize,
    /// Bytes of tables, logs, slots in flight and leases, vacant slots of tables included.
    pub bytes: usize,
    /// The capacity of the store in keys.
    pub max_keys: usize,
    /// The capacity of the store in bytes.
    pub max_bytes: usize,
    /// Charges to overflow buckets since the start, because the store was full.
    pub overflowed: u64,
    /// Charges that were denied since the start, because a client's log or slots could not grow in a full store.
    pub growth_denied: u64,
    /// Keys that were removed since the start because they had expired. A client that is being limited is
    /// never removed.
    pub expired: u64,
}
