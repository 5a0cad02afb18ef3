//! The contract of a store, which keeps the state of limits.

pub mod memory;

use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{
    Key, Keyer, LeaseGrant, LeaseRequest, Limit, Outcome, RefundToken, State, Timestamp,
};

use crate::coordination::membership::MembershipView;

/// One limit to charge for a request.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// The key of the bucket.
    pub key: Key,
    /// The key of the first overflow bucket, for a new client when the store is full.
    pub overflow_key: Key,
    /// The limit of the bucket.
    pub limit: &'a Arc<Limit>,
    /// The cost to spend, at least 1. In a peek the cost to check; 0 checks 1.
    pub cost: u64,
    /// The charge is made on its own: other charges do not depend on it, nor it on them.
    pub independent: bool,
}

/// The mode of a call: spend or peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeMode {
    /// Spends what fits.
    Spend,
    /// Returns the outcome that a charge would have, and changes nothing.
    Peek,
}

impl ChargeMode {
    /// Returns the mode of a request: `Peek` for a cost of 0.
    #[must_use]
    pub const fn of_cost(cost: u64) -> Self {
        if cost == 0 { Self::Peek } else { Self::Spend }
    }
}

/// A charge to refund.
#[derive(Clone, Debug)]
pub struct Refund {
    /// The key of the bucket.
    pub key: Key,
    /// The limit of the charge.
    pub limit: Arc<Limit>,
    /// The cost of the charge. Without a refund token, the most that is refunded.
    pub cost: u64,
    /// The token from the outcome of the charge. Without one, up to `cost` of the latest usage is
    /// refunded.
    pub refund_token: Option<RefundToken>,
}

impl Refund {
    /// Refunds the charge to a state under `limit`, as far as it still counts. Returns whether anything was
    /// refunded.
    pub fn take_back(&self, limit: &Limit, state: &mut State, now: Timestamp) -> bool {
        match &self.refund_token {
            Some(refund_token) => limit.refund(state, now, &self.limit, refund_token, self.cost),
            None => limit.refund_latest(state, now, &self.limit, self.cost),
        }
    }

    /// Renews the slots that were charged to a state under `limit`, or inserts them again. Returns whether
    /// they are held.
    pub fn renew(&self, limit: &Limit, state: &mut State, now: Timestamp) -> bool {
        let refund_token = self.refund_token.as_ref();
        refund_token.is_some_and(|refund_token| {
            limit.renew(state, now, &self.limit, refund_token, self.cost)
        })
    }
}

/// Outcomes in the order of the charges.
pub type Outcomes = SmallVec<[Outcome; 4]>;

/// The results of charges, in their order.
pub type ChargeResults = SmallVec<[ChargeResult; 4]>;

/// The result of one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// The outcome of the limit.
    Outcome(Outcome),
    /// Not charged, because another charge of the request did not fit.
    Skipped,
    /// The store failed. After a [`StoreError::Timeout`] it is unknown whether the limit was charged.
    Failed(StoreError),
}

impl ChargeResult {
    /// Returns the outcome, if there is one.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Outcome(outcome) => Some(outcome),
            Self::Skipped | Self::Failed(_) => None,
        }
    }
}

/// The position of this node in the fleet, as known to the node. It determines the node's share of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// The index of this node, from 0.
    pub index: u64,
    /// The number of nodes.
    pub of: u64,
}

impl Share {
    /// The share of a node without a fleet: the whole limit.
    pub const WHOLE: Self = Self { index: 0, of: 1 };
}

