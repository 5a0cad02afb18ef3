//! Slots in flight for callers elsewhere: taken with a check, held on and released by a name.
//!
//! The name is all there is. A node that has never seen it, or that has other rules by now, renews and
//! releases by it just as well: what is held is in the store.

use std::sync::Arc;

use tidegate_core::{CallError, CallStatus, Limit, Reply, Span};
use tidegate_limiter::{CheckRequest, CheckTarget, Receipt, Refund, Store, StoreError};

use crate::call::{Call, Protocol};
use crate::service::{Service, SlotTokenCipher, client_without_rule};
use crate::store::AnyStore;

/// What a caller that takes slots is told.
#[derive(Debug)]
pub struct Acquired {
    /// The reply to the call.
    pub reply: Reply,
    /// The slots that it took; nothing if it was denied, or no rule counts what is in flight.
    pub slot: Option<Taken>,
}

/// Slots that were taken, under the name that their holder is given.
#[derive(Debug)]
pub struct Taken {
    pub name: String,
    /// After how long the first of them is lost, unless they are renewed.
    pub(crate) hold: Span,
    pub way: UndeliveredSlots,
}

/// Slots that are still held.
#[derive(Clone, Copy, Debug)]
pub struct Renewed {
    /// Of how many rules.
    pub held: usize,
    /// As of [`Taken`], from now on.
    pub(crate) hold: Span,
}

impl Taken {
    /// The hold in whole milliseconds, rounded down: who goes by it is not late.
    pub fn hold_millis(&self) -> u64 {
        self.hold.as_micros() / 1_000
    }
}

impl Renewed {
    /// As of [`Taken`].
    pub fn hold_millis(&self) -> u64 {
        self.hold.as_micros() / 1_000
    }
}

/// Slots whose name has not been handed over yet. Dropped before that, they are released: nobody else
/// can.
#[derive(Debug)]
pub struct UndeliveredSlots {
    store: Arc<AnyStore>,
    slots: Vec<Refund>,
}

impl UndeliveredSlots {
    /// Leaves them to who has their name.
    pub fn handed_over(mut self) {
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
    /// As [`check`](Self::check), for who will release the slots in flight that it takes.
    ///
    /// A request that is denied holds nothing, also where a rule that only counts had a slot for it. A
    /// future that is dropped before it is ready leaves no slot behind, unless the store can't be reached.
    ///
    /// # Errors
    /// As for a check; and a request of more rules that count what is in flight than a name has room for.
    /// Nothing was charged.
    pub async fn acquire(&self, protocol: Protocol, call: Call<'_>) -> Result<Acquired, CallError> {
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
        let (decision, receipt) = rules.limiter.check_with_receipt(check).await;
        let slots: Vec<Refund> = receipt.slots().cloned().collect();
        if slots.len() > SlotTokenCipher::MAX_SLOTS {
            rules.limiter.refund_detached(receipt);
            return Err(self.count_rejected(protocol, too_many(slots.len())));
        }
        let (name, hold) = (self.slot_tokens.close(&slots), shortest_hold(&slots));
        // Whatever nobody gets a name for is released on the way out.
        let way = UndeliveredSlots { store: Arc::clone(&self.store), slots };
        let name = name.filter(|_| decision.is_allowed());
        let slot = name.map(|name| Taken { name, hold, way });
        Ok(Acquired { reply: self.reply(&rules, protocol, began, &request, decision), slot })
    }

    /// Renews slots for another hold, each of its own rule. Slots that expired or that the store lost count
    /// again, above the limit if needed.
    ///
    /// # Errors
    /// The name is none of ours; one or more of its slots were released; or the store did not confirm it,
    /// and the renewal can be repeated.
    pub async fn renew(&self, protocol: Protocol, name: &str) -> Result<Renewed, CallError> {
        let slots = self.slots(protocol, name)?;
        let (all, hold) = (slots.len(), shortest_hold(&slots));
        let receipt: Receipt = slots.into_iter().collect();
        match self.active_rules().limiter.renew(&receipt).await {
            Ok(held) if held == all => Ok(Renewed { held, hold }),
            Ok(held) => Err(self.count_rejected(protocol, gone(held, all))),
            Err(error) => {
                Err(self.count_rejected(protocol, unconfirmed(&error, "whether it is held")))
            }
        }
    }

    /// Releases slots, and tells of how many rules were still held. To do so once more is harmless.
    ///
    /// # Errors
    /// The name is none of ours; or the store did not confirm it, and it can be tried again.
    pub async fn release(&self, protocol: Protocol, name: &str) -> Result<usize, CallError> {
        let receipt: Receipt = self.slots(protocol, name)?.into_iter().collect();
        let released = self.active_rules().limiter.release(receipt).await;
        released.map_err(|error| {
            self.count_rejected(protocol, unconfirmed(&error, "what was released"))
        })
    }

    fn slots(&self, protocol: Protocol, name: &str) -> Result<Vec<Refund>, CallError> {
        // A name is worth something to who reads logs: it is not shown.
        let found = || match name.len() {
            0 => "nothing".to_owned(),
            letters => format!("a text of {letters} bytes that was not given out here"),
        };
        let fault = || CallError::invalid("slot", found(), "the slot of an acquire");
        self.slot_tokens.open(name).ok_or_else(|| self.count_rejected(protocol, fault()))
    }
}

fn shortest_hold(slots: &[Refund]) -> Span {
    let holds = slots.iter().filter_map(|slot| match &*slot.limit {
        Limit::Concurrency(limit) => Some(limit.hold()),
        _ => None,
    });
    holds.min().unwrap_or_default()
}

fn too_many(found: usize) -> CallError {
    let found = format!("{found} rules that count what is in flight");
    CallError::invalid(
        "rules",
        found,
        format!("at most {} for one request", SlotTokenCipher::MAX_SLOTS),
    )
}

fn gone(held: usize, all: usize) -> CallError {
    CallError {
        status: CallStatus::Gone,
        path: "slot".to_owned(),
        found: match held {
            0 => "it released".to_owned(),
            _ => format!("{} of {all} released", all - held),
        },
        wanted: "it held".to_owned(),
    }
}

/// The caller learns that it is unknown; where the store is stands in the log alone.
fn unconfirmed(error: &StoreError, wanted: &str) -> CallError {
    tracing::debug!(%error, "slots in flight not confirmed");
    CallError {
        status: CallStatus::Unavailable,
        path: "store".to_owned(),
        found: "no answer".to_owned(),
        wanted: format!("to know {wanted}"),
    }
}

#[cfg(test)]
mod tests;
