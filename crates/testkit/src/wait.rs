//! Waiting for what another process does: by looking at it again and again.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up on it. Nothing here takes that long on a working machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(10);

/// The first answer that `look` has, or nothing once [`PATIENCE`] has run out.
#[allow(
    clippy::disallowed_methods,
    reason = "another process gives no event to wait for, and its progress is not on a manual clock"
)]
pub fn poll<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        let found = look();
        if found.is_some() || started.elapsed() > PATIENCE {
            return found;
        }
        thread::sleep(PAUSE);
    }
}

/// The first answer that `look` has.
///
/// # Panics
/// When there is none within [`PATIENCE`].
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    poll(look).unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain: {what}"))
}
