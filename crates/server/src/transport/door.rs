//! One way in for every protocol: accepts connections, not too many, keeps none that does nothing,
//! and lets go of them in good order.

mod connections;
pub(crate) mod listen;
mod shared;
mod stream;
pub(crate) mod tls;
mod watch;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::{Clock, Span, Timestamp};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch as channel};

pub(crate) use self::connections::Connections;
pub(crate) use self::stream::{Observed, Stream};
pub(crate) use self::tls::Tls;
use self::watch::Watcher;
pub(crate) use self::watch::{Activity, Patience, Phase};
#[cfg(test)]
pub(crate) use self::watch::{LOOK, pass};
use crate::identity::Caller;

/// How long to wait when the system has no room for another connection.
const PAUSE: Span = Span::from_millis(50);

/// What is spoken on a door.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Serves one connection to its end. `activity` is told what it does, and tells when to end.
    fn serve(
        &self,
        stream: Stream,
        peer: Peer,
        activity: Arc<Activity>,
    ) -> impl Future<Output = ()> + Send;
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The name in its certificate, if it had to show one.
    pub(crate) service: Option<Arc<str>>,
}

impl Peer {
    /// Who it is to rules.
    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { address: self.address.ip(), service: self.service.as_deref(), way: None }
    }
}

/// A door that is about to open.
#[derive(Debug)]
pub(crate) struct Doorway {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<Tls>>,
    /// Where connections are counted.
    pub(crate) connections: Arc<Connections>,
    pub(crate) patience: Patience,
    pub(crate) clock: Clock,
    /// Turns true when the door is to close.
    pub(crate) closing: channel::Receiver<bool>,
    /// Whether another process may listen at the same address, which then has those who come too late
    /// for this one.
    pub(crate) shared: bool,
}

impl Doorway {
    /// Serves connections until `closing` says so, then finishes what is under way.
    ///
    /// Returns how many connections had to be cut off in the end.
    pub(crate) async fn serve<P: Protocol>(self, protocol: Arc<P>) -> usize {
        let Self { listener, tls, connections, patience, clock, mut closing, shared } = self;
        connections.at_most(patience.connections);
        let places = Arc::new(Semaphore::new(patience.connections));
        let mut watcher = Watcher::starting(patience, clock.now());
        let mut last_call = None;
        loop {
            tokio::select! {
                () = told(&mut closing), if last_call.is_none() => {
                    if !shared {
                        break;
                    }
                    last_call = Some(clock.now() + shared::LAST_CALL);
                    shared::turn_away(&listener);
                }
                () = until(&clock, last_call) => break,
                () = clock.sleep_until(watcher.next) => watcher.look(clock.now()),
                accepted = accept(&listener, &places) => match accepted {
                    Ok((stream, address, place)) => {
                        let activity = watcher.activity();
                        let serving = connection(
                            stream,
                            address,
                            tls.clone(),
                            Arc::clone(&protocol),
                            Arc::clone(&activity),
                        );
                        let open = connections.accept();
                        let task = tokio::spawn(async move {
                            serving.await;
                            drop((place, open));
                        });
                        watcher.hold(activity, task.abort_handle());
                    }
                    Err(error) => {
                        tracing::warn!(%error, "connection not accepted");
                        if !is_the_peers(&error) {
                            clock.sleep_until(clock.now() + PAUSE).await;
                        }
                    }
                },
            }
        }
        drop(listener);
        watcher.close();
        let end = clock.now() + patience.drain;
        let all = u32::try_from(patience.connections).unwrap_or(u32::MAX);
        loop {
            tokio::select! {
                // Holding every place means that nobody else does.
                _ = places.acquire_many(all) => return 0,
                () = clock.sleep_until(watcher.next.min(end)) => watcher.look(clock.now()),
            }
            if clock.now() >= end {
                return watcher.cut_off();
            }
        }
    }
}

/// Returns at an instant, or never.
async fn until(clock: &Clock, instant: Option<Timestamp>) {
    match instant {
        Some(instant) => clock.sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// The next connection, once there is a place for it. Safe to drop at any point.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, place))
}

async fn connection<P: Protocol>(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    protocol: Arc<P>,
    activity: Arc<Activity>,
) {
    // A reply is one small write: waiting to fill a packet would only delay it.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection without TCP_NODELAY");
    }
    let Some(tls) = tls else {
        let peer = Peer { address, service: None };
        return protocol.serve(Stream::Plain(stream), peer, activity).await;
    };
    // Nobody who is still shaking hands has asked anything.
    let shaken = tokio::select! {
        shaken = tls.accept(stream) => shaken,
        () = activity.closed() => return,
    };
    match shaken {
        Ok((stream, service)) => {
            let stream = Stream::Tls(Box::new(stream));
            protocol.serve(stream, Peer { address, service }, activity).await;
        }
        Err(error) => tracing::debug!(%error, "connection without a handshake"),
    }
}

/// Returns once the door is to be closed, or nobody is left to say so.
async fn told(closing: &mut channel::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Whether the error is about one connection and the next may well be fine.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
