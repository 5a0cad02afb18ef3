//! Whether a client is still there while nobody reads what it sends.
//!
//! A connection that is not read does not tell that it ended: the end stands behind what is unread. The
//! system knows all the same, and can be asked. Only the connection itself has the socket, so whoever
//! wants to know leaves a note, and looks again the next time that the connection was polled.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::TcpStream;

/// What is known of a client's end.
#[derive(Debug, Default)]
pub(super) struct Hangup {
    wanted: AtomicBool,
    gone: AtomicBool,
}

impl Hangup {
    /// Whether the client had hung up when the connection last looked. It looks from now on.
    pub(super) fn is_gone(&self) -> bool {
        self.wanted.store(true, Ordering::Relaxed);
        self.gone.load(Ordering::Relaxed)
    }

    /// Nobody wants to know any more.
    pub(super) fn never_mind(&self) {
        self.wanted.store(false, Ordering::Relaxed);
    }

    /// Looks, if somebody wants to know.
    pub(super) fn look(&self, stream: &TcpStream) {
        if !self.wanted.load(Ordering::Relaxed) {
            return;
        }
        let mut asked = [PollFd::new(stream, PollFlags::RDHUP)];
        if poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() {
            let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
            self.gone.store(asked[0].revents().intersects(ends), Ordering::Relaxed);
        }
    }
}
