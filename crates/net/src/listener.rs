//! Accepts connections of any protocol: limits their number, ends idle ones, and drains them.

mod connection_counts;
mod handover;
mod lingering_close;
pub mod socket;
mod stream;
mod timeouts;
pub mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_core::{Span, Timestamp};
use tidegate_limiter::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

pub use self::connection_counts::ConnectionCounts;
pub use self::lingering_close::{LingeringClose, lingering_close};
pub use self::stream::{ObservedStream, Stream};
use self::timeouts::ConnectionWatcher;
#[cfg(any(test, feature = "test-util"))]
pub use self::timeouts::advance_past;
pub use self::timeouts::{Activity, ConnectionTimeouts, Phase, SWEEP_INTERVAL};
pub use self::tls::ListenerTls;

/// Wait before the next accept when the system has no room for another connection.
const ACCEPT_RETRY_PAUSE: Span = Span::from_millis(50);

/// Serves the connections of one protocol.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// Serves one connection to its end. `activity` records its phase, and requests its end.
    fn serve(
        &self,
        stream: Stream,
        peer: Peer,
        activity: Arc<Activity>,
    ) -> impl Future<Output = ()> + Send;
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The name in its certificate, if the listener requires one.
    pub service: Option<Arc<str>>,
}

/// A listening socket with everything that serving it needs.
#[derive(Debug)]
pub struct Listener {
    pub listener: TcpListener,
    pub tls: Option<Arc<ListenerTls>>,
    /// Counts the connections.
    pub connections: Arc<ConnectionCounts>,
    pub timeouts: ConnectionTimeouts,
    pub clock: Clock,
    /// Becomes true when the listener has to close.
    pub closing: watch::Receiver<bool>,
    /// Set if another process may listen at the same address. It then gets the connections that arrive while
    /// this one closes.
    pub shared: bool,
}

impl Listener {
    /// Serves connections until `closing` is true, then finishes the requests in flight.
    ///
    /// Returns the number of connections that were aborted at the end.
    pub async fn serve<H: ConnectionHandler>(self, handler: Arc<H>) -> usize {
        let Self { listener, tls, connections, timeouts, clock, mut closing, shared } = self;
        connections.add_max(timeouts.connections);
        let permits = Arc::new(Semaphore::new(timeouts.connections));
        let mut watcher = ConnectionWatcher::new(timeouts, clock.now());
        let mut accept_end = None;
        loop {
            tokio::select! {
                () = wait_for_close(&mut closing), if accept_end.is_none() => {
                    if !shared {
                        break;
                    }
                    accept_end = Some(clock.now() + handover::ACCEPT_GRACE);
                    handover::stop_accepting(&listener);
                }
                () = sleep_until(&clock, accept_end) => break,
                () = clock.sleep_until(watcher.next) => watcher.sweep(clock.now()),
                accepted = accept(&listener, &permits) => match accepted {
                    Ok((stream, address, permit)) => {
                        let activity = watcher.activity();
                        let serving = serve_connection(
                            stream,
                            address,
                            tls.clone(),
                            Arc::clone(&handler),
                            Arc::clone(&activity),
                        );
                        let open = connections.accept();
                        let task = tokio::spawn(async move {
                            serving.await;
                            drop((permit, open));
                        });
                        watcher.watch(activity, task.abort_handle());
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection, retrying");
                        if !is_peer_error(&error) {
                            clock.sleep_until(clock.now() + ACCEPT_RETRY_PAUSE).await;
                        }
                    }
                },
            }
        }
        drop(listener);
        watcher.close();
        let end = clock.now() + timeouts.drain;
        let all = u32::try_from(timeouts.connections).unwrap_or(u32::MAX);
        loop {
            tokio::select! {
                // All permits are free only when no connection is left.
                _ = permits.acquire_many(all) => return 0,
                () = clock.sleep_until(watcher.next.min(end)) => watcher.sweep(clock.now()),
            }
            if clock.now() >= end {
                return watcher.abort_all();
            }
        }
    }
}

/// Returns at an instant; never without one.
async fn sleep_until(clock: &Clock, instant: Option<Timestamp>) {
    match instant {
        Some(instant) => clock.sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Accepts the next connection once there is a permit for it. Cancel safe.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, permit))
}

/// Completes the TLS handshake, if there is TLS, and passes the connection to its handler.
async fn serve_connection<H: ConnectionHandler>(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<ListenerTls>>,
    handler: Arc<H>,
    activity: Arc<Activity>,
) {
    // A reply is one small write: waiting to fill a packet would only delay it.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY, replies may be delayed");
    }
    let Some(tls) = tls else {
        let peer = Peer { address, service: None };
        return handler.serve(Stream::Plain(stream), peer, activity).await;
    };
    // During the handshake no request is in flight.
    let handshake = tokio::select! {
        handshake = tls.accept(stream) => handshake,
        () = activity.closed() => return,
    };
    match handshake {
        Ok((stream, service)) => {
            let stream = Stream::Tls(Box::new(stream));
            handler.serve(stream, Peer { address, service }, activity).await;
        }
        Err(error) => tracing::debug!(%error, "TLS handshake failed"),
    }
}

/// Returns once the listener has to close, or the sender was dropped.
async fn wait_for_close(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Returns whether the error concerns one connection only, so that the next can be accepted at once.
fn is_peer_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
