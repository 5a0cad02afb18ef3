//! An admitted request that is served by this process.

use tidegate_limiter::{Admission, SlotGuard};

use crate::store::AnyStore;

/// The admission of a request, and its slots in flight once it is served.
///
/// Dropped before [`serve`](Self::serve), it rolls the admission back. Dropped later, it releases the slots.
#[derive(Debug)]
pub struct AdmittedRequest {
    admission: Option<Admission<AnyStore>>,
    guard: SlotGuard<AnyStore>,
}

impl AdmittedRequest {
    pub(crate) fn new(admission: Admission<AnyStore>) -> Self {
        Self { admission: Some(admission), guard: SlotGuard::default() }
    }

    /// Returns whether the request has to wait.
    pub fn waits(&self) -> bool {
        self.admission.as_ref().is_some_and(|admission| !admission.is_ready())
    }

    /// Waits until the request may be served.
    pub async fn wait(&self) {
        if let Some(admission) = &self.admission {
            admission.ready().await;
        }
    }

    /// Starts to serve the request. Its charges stay from now on.
    pub fn serve(&mut self) {
        if let Some(admission) = self.admission.take() {
            self.guard = admission.start();
        }
    }

    /// Returns whether the request that is served holds slots of a limit in flight.
    pub fn holds_slots(&self) -> bool {
        !self.guard.is_empty()
    }
}
