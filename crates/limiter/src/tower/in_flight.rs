//! What a request holds while it is in flight, whichever store it is held in.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::limiter::SlotGuard;
use crate::store::Store;

/// Slots in flight of one request, released with the last of them. Most requests have none, and pay
/// nothing for that.
#[derive(Default)]
pub(crate) struct Slots(Option<Arc<dyn Send + Sync>>);

impl Slots {
    pub(crate) fn of<S: Store>(guard: SlotGuard<S>) -> Self {
        match guard.is_empty() {
            true => Self(None),
            false => Self(Some(Arc::new(guard))),
        }
    }

    /// Whether there are any.
    pub(crate) fn are_held(&self) -> bool {
        self.0.is_some()
    }

    /// Lets go of them.
    pub(crate) fn release(&mut self) {
        self.0 = None;
    }

    /// For the service, if there are any.
    pub(crate) fn in_flight(&self) -> Option<InFlight> {
        self.0.as_ref().map(|slots| InFlight(Arc::downgrade(slots)))
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slots").field(&self.are_held()).finish()
    }
}

/// Found among the extensions of a request that holds slots in flight, for who goes on when the response
/// is over: a WebSocket, or work that the request has started.
///
/// By itself it holds nothing.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use tidegate::tower::InFlight;
///
/// async fn upgrade(request: Request<String>) -> Response<String> {
///     let kept = request.extensions().get::<InFlight>().map(InFlight::keep);
///     tokio::spawn(async move {
///         // What the upgraded connection is for. Then:
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

/// Keeps a request in flight, as far as slots are concerned, while it lives.
#[must_use = "it keeps nothing once it is dropped"]
pub struct KeptSlots {
    _slots: Option<Arc<dyn Send + Sync>>,
}

impl InFlight {
    /// Has the request's slots held until this is dropped as well. Too late once the response is over:
    /// what is released stays so.
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
