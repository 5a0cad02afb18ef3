//! Accepts connections of any protocol: limits their number, closes idle ones, and drains them.

mod connection_budget;
mod connection_counts;
mod connection_limits;
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

use parking_lot::Mutex;
use tidegate_core::{Span, Timestamp};
use tidegate_limiter::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

pub use self::connection_budget::{ConnectionBudget, ProcessResources, SocketUsers};
pub use self::connection_counts::{ConnectionCounts, RefusalReason};
pub use self::connection_limits::{ClientLimit, ConnectionLimits};
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
    /// Limits and counts the connections.
    pub limits: Arc<ConnectionLimits>,
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
        let Self { listener, tls, limits, timeouts, clock, mut closing, shared } = self;
        let watcher = Arc::new(Mutex::new(ConnectionWatcher::new(timeouts, clock.now())));
        limits.add_watcher(&watcher);
        // Every connection has a sender, so that the receiver ends with the last connection.
        let (open, mut all_ended) = mpsc::channel::<()>(1);
        let (mut accept_end, mut accept_pause) = (None, None);
        loop {
            let next_sweep = watcher.lock().next;
            tokio::select! {
                () = wait_for_close(&mut closing), if accept_end.is_none() => {
                    if !shared {
                        break;
                    }
                    accept_end = Some(clock.now() + handover::ACCEPT_GRACE);
                    handover::stop_accepting(&listener);
                }
                () = sleep_until(&clock, accept_end) => break,
                () = clock.sleep_until(next_sweep) => watcher.lock().sweep(clock.now()),
                () = sleep_until(&clock, accept_pause), if accept_pause.is_some() => {
                    accept_pause = None;
                }
                accepted = listener.accept(), if accept_pause.is_none() => match accepted {
                    Ok((stream, address)) => {
                        let activity = watcher.lock().activity();
                        let admitted = limits.admit(address.ip(), &activity, clock.now());
                        let Some(admitted) = admitted else { continue };
                        let (tls, handler) = (tls.clone(), Arc::clone(&handler));
                        let (open, served) = (open.clone(), Arc::clone(&activity));
                        // The future is created inside, because a captured one would be in the task twice.
                        let task = tokio::spawn(async move {
                            serve_connection(stream, address, tls, handler, served).await;
                            drop((admitted, open));
                        });
                        watcher.lock().watch(activity, task.abort_handle());
                    }
                    Err(error) if is_peer_error(&error) => {
                        tracing::debug!(%error, "cannot accept a connection");
                    }
                    Err(error) => {
                        // The pause prevents a busy loop: the connection stays in the backlog.
                        limits.on_accept_error(&error, clock.now());
                        accept_pause = Some(clock.now() + ACCEPT_RETRY_PAUSE);
                    }
                },
            }
        }
        drop((listener, open));
        watcher.lock().close();
        let end = clock.now() + timeouts.drain;
        loop {
            let next_sweep = watcher.lock().next;
            tokio::select! {
                _ = all_ended.recv() => return 0,
                () = clock.sleep_until(next_sweep.min(end)) => watcher.lock().sweep(clock.now()),
            }
            if clock.now() >= end {
                return watcher.lock().abort_all();
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
