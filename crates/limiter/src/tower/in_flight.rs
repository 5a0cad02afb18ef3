//! The slots in flight of one request, for any type of store.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::limiter::SlotGuard;
use crate::store::Store;

/// Slots in flight of one request, released when the last reference is dropped. Most requests have
/// none and need no allocation.
#[derive(Default)]
pub(crate) struct HeldSlots(Option<Arc<dyn Send + Sync>>);

impl HeldSlots {
    pub(crate) fn new<S: Store>(guard: SlotGuard<S>) -> Self {
        match guard.is_empty() {
            true => Self(None),
            false => Self(Some(Arc::new(guard))),
        }
    }

    /// Returns whether the request holds any slot.
    pub(crate) fn are_held(&self) -> bool {
        self.0.is_some()
    }

    /// Releases the slots, unless the service [keeps](InFlight::keep) them.
    pub(crate) fn release(&mut self) {
        self.0 = None;
    }

    /// Returns the extension for the request, if it holds slots.
    pub(crate) fn in_flight(&self) -> Option<InFlight> {
        self.0.as_ref().map(|slots| InFlight(Arc::downgrade(slots)))
    }
}

impl fmt::Debug for HeldSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldSlots").field(&self.are_held()).finish()
    }
}

/// A request extension for work that lasts longer than the response: a WebSocket, or a task that the
/// request started. The layer adds it to every request that holds slots in flight.
///
/// The extension itself holds no slot.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use tidegate::tower::InFlight;
///
/// async fn upgrade(request: Request<String>) -> Response<String> {
///     let kept = request.extensions().get::<InFlight>().map(InFlight::keep);
///     tokio::spawn(async move {
///         // Here the upgraded connection is used. Then:
///         drop(kept);
///     });
///     let mut response = Response::new(String::new());
///     *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
///     response
/// }
/// # let _ = upgrade;
/// ```
#[derive(Clone)]
pub struct InFlight(Weak<dyn Send + Sync>);

/// Slots in flight that are held until this value is dropped, also after the response has ended.
#[must_use = "the slots are released when this is dropped"]
pub struct KeptSlots {
    _slots: Option<Arc<dyn Send + Sync>>,
}

impl InFlight {
    /// Holds the slots of the request until the returned value is dropped.
    ///
    /// Has no effect after the response has ended: slots that were released are not taken again.
    pub fn keep(&self) -> KeptSlots {
        KeptSlots { _slots: self.0.upgrade() }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlight")
    }
}

impl fmt::Debug for KeptSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptSlots")
    }
}
