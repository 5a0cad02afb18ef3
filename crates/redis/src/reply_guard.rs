//! The reply to a charge on its way to the caller.

use std::fmt;
use std::sync::Weak;

use tidegate_limiter::store::{Outcomes, Refund, StoreError};

/// The reply to a charge.
pub(crate) type ChargeReply = Result<Outcomes, StoreError>;

/// Releases slots in flight in the background.
pub(crate) trait SlotReleaser: fmt::Debug + Send + Sync {
    /// Releases slots that are all stored in one group.
    fn release(&self, slots: Vec<Refund>);
}

/// The reply to a charge, which releases the slots in flight that come with it unless a caller takes them. The caller
/// may no longer wait, and nothing else has their names. The same holds for the last place in a queue: its turn would
/// come without a request.
#[derive(Debug)]
pub(crate) struct ReplyGuard {
    reply: ChargeReply,
    slots: Vec<Refund>,
    releaser: Option<Weak<dyn SlotReleaser>>,
}

impl ReplyGuard {
    /// A failure, without slots.
    pub(crate) fn failed(error: StoreError) -> Self {
        Self { reply: Err(error), slots: Vec::new(), releaser: None }
    }

    /// Outcomes, and the slots that were charged for them.
    pub(crate) fn new(
        outcomes: Outcomes,
        slots: Vec<Refund>,
        releaser: Option<&Weak<dyn SlotReleaser>>,
    ) -> Self {
        Self { reply: Ok(outcomes), slots, releaser: releaser.map(Weak::clone) }
    }

    /// Returns the reply to a caller that will release its slots.
    pub(crate) fn take(mut self) -> ChargeReply {
        self.slots.clear();
        std::mem::replace(&mut self.reply, Ok(Outcomes::new()))
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        if !self.slots.is_empty()
            && let Some(releaser) = self.releaser.as_ref().and_then(Weak::upgrade)
        {
            releaser.release(std::mem::take(&mut self.slots));
        }
    }
}
