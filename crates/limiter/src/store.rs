//! Where spending is remembered. One contract, kept by every store.

pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{Key, Keyer, Limit, Outcome, Slip};

/// One limit to charge for a request.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// The bucket.
    pub key: Key,
    /// Where the buckets begin that newcomers to this rule share when the store is full.
    pub shared: Key,
    /// What may be spent from it.
    pub limit: &'a Arc<Limit>,
    /// What to spend; 0 only looks.
    pub cost: u64,
    /// Charged for itself: neither held back by the other charges nor holding them back.
    pub alone: bool,
}

/// A charge to take back.
#[derive(Clone, Debug)]
pub struct Refund {
    /// The bucket it was charged to.
    pub key: Key,
    /// The limit it was charged under.
    pub limit: Arc<Limit>,
    /// What was spent.
    pub cost: u64,
    /// What the charge was answered with.
    pub slip: Slip,
}

/// What a store answers, in the order of the charges.
pub type Outcomes = SmallVec<[Outcome; 4]>;

/// Remembers what clients have spent.
///
/// The contract, checked by one suite for every store:
/// - All charges of a call are decided at one instant of the store's own clock, atomically with
///   respect to every other call on the same keys.
/// - If every charge that is not `alone` fits, each of them is spent; if one does not, none is. A
///   charge that is `alone` is spent if it fits.
/// - An outcome tells how its limit stands after the call. One that would have fitted but was held
///   back by another says allow, without a slip.
/// - A key's time never runs backwards.
/// - Charges of one call that name the same key add up.
/// - A key that was charged under another limit starts with what it had ([`Limit::adopt`]).
/// - Nothing is kept longer than it says anything, and nobody who is being limited is forgotten
///   to make room.
pub trait Store: Send + Sync + 'static {
    /// The kind of keys this store wants: known to this process only, or agreed upon by a fleet.
    fn keyer(&self) -> Keyer;

    /// Charges every key of one request, or none of them.
    ///
    /// Dropping the future leaves it unknown whether the charge was made.
    ///
    /// # Errors
    /// [`StoreError::Timeout`]: no answer in time. The charge may have been made; do not retry it.
    fn charge(
        &self,
        charges: &[Charge<'_>],
    ) -> impl Future<Output = Result<Outcomes, StoreError>> + Send;

    /// Takes charges back, each as far as it still counts. How many gave anything back.
    ///
    /// # Errors
    /// As for [`charge`](Self::charge): a refund is sent once and never retried.
    fn refund(&self, refunds: &[Refund]) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Takes charges back without waiting for the answer, for who has no time left to wait.
    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>);

    /// Forgets what a key has spent.
    ///
    /// # Errors
    /// The store did not confirm it.
    fn forget(&self, key: Key) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Why a store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer in time; what was asked may have been done.
    #[error("{store}: no reply within {}ms", .after.as_millis())]
    Timeout {
        /// Which store.
        store: String,
        /// How long was waited.
        after: std::time::Duration,
    },
    /// The store can't be reached; what was asked was not done.
    #[error("{store}: {reason}")]
    Unavailable {
        /// Which store.
        store: String,
        /// What it said, or what the network said.
        reason: String,
    },
    /// What is stored can't be read.
    #[error("{store}: state of a key can't be read: {reason}")]
    Corrupt {
        /// Which store.
        store: String,
        /// What is wrong with it.
        reason: String,
    },
}
