//! How many connections a door has, has had and may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts the connections of a door.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: AtomicU64,
    accepted: AtomicU64,
    most: AtomicUsize,
}

/// A connection while it is open.
#[derive(Debug)]
pub(crate) struct Open(Arc<Connections>);

impl Connections {
    /// Notes that there may be so many at once, beside those of other listeners of the door.
    pub(super) fn at_most(&self, most: usize) {
        self.most.fetch_add(most, Ordering::Relaxed);
    }

    /// Counts a connection until what this gives is dropped.
    pub(super) fn accept(self: &Arc<Self>) -> Open {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// How many are open.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// How many there have been.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many may be open at once.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_while_it_is_open() {
        let door = Arc::new(Connections::default());
        let (one, other) = (door.accept(), door.accept());
        assert_eq!((door.open(), door.accepted()), (2, 2));
        drop(one);
        assert_eq!((door.open(), door.accepted()), (1, 2));
        drop(other);
        assert_eq!((door.open(), door.accepted()), (0, 2));
    }
}