/// Keeps the state of limits.
///
/// The contract, checked by one test suite for every store:
/// - All charges of a call are decided at one instant of the store's clock, atomically with respect to
///   every other call on the same keys. A store on several servers charges one server after another, in
///   the order of the charges. If a charge does not fit, it refunds the earlier ones.
/// - If every charge that is not `independent` fits, all of them are spent; otherwise none is. An
///   `independent` charge is spent if it fits. A charge that fails does not affect the others.
/// - A peek spends nothing. Each outcome is for the cost of its charge.
/// - An outcome has the state of its limit after the call. If a charge fits but another one of the call
///   does not, its outcome is an admission without a refund token.
/// - The time of a key never decreases.
/// - Costs of charges to the same key in one call add up.
/// - If a key was charged under another limit, its state is migrated ([`Limit::migrate`]). A store that is
///   shared by nodes with different rules keeps one state for each limit in use
///   ([`ClientStates`](tidegate_core::ClientStates)), so that the bound of each limit holds.
/// - A state expires once it equals a fresh one. No state is evicted earlier to make room, so a client that
///   is being limited stays limited.
pub trait Store: Send + Sync + 'static {
    /// Returns the function from clients to keys: with a seed of this process, or a secret of the fleet.
    fn keyer(&self) -> Keyer;

    /// Charges every key of one request, or none of them, or peeks. Returns one result for each charge.
    ///
    /// If the future is dropped, it is unknown whether the charge was made. A failed charge must not be
    /// retried.
    fn charge(
        &self,
        charges: &[Charge<'_>],
        mode: ChargeMode,
    ) -> impl Future<Output = ChargeResults> + Send;

    /// Charges one key, as [`charge`](Self::charge) does with one charge in [`ChargeMode::Spend`], if the store can do so
    /// without waiting. Otherwise returns `None`, and nothing was charged.
    fn charge_now(&self, charge: &Charge<'_>) -> Option<Outcome> {
        let _ = charge;
        None
    }

    /// Returns whether nodes that share this store can lease tokens of it.
    fn supports_leases(&self) -> bool {
        false
    }

    /// Applies the lease requests of nodes, each on its own and in one step ([`Limit::apply_lease_request`]). Replies
    /// keep the order of `requests`; several of one key are applied in any order.
    ///
    /// Leases and charges use the same state. A charge ignores leases, so for a client of a leased rule, requests are
    /// sent instead of charges. As with a charge, a failed request must not be retried, and its result is unknown if
    /// the future is dropped.
    fn lease(
        &self,
        requests: &[(Key, Arc<Limit>, LeaseRequest)],
    ) -> impl Future<Output = Vec<Result<LeaseGrant, StoreError>>> + Send {
        let reason = Arc::from("this store leases nothing");
        let error = StoreError::Unavailable { store: "store".into(), reason };
        std::future::ready(vec![Err(error); requests.len()])
    }

    /// Returns the longest time that a request waits for this store; `None` if it replies at once.
    fn timeout(&self) -> Option<std::time::Duration> {
        None
    }

    /// Returns the share of this node in the fleet, for limits that it enforces without the store.
    fn share(&self) -> Share {
        Share::WHOLE
    }

    /// Returns the membership of this node now, for limits of which each node enforces its own part. `None`
    /// from a store without a fleet.
    fn membership_view(&self) -> Option<MembershipView> {
        None
    }

    /// Returns the keys of the `count` parts of a client's limit, on different servers if there are enough.
    ///
    /// All nodes that share the store compute the same keys. Parts of different clients have different
    /// keys.
    fn parts(&self, key: Key, count: u8) -> Vec<Key> {
        (0..count).map(|index| derived_key(key, index.into())).collect()
    }

    /// Refunds charges, each as far as it still counts. Returns the number of charges of which anything was
    /// refunded.
    ///
    /// # Errors
    /// The errors of [`charge`](Self::charge). A refund is sent once and never retried.
    fn refund(&self, refunds: &[Refund]) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Refunds charges without waiting for the reply, for callers that can't wait, such as `Drop`.
    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>);

    /// Renews slots in flight for another hold ([`Limit::renew`]). Slots that expired or were lost are
    /// inserted again, above the limit if needed. Returns how many are held: those that were released
    /// are not, nor are other charges.
    ///
    /// # Errors
    /// The errors of [`refund`](Self::refund): those slots may be renewed or not. A renewal can be repeated.
    fn renew(&self, slots: &[Refund]) -> impl Future<Output = Result<usize, StoreError>> + Send {
        let _ = slots;
        let reason = Arc::from("this store renews nothing");
        std::future::ready(Err(StoreError::Unavailable { store: "store".into(), reason }))
    }

    /// Registers slots in flight that a guard of this process holds, until the guard drops its `Arc`. A
    /// store that had lost its connection renews them before it is used again.
    fn register_held(&self, slots: &Arc<[Refund]>) {
        let _ = slots;
    }

    /// Removes the state of a key, so that its limit is full again.
    ///
    /// # Errors
    /// The store did not confirm it.
    fn reset(&self, key: Key) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Returns the `number`-th key derived from another. It is as random as that one, so it does not collide with
/// the key of a client.
pub fn derived_key(key: Key, number: u64) -> Key {
    /// An odd constant without a simple relation to small numbers.
    const STEP: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let step = STEP.wrapping_mul(u128::from(number) + 1);
    Key::from_u128(key.as_u128().wrapping_add(step))
}

/// The error of a call to a store.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No reply within the timeout. The call may have taken effect.
    #[error("{store}: no reply within {}ms", .after.as_millis())]
    Timeout {
        /// The name of the store.
        store: Arc<str>,
        /// The timeout.
        after: std::time::Duration,
    },
    /// The store is unreachable. The call had no effect.
    #[error("{store}: {reason}")]
    Unavailable {
        /// The name of the store.
        store: Arc<str>,
        /// The error of the store or of the network.
        reason: Arc<str>,
    },
    /// The connection was lost before the reply. The call may have taken effect.
    #[error("{store}: {reason}")]
    Interrupted {
        /// The name of the store.
        store: Arc<str>,
        /// The error of the connection.
        reason: Arc<str>,
    },
    /// The stored state is invalid.
    #[error("{store}: state of a key can't be read: {reason}")]
    Corrupt {
        /// The name of the store.
        store: Arc<str>,
        /// The defect of the state.
        reason: Arc<str>,
    },
}
