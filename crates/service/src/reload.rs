//! Requests of an operator to read files and sources again, by SIGHUP.

use tokio::sync::watch;

/// Wakes every task that reads something when a reload is requested.
///
/// Each clone returns once for the requests since it last returned, those before its task started included.
#[derive(Clone, Debug)]
pub struct ReloadSignal(watch::Receiver<()>);

impl ReloadSignal {
    /// Returns a signal and its sender.
    pub fn new() -> (watch::Sender<()>, Self) {
        let (sender, receiver) = watch::channel(());
        (sender, Self(receiver))
    }

    /// Waits for the next request. Cancel safe.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // Without a sender there is no other request.
            std::future::pending::<()>().await;
        }
    }
}
