//! Slots of concurrency rules for remote callers: acquired with a check, renewed and released by a token.
//!
//! A node keeps no record of the slots: the token names them and the store holds them. So every node of the fleet can
//! renew and release them, also under other rules.

use std::sync::Arc;

use tidegate_core::{CallError, CallStatus, Limit, Reply, Span};
use tidegate_limiter::{CheckRequest, CheckTarget, Receipt, Refund, Store, StoreError};

use crate::call::{Call, Protocol};
use crate::service::{Service, SlotTokenCipher, client_without_rule};
use crate::store::AnyStore;

/// The reply to a call that acquires slots.
#[derive(Debug)]
pub struct AcquireReply {
    /// The reply to the call.
    pub reply: Reply,
    /// The acquired slots; `None` if the call was denied or no concurrency rule applies.
    pub slot: Option<AcquiredSlots>,
}

/// Slots in flight that a call has acquired.
#[derive(Debug)]
pub struct AcquiredSlots {
    /// The token that renews and releases the slots.
    pub token: String,
    /// Time until the first slot expires, unless the slots are renewed.
    pub(crate) hold: Span,
    /// Releases the slots unless the token reaches the caller.
    pub undelivered: UndeliveredSlots,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug)]
pub struct SlotRenewal {
    /// Number of slots, one for each rule.
    pub held: usize,
    /// Time until the first slot expires, counted from the renewal.
    pub(crate) hold: Span,
}

impl AcquiredSlots {
    /// Returns the hold in whole milliseconds, rounded down, so that a caller that renews by it is not late.
    pub fn hold_millis(&self) -> u64 {
        self.hold.as_micros() / 1_000
    }
}

impl SlotRenewal {
    /// Returns the hold in whole milliseconds, rounded down.
    pub fn hold_millis(&self) -> u64 {
        self.hold.as_micros() / 1_000
    }
}

/// Slots before their token is sent. They are released on drop, because no caller has the token to do it.
#[derive(Debug)]
pub struct UndeliveredSlots {
    store: Arc<AnyStore>,
    slots: Vec<Refund>,
}

impl UndeliveredSlots {
    /// Leaves the slots to the caller, which has the token now.
    pub fn mark_delivered(mut self) {
        self.slots.clear();
    }
}

impl Drop for UndeliveredSlots {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            self.store.refund_detached(std::mem::take(&mut self.slots));
        }
    }
}

impl Service {
    /// Answers one call as [`check`](Self::check) does, and returns a token for the slots in flight that it acquires.
    ///
    /// A denied request holds no slot, not even of a shadow rule that had a free one. A future that is dropped before it
    /// is ready releases its slots, unless the store is unreachable.
    ///
    /// # Errors
    /// As [`check`](Self::check). Also if more concurrency rules apply than a token can hold. Nothing was charged.
    pub async fn acquire(
        &self,
        protocol: Protocol,
        call: Call<'_>,
    ) -> Result<AcquireReply, CallError> {
        let (rules, began) = (self.active_rules(), self.clock.now());
        let (request, target) = match &call.rule {
            Some(name) => {
                let (index, request) =
                    self.resolve_rule(&rules, protocol, name, call.client, call.request)?;
                (request, CheckTarget::Rule(index))
            }
            None if call.client.is_some() => {
                return Err(self.count_rejected(protocol, client_without_rule()));
            }
            None => (call.request.within(), CheckTarget::AllMatching),
        };
        let check = CheckRequest { request: &request, target };
        let (decision, receipt) = in_call_span!(protocol, rules.limiter.check_with_receipt(check));
        let slots: Vec<Refund> = receipt.slots().cloned().collect();
        if slots.len() > SlotTokenCipher::MAX_SLOTS {
            rules.limiter.refund_detached(receipt);
            return Err(self.count_rejected(protocol, too_many_slots(slots.len())));
        }
        let (token, hold) = (self.slot_tokens.encrypt(&slots), shortest_hold(&slots));
        // Without a token, the slots are released when this guard is dropped.
        let undelivered = UndeliveredSlots { store: Arc::clone(&self.store), slots };
        let token = token.filter(|_| decision.is_allowed());
        let slot = token.map(|token| AcquiredSlots { token, hold, undelivered });
        Ok(AcquireReply { reply: self.reply(&rules, protocol, began, &request, decision), slot })
    }

    /// Renews slots, each for the hold of its rule. Slots that expired or that the store lost are counted again, above
    /// the limit if needed.
    ///
    /// # Errors
    /// The token is not one of this fleet, or one of its slots was released. Or the store did not confirm the renewal,
    /// which can be repeated.
    pub async fn renew(&self, protocol: Protocol, token: &str) -> Result<SlotRenewal, CallError> {
        let slots = self.decrypt_slots(protocol, token)?;
        let (all, hold) = (slots.len(), shortest_hold(&slots));
        let receipt: Receipt = slots.into_iter().collect();
        match self.active_rules().limiter.renew(&receipt).await {
            Ok(held) if held == all => Ok(SlotRenewal { held, hold }),
            Ok(held) => Err(self.count_rejected(protocol, slots_released(held, all))),
            Err(error) => {
                Err(self.count_rejected(protocol, unconfirmed(&error, "a confirmed renewal")))
            }
        }
    }

    /// Releases slots, and returns how many of them were still held. A second release returns 0.
    ///
    /// # Errors
    /// The token is not one of this fleet. Or the store did not confirm the release, which can be repeated.
    pub async fn release(&self, protocol: Protocol, token: &str) -> Result<usize, CallError> {
        let receipt: Receipt = self.decrypt_slots(protocol, token)?.into_iter().collect();
        let released = self.active_rules().limiter.release(receipt).await;
        released.map_err(|error| {
            self.count_rejected(protocol, unconfirmed(&error, "a confirmed release"))
        })
    }

    fn decrypt_slots(&self, protocol: Protocol, token: &str) -> Result<Vec<Refund>, CallError> {
        // The error does not contain the token: a reader of the log could release the slots with it.
        let found = || match token.len() {
            0 => "nothing".to_owned(),
            bytes => format!("a text of {bytes} bytes that this fleet did not issue"),
        };
        let error = || CallError::invalid("slot", found(), "the slot of an acquire");
        self.slot_tokens.decrypt(token).ok_or_else(|| self.count_rejected(protocol, error()))
    }
}

fn shortest_hold(slots: &[Refund]) -> Span {
    let holds = slots.iter().filter_map(|slot| match &*slot.limit {
        Limit::Concurrency(limit) => Some(limit.hold()),
        _ => None,
    });
    holds.min().unwrap_or_default()
}

fn too_many_slots(found: usize) -> CallError {
    let found = format!("{found} rules with a limit in flight");
    CallError::invalid(
        "rules",
        found,
        format!("at most {} for one request", SlotTokenCipher::MAX_SLOTS),
    )
}

fn slots_released(held: usize, all: usize) -> CallError {
    CallError {
        status: CallStatus::Gone,
        reason: None,
        path: "slot".to_owned(),
        found: match held {
            0 => "it released".to_owned(),
            _ => format!("{} of {all} released", all - held),
        },
        wanted: "it held".to_owned(),
    }
}

/// Returns the error of a change that the store did not confirm. It does not name the store; the log does.
fn unconfirmed(error: &StoreError, wanted: &str) -> CallError {
    tracing::debug!(%error, "store did not confirm a change of slots in flight");
    CallError {
        status: CallStatus::Unavailable,
        reason: None,
        path: "store".to_owned(),
        found: "no answer".to_owned(),
        wanted: wanted.to_owned(),
    }
}

#[cfg(test)]
mod tests;
