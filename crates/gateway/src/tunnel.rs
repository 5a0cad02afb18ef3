//! Bytes both ways, after a connection has become something else than HTTP.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// Two connections that were upgraded, and what is held while they last.
#[derive(Debug)]
pub(super) struct Tunnel<G> {
    pub(super) client: OnUpgrade,
    pub(super) server: OnUpgrade,
    pub(super) guards: G,
}

impl<G> Tunnel<G> {
    /// Passes bytes on until both sides have said all.
    pub(super) async fn run(self) {
        let Self { client, server, guards } = self;
        match tokio::try_join!(client, server) {
            Ok((client, server)) => {
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                // Who breaks off has nothing more to say, and nobody to say it to.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
            Err(error) => tracing::debug!(%error, "connection not upgraded"),
        }
        drop(guards);
    }
}
