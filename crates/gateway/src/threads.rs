//! The threads of the gateway. Each has its own runtime, listening socket and connection pool.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tidegate_limiter::Clock;
use tidegate_net::listener::socket::listen_shared;
use tidegate_net::listener::{ConnectionLimits, ConnectionTimeouts, Listener, ListenerTls};
use tidegate_service::identity::Identity;
use tidegate_service::service::Service;
use tokio::net::lookup_host;
use tokio::sync::{oneshot, watch};

use crate::gateway::Gateway;
use crate::upstream_set::UpstreamSet;
use crate::upstream_socket::UpstreamSockets;

/// Opens one listening socket for each available processor, all at the same address.
///
/// # Errors
/// The host has no address, or the address can't be bound.
pub async fn listen(address: &str) -> io::Result<Vec<TcpListener>> {
    let mut resolved = lookup_host(address).await?;
    let address = resolved.next().ok_or_else(|| io::Error::other("the host has no address"))?;
    let first = listen_shared(address)?;
    // Port 0 was replaced by a free port, which the other sockets share.
    let bound: SocketAddr = first.local_addr()?;
    let others = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    let others = (0..others).map(|_| listen_shared(bound));
    std::iter::once(Ok(first)).chain(others).collect()
}

/// The parts of the server that all gateway threads use.
#[derive(Clone, Debug)]
pub struct GatewayContext {
    /// The upstreams and routes.
    pub upstreams: Arc<UpstreamSet>,
    /// The service that checks the rules.
    pub service: Arc<Service>,
    /// Reads the identity of clients.
    pub identity: Arc<Identity>,
    /// TLS of the listener, if any.
    pub tls: Option<Arc<ListenerTls>>,
    /// Limits and counters of client connections, which all threads share.
    pub limits: Arc<ConnectionLimits>,
    /// Timeouts of client connections.
    pub timeouts: ConnectionTimeouts,
    /// The clock of timeouts.
    pub clock: Clock,
    /// Becomes `true` when the server drains.
    pub closing: watch::Receiver<bool>,
}

/// The running gateway threads. They end when this is dropped.
#[derive(Debug)]
pub struct GatewayThreads {
    _running: watch::Sender<()>,
}

impl GatewayThreads {
    /// Starts one thread for each socket.
    ///
    /// The returned future ends once every thread has drained its connections. Its output is the number of connections
    /// that were aborted.
    ///
    /// # Errors
    /// A thread or its runtime can't be created.
    pub fn start(
        listeners: Vec<TcpListener>,
        context: &GatewayContext,
    ) -> io::Result<(Self, impl Future<Output = usize> + Send + use<>)> {
        let (running, stopped) = watch::channel(());
        let mut drained_threads = Vec::new();
        let upstream_sockets = context.limits.counts().max_upstream() / listeners.len().max(1);
        for (number, listener) in listeners.into_iter().enumerate() {
            let (drained, on_drained) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (context, stopped) = (context.clone(), stopped.clone());
            let thread = std::thread::Builder::new().name(format!("gateway-{number}"));
            thread.spawn(move || {
                runtime.block_on(serve(listener, context, upstream_sockets, drained, stopped));
            })?;
            drained_threads.push(on_drained);
        }
        let all_drained = async {
            let mut aborted = 0;
            for on_drained in drained_threads {
                aborted += on_drained.await.unwrap_or(0);
            }
            aborted
        };
        Ok((Self { _running: running }, all_drained))
    }
}

/// Serves one socket until it is drained, then keeps the runtime of the thread until `stopped`.
async fn serve(
    listener: TcpListener,
    context: GatewayContext,
    upstream_sockets: usize,
    drained: oneshot::Sender<usize>,
    mut stopped: watch::Receiver<()>,
) {
    let GatewayContext { upstreams, service, identity, tls, limits, timeouts, clock, closing } =
        context;
    let sockets = UpstreamSockets::new(upstream_sockets, Arc::clone(limits.counts()));
    let gateway = Gateway::new(&upstreams, service, identity, sockets, clock.clone());
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            return tracing::error!(%error, "gateway thread cannot listen, it accepts no connections");
        }
    };
    let gateway = Arc::new(gateway);
    tokio::spawn(Arc::clone(&gateway).sweep_pool());
    let shared = true;
    let listener = Listener { listener, tls, limits, timeouts, clock, closing, shared };
    let aborted = listener.serve(gateway).await;
    let _ = drained.send(aborted);
    // Tasks of this runtime may still send released slots to the store.
    let _ = stopped.changed().await;
}
