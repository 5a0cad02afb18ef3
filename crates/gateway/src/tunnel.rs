//! The byte tunnel between client and server after an upgrade.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// The two upgraded connections, and the guards of the request that upgraded them.
#[derive(Debug)]
pub(crate) struct UpgradeTunnel<G> {
    pub(crate) client: OnUpgrade,
    pub(crate) server: OnUpgrade,
    pub(crate) guards: G,
}

impl<G> UpgradeTunnel<G> {
    /// Copies bytes in both directions until both sides have closed, or one fails.
    pub(crate) async fn run(self) {
        let Self { client, server, guards } = self;
        match tokio::try_join!(client, server) {
            Ok((client, server)) => {
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                // An error ends the tunnel. It is not logged: a side that resets the connection is a usual end.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
            Err(error) => tracing::debug!(%error, "upgrade failed, connection closed"),
        }
        drop(guards);
    }
}
