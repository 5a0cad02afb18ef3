//! The threads of the gateway: each has its own runtime, listener and pool, and nothing to share.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tidegate_limiter::Clock;
use tidegate_net::listener::socket::listen_shared;
use tidegate_net::listener::{ConnectionCounts, ConnectionTimeouts, Listener, ListenerTls};
use tidegate_service::identity::Identity;
use tidegate_service::service::Service;
use tokio::net::lookup_host;
use tokio::sync::{oneshot, watch};

use crate::{Gateway, Upstreams};

/// Listens once for each thread that this machine can run at the same time.
///
/// # Errors
/// The address can't be had.
pub async fn listen(address: &str) -> io::Result<Vec<TcpListener>> {
    let mut found = lookup_host(address).await?;
    let wanted = found.next().ok_or_else(|| io::Error::other("the host has no address"))?;
    let first = listen_shared(wanted)?;
    let taken: SocketAddr = first.local_addr()?;
    let more = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    let rest = (0..more).map(|_| listen_shared(taken));
    std::iter::once(Ok(first)).chain(rest).collect()
}

/// What all threads serve by.
#[derive(Clone, Debug)]
pub struct Front {
    /// Upstreams and their connection pools.
    pub upstreams: Arc<Upstreams>,
    /// The service that decides.
    pub service: Arc<Service>,
    /// Reads the identity of clients.
    pub identity: Arc<Identity>,
    /// TLS of the listener, if any.
    pub tls: Option<Arc<ListenerTls>>,
    /// Counters of connections.
    pub connections: Arc<ConnectionCounts>,
    /// Timeouts of client connections.
    pub timeouts: ConnectionTimeouts,
    /// The clock of timeouts.
    pub clock: Clock,
    /// Becomes `true` when the server drains.
    pub closing: watch::Receiver<bool>,
}

/// Threads that serve. They end when this is dropped.
#[derive(Debug)]
pub struct Threads {
    _until: watch::Sender<()>,
}

impl Threads {
    /// Starts one thread for each listener. The future returns once every thread has finished its requests in flight:
    /// the number of connections that were aborted.
    ///
    /// # Errors
    /// The system has no room for another thread.
    pub fn start(
        listeners: Vec<TcpListener>,
        front: &Front,
    ) -> io::Result<(Self, impl Future<Output = usize> + Send + use<>)> {
        let (until, ended) = watch::channel(());
        let mut serving = Vec::new();
        for (number, listener) in listeners.into_iter().enumerate() {
            let (served, serves) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (front, ended) = (front.clone(), ended.clone());
            let thread = std::thread::Builder::new().name(format!("gateway-{number}"));
            thread.spawn(move || runtime.block_on(serve(listener, front, served, ended)))?;
            serving.push(serves);
        }
        let served = async {
            let mut aborted = 0;
            for serving in serving {
                aborted += serving.await.unwrap_or(0);
            }
            aborted
        };
        Ok((Self { _until: until }, served))
    }
}

async fn serve(
    listener: TcpListener,
    front: Front,
    served: oneshot::Sender<usize>,
    mut ended: watch::Receiver<()>,
) {
    let Front { upstreams, service, identity, tls, connections, timeouts, clock, closing } = front;
    let gateway = Gateway::new(&upstreams, service, identity, clock.clone());
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "gateway can't listen"),
    };
    let gateway = Arc::new(gateway);
    tokio::spawn(Arc::clone(&gateway).sweep());
    let shared = true;
    let doorway = Listener { listener, tls, connections, timeouts, clock, closing, shared };
    let cut_off = doorway.serve(gateway).await;
    let _ = served.send(cut_off);
    // What was released last is on its way to the store by a task of this thread.
    let _ = ended.changed().await;
}
