//! Waits for conditions of other processes, by polling.

use std::thread;
use std::time::{Duration, Instant};

/// Timeout of every wait in a test. On a working machine nothing takes that long.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(10);

/// The first answer that `look` has, or nothing once [`WAIT_TIMEOUT`] has run out.
#[allow(
    clippy::disallowed_methods,
    reason = "another process gives no event to wait for, and its progress is not on a manual clock"
)]
pub fn poll<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        let found = look();
        if found.is_some() || started.elapsed() > WAIT_TIMEOUT {
            return found;
        }
        thread::sleep(PAUSE);
    }
}

/// Returns the first answer that `look` has.
///
/// # Panics
/// There is none within [`WAIT_TIMEOUT`].
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    poll(look).unwrap_or_else(|| panic!("timed out after {WAIT_TIMEOUT:?}: {what}"))
}
