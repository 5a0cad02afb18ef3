//! Where spending is remembered. One contract, kept by every store.

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
    /// The first of the buckets that new clients of this rule share when the store is full.
    pub overflow_key: Key,
    /// The limit of the bucket.
    pub limit: &'a Arc<Limit>,
    /// The cost to spend, at least 1. In a peek the cost to check; 0 checks 1.
    pub cost: u64,
    /// Whether it is charged on its own: it neither blocks the other charges nor is blocked by them.
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
    /// Returns the mode of a request: one with a cost of 0 asks for a peek.
    #[must_use]
    pub const fn of_cost(cost: u64) -> Self {
        if cost == 0 { Self::Peek } else { Self::Spend }
    }
}

/// A charge to take back.
#[derive(Clone, Debug)]
pub struct Refund {
    /// The bucket it was charged to.
    pub key: Key,
    /// The limit it was charged under.
    pub limit: Arc<Limit>,
    /// What was spent, or is to be given back.
    pub cost: u64,
    /// What the charge was answered with; without one, up to `cost` of what was spent last is given
    /// back.
    pub refund_token: Option<RefundToken>,
}

impl Refund {
    /// Takes the charge back from a state under `limit`, as far as it still counts. Whether anything
    /// was given back.
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

/// Which part of a fleet this node is, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// This node's place among the nodes.
    pub index: u64,
    /// How many nodes there are.
    pub of: u64,
}

impl Share {
    /// A node that knows of no other.
    pub const WHOLE: Self = Self { index: 0, of: 1 };
}

/// Remembers what clients have spent.
///
/// The contract, checked by one suite for every store:
/// - All charges of a call are decided at one instant of the store's own clock, atomically with
///   respect to every other call on the same keys. A store that keeps them in several places asks
///   one place after another, in the order of the charges, and gives back what it had charged when
///   one of them does not fit.
/// - If every charge that is not `independent` fits, each of them is spent; if one does not, none is. A
///   charge that is `independent` is spent if it fits. One that can't be asked holds nobody back.
/// - A peek spends nothing. Each of its charges is answered for its cost.
/// - An outcome tells how its limit stands after the call. One that would have fitted but was held
///   back by another says allow, without a refund token.
/// - A key's time never runs backwards.
/// - Charges of one call that name the same key add up.
/// - A key that was charged under another limit starts with what it had ([`Limit::migrate`]). A store that
///   nodes with different rules share keeps a state for each limit in use
///   ([`ClientStates`](tidegate_core::ClientStates)), so that each limit keeps its own bound.
/// - Nothing is kept longer than it says anything, and nobody who is being limited is forgotten
///   to make room.
pub trait Store: Send + Sync + 'static {
    /// The kind of keys this store wants: known to this process only, or agreed upon by a fleet.
    fn keyer(&self) -> Keyer;

    /// Charges every key of one request, or none of them, or peeks. One answer for each charge.
    ///
    /// Dropping the future leaves it unknown whether the charge was made. A charge that failed is
    /// never to be tried again.
    fn charge(
        &self,
        charges: &[Charge<'_>],
        mode: ChargeMode,
    ) -> impl Future<Output = ChargeResults> + Send;

    /// Returns whether nodes that share this store can lease tokens of it.
    fn supports_leases(&self) -> bool {
        false
    }

    /// Applies the lease requests of nodes, each on its own and in one step ([`Limit::apply_lease_request`]). Replies
    /// keep the order of `requests`; several of one key are applied in any order.
    ///
    /// Leases and charges use the same state. A charge ignores leases: for a client whose rule is leased, requests
    /// are sent instead of charges. As with a charge, a request that failed is never to be sent again, and dropping
    /// the future leaves its result unknown.
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

    /// Where each of `of` parts of a client's limit is kept: on different servers, as far as there are
    /// that many. Everybody who shares the store finds the same, and no two parts of any clients meet.
    fn parts(&self, key: Key, of: u8) -> Vec<Key> {
        (0..of).map(|index| derived_key(key, index.into())).collect()
    }

    /// Takes charges back, each as far as it still counts. How many gave anything back.
    ///
    /// # Errors
    /// As for [`charge`](Self::charge): a refund is sent once and never retried.
    fn refund(&self, refunds: &[Refund]) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Takes charges back without waiting for the answer, for who has no time left to wait.
    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>);

    /// Renews slots in flight for another hold ([`Limit::renew`]). Slots that expired or were lost are
    /// inserted again, above the limit if needed. Returns how many are held: those that were released
    /// are not, nor are other charges.
    ///
    /// # Errors
    /// As for [`refund`](Self::refund): those slots may be renewed or not. A renewal can be repeated.
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

    /// Forgets what a key has spent.
    ///
    /// # Errors
    /// The store did not confirm it.
    fn forget(&self, key: Key) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A key that belongs to another, the `number`-th of them. As random as that, so it meets no client's.
pub fn derived_key(key: Key, number: u64) -> Key {
    /// Odd, and far from any small number.
    const STEP: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let step = STEP.wrapping_mul(u128::from(number) + 1);
    Key::from_u128(key.as_u128().wrapping_add(step))
}

/// Why a store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer in time; what was asked may have been done.
    #[error("{store}: no reply within {}ms", .after.as_millis())]
    Timeout {
        /// Which store.
        store: Arc<str>,
        /// How long was waited.
        after: std::time::Duration,
    },
    /// The store can't be reached; what was asked was not done.
    #[error("{store}: {reason}")]
    Unavailable {
        /// Which store.
        store: Arc<str>,
        /// What it said, or what the network said.
        reason: Arc<str>,
    },
    /// The connection was lost before the reply; what was asked may have been done.
    #[error("{store}: {reason}")]
    Interrupted {
        /// Which store.
        store: Arc<str>,
        /// What became of the connection.
        reason: Arc<str>,
    },
    /// What is stored can't be read.
    #[error("{store}: state of a key can't be read: {reason}")]
    Corrupt {
        /// Which store.
        store: Arc<str>,
        /// What is wrong with it.
        reason: Arc<str>,
    },
}
