//! Readiness of this node for calls.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::store::AnyStore;

/// The readiness of a node: its store has answered, its first rules are active, and it does not drain.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Set once the store has answered.
    ready: AtomicBool,
    /// Set if load balancers should send no more calls.
    draining: AtomicBool,
    /// The source that the first rules are awaited from.
    pending_rules: Mutex<Option<String>>,
}

impl Readiness {
    /// Returns the reason why calls should not be sent to this node, or `None` if it is ready.
    ///
    /// Once ready, a node stays ready while the store is unreachable. An outage of the store affects all nodes at once:
    /// if readiness failed then, a load balancer would remove every node, and none would be left to apply each rule's
    /// `on_store_failure`.
    pub(crate) fn missing(&self, store: &AnyStore) -> Option<String> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("it is about to stop".to_owned());
        }
        if let Some(source) = &*self.pending_rules.lock() {
            return Some(format!("waiting for {source}"));
        }
        if self.ready.load(Ordering::Relaxed) {
            return None;
        }
        let missing = store.pending_servers();
        if missing.is_none() {
            self.ready.store(true, Ordering::Relaxed);
        }
        missing.map(|missing| format!("waiting for {missing}"))
    }

    /// Sets the source that the first rules are awaited from; the node is not ready until it is `None`.
    pub(crate) fn set_rules_pending(&self, source: Option<String>) {
        *self.pending_rules.lock() = source;
    }

    /// Reports not ready from now on. Calls are still answered.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
