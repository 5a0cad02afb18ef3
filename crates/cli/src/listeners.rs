//! The listeners of a server: bound together, then each served by its protocol.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use thiserror::Error;
use tidegate_admin::{AccessGuard, AdminApi, MAX_CONNECTIONS, SchemaFiles, is_loopback};
use tidegate_core::Span;
use tidegate_gateway::{GatewayConfig, GatewayContext, GatewayThreads, UpstreamSet};
use tidegate_limiter::Clock;
use tidegate_net::auth_failures::AuthFailures;
use tidegate_net::http::page_guard::PageGuard;
use tidegate_net::http1::Http1;
use tidegate_net::listener::tls::TlsError;
use tidegate_net::listener::{
    ClientLimit, ConnectionBudget, ConnectionHandler, ConnectionLimits, ConnectionTimeouts,
    Listener, ListenerTls, ProcessResources, SocketUsers, socket,
};
use tidegate_redis::OpenError;
use tidegate_service::config_error::ConfigError;
use tidegate_service::identity::Identity;
use tidegate_service::rules::RulesManager;
use tidegate_service::service::Service;
use tidegate_transport::grpc::{self, GrpcApi};
use tidegate_transport::http;
use tidegate_transport::resp::{RespApi, RespAuth};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::{ListenAddress, ListenConfig};
use crate::reference::SchemaKind;

/// A listener that is bound and does not accept yet.
#[derive(Debug)]
pub(crate) struct BoundListener {
    name: &'static str,
    address: SocketAddr,
    tls: Option<Arc<ListenerTls>>,
    limits: Arc<ConnectionLimits>,
    endpoint: Endpoint,
}

/// The sockets of a listener, and the configuration of its protocol.
#[derive(Debug)]
enum Endpoint {
    Http(TcpListener, PageGuard),
    Grpc(TcpListener),
    Resp(TcpListener, RespAuth),
    /// One socket for each thread.
    Gateway(Vec<std::net::TcpListener>, Arc<UpstreamSet>),
    Admin(TcpListener, AccessGuard),
}

/// Parts of the server that listeners use, and the tasks that they start.
#[derive(Debug)]
pub(crate) struct ServeContext {
    pub(crate) service: Arc<Service>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) manager: Arc<RulesManager>,
    pub(crate) clock: Clock,
    pub(crate) drain_timeout: Span,
    pub(crate) closing: watch::Receiver<bool>,
    pub(crate) tasks: Vec<JoinHandle<()>>,
    /// The threads run until they are dropped.
    pub(crate) gateway_threads: Vec<GatewayThreads>,
}

/// The resources of the process, and the limit of clients that all listeners share.
#[derive(Debug)]
pub(crate) struct ConnectionSharing {
    pub(crate) resources: ProcessResources,
    /// Set if the server uses Redis.
    pub(crate) redis: bool,
    /// The limit of one client address at the gateway; `None` without one.
    pub(crate) client_limit: Option<ClientLimit>,
}

impl ConnectionSharing {
    /// Divides the resources among the listeners that are on.
    fn divide(&self, listen: &ListenConfig) -> ConnectionBudget {
        let is_on = |address: &&ListenAddress| **address != ListenAddress::Off;
        let services = [&listen.http, &listen.grpc, &listen.resp].into_iter().filter(is_on).count();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let users = SocketUsers {
            services: number(services),
            admin: if is_on(&&listen.admin) { number(MAX_CONNECTIONS) } else { 0 },
            gateway_threads: if is_on(&&listen.gateway) { number(threads) } else { 0 },
            redis: self.redis,
        };
        ConnectionBudget::divide(self.resources, users)
    }

    /// Returns the limits of a listener with this share. One client address gets at most half of it, so that there is
    /// always room for others.
    fn limits(&self, name: &'static str, share: usize) -> ConnectionLimits {
        let half = share.div_ceil(2);
        let client_limit = self.client_limit.as_ref().map(|limit| ClientLimit {
            // The callers of the other listeners are proxies and applications, which have connection pools.
            connections: if name == "gateway" { limit.connections.min(half) } else { half },
            ..limit.clone()
        });
        ConnectionLimits::new(name, share, client_limit)
    }
}

/// Logs the numbers of connections that the listeners may have.
pub(crate) fn log_budget(budget: &ConnectionBudget) {
    let ConnectionBudget { resources, reserved_files, service, gateway, upstream, admin } = *budget;
    let (files, memory_bytes) = (resources.files, resources.memory_bytes);
    tracing::info!(
        files,
        memory_bytes,
        reserved_files,
        service,
        gateway,
        upstream,
        admin,
        "connection budget: most connections of each of http, grpc and resp, and of the others"
    );
    if budget.is_small() {
        tracing::warn!(
            files,
            memory_bytes,
            "few connections are possible; raise the limit of open files (LimitNOFILE, ulimit -n) or the memory"
        );
    }
}

/// The task of a listener. Its output is the number of connections that were aborted at the end.
type ServeFuture = Pin<Box<dyn Future<Output = usize> + Send>>;

/// Binds every listener that is not off, in the order in which they are printed. Returns the budget of their connections
/// too.
///
/// # Errors
/// All listeners except admin are off, an address can't be bound, a public admin address has no token, or a
/// certificate or an upstream can't be used.
pub(crate) async fn bind_all(
    listen: &ListenConfig,
    gateway: Option<GatewayConfig>,
    sharing: ConnectionSharing,
    clock: &Clock,
) -> Result<(Vec<BoundListener>, ConnectionBudget), BindError> {
    let checks = [&listen.http, &listen.grpc, &listen.resp, &listen.gateway];
    if checks.into_iter().all(|address| *address == ListenAddress::Off) {
        return Err(BindError::AllOff);
    }
    let budget = sharing.divide(listen);
    let service = |name| sharing.limits(name, budget.service);
    let mut bound = Vec::new();
    if let ListenAddress::At(address) = &listen.http {
        let socket = bind_socket("http", address).await?;
        let endpoint = Endpoint::Http(socket, PageGuard::new(address));
        bound.push(BoundListener::new(service("http"), listen, &["http/1.1"], endpoint)?);
    }
    if let ListenAddress::At(address) = &listen.grpc {
        let socket = bind_socket("grpc", address).await?;
        bound.push(BoundListener::new(service("grpc"), listen, &["h2"], Endpoint::Grpc(socket))?);
    }
    if let ListenAddress::At(address) = &listen.resp {
        let socket = bind_socket("resp", address).await?;
        let auth = RespAuth::new(listen.resp_password.as_ref());
        bound.push(BoundListener::new(service("resp"), listen, &[], Endpoint::Resp(socket, auth))?);
    }
    if let (ListenAddress::At(address), Some(config)) = (&listen.gateway, gateway) {
        let sockets = tidegate_gateway::listen(address).await;
        let sockets = sockets.map_err(|error| address_error("gateway", address, error))?;
        let upstreams = UpstreamSet::new(config, clock.clone()).map_err(BindError::Upstream)?;
        let endpoint = Endpoint::Gateway(sockets, Arc::new(upstreams));
        let limits = sharing.limits("gateway", budget.gateway).with_max_upstream(budget.upstream);
        bound.push(BoundListener::new(limits, listen, &["h2", "http/1.1"], endpoint)?);
    }
    if let ListenAddress::At(address) = &listen.admin {
        let socket = bind_socket("admin", address).await?;
        let guard = AccessGuard::new(listen.token.as_ref(), listen.read_token.as_ref(), address);
        let endpoint = Endpoint::Admin(socket, guard);
        let admin = BoundListener::new(
            sharing.limits("admin", budget.admin),
            listen,
            &["http/1.1"],
            endpoint,
        )?;
        if listen.token.is_none() && !is_loopback(admin.address) {
            return Err(BindError::NoToken { address: address.clone() });
        }
        bound.push(admin);
    }
    Ok((bound, budget))
}

async fn bind_socket(name: &'static str, address: &str) -> Result<TcpListener, BindError> {
    socket::listen(address).await.map_err(|error| address_error(name, address, error))
}

fn address_error(listener: &'static str, address: &str, error: io::Error) -> BindError {
    BindError::Address { listener, address: address.to_owned(), error }
}

impl BoundListener {
    /// Returns a listener, with TLS if the configuration has it. `alpn` are the protocols that TLS negotiates.
    fn new(
        limits: ConnectionLimits,
        listen: &ListenConfig,
        alpn: &[&str],
        endpoint: Endpoint,
    ) -> Result<Self, BindError> {
        let name = limits.listener();
        let bound = match &endpoint {
            Endpoint::Http(socket, _)
            | Endpoint::Grpc(socket)
            | Endpoint::Resp(socket, _)
            | Endpoint::Admin(socket, _) => socket.local_addr(),
            Endpoint::Gateway(sockets, _) => match sockets.first() {
                Some(socket) => socket.local_addr(),
                None => Err(io::Error::other("no socket")),
            },
        };
        let address = bound.map_err(|error| address_error(name, "the bound address", error))?;
        let files = listen.tls.as_ref().and_then(|tls| tls.files_for(name));
        let tls = files.map(|files| ListenerTls::load(files.clone(), alpn).map(Arc::new));
        Ok(Self { name, address, tls: tls.transpose()?, limits: Arc::new(limits), endpoint })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the address that it is bound to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/", self.address)
    }

    /// Returns its TLS configuration, if it has one.
    pub(crate) fn tls(&self) -> Option<Arc<ListenerTls>> {
        self.tls.clone()
    }

    /// Starts to accept connections.
    pub(crate) fn serve(self, context: &mut ServeContext) -> ServeFuture {
        let Self { name, tls, limits, endpoint, .. } = self;
        let connections = Arc::clone(limits.counts());
        let (service, clock) = (Arc::clone(&context.service), context.clock.clone());
        let identity = Arc::clone(&context.identity);
        let (closing, drain) = (context.closing.clone(), context.drain_timeout);
        service.stats().counters.register_listener(name, Arc::clone(&connections));
        let listener = |listener: TcpListener, timeouts: ConnectionTimeouts| Listener {
            listener,
            tls: tls.clone(),
            limits: Arc::clone(&limits),
            timeouts: ConnectionTimeouts { drain, ..timeouts },
            clock: clock.clone(),
            closing: closing.clone(),
            shared: false,
        };
        match endpoint {
            Endpoint::Http(socket, page_guard) => {
                let listener = listener(socket, ConnectionTimeouts::default());
                serve(listener, Http1(http::HttpApi::new(service, identity, page_guard)))
            }
            Endpoint::Grpc(socket) => {
                let listener = listener(socket, grpc::timeouts());
                serve(listener, GrpcApi::new(service, clock.clone(), closing.clone()))
            }
            Endpoint::Resp(socket, auth) => {
                let failures = AuthFailures::new(name, clock.clone(), Arc::clone(&connections));
                let resp = RespApi::new(service, auth, failures);
                serve(listener(socket, RespApi::timeouts()), resp)
            }
            Endpoint::Admin(socket, guard) => {
                let schemas = SchemaFiles {
                    rules: SchemaKind::Rules.schema().to_json().into(),
                    config: SchemaKind::Config.schema().to_json().into(),
                };
                let manager = Arc::clone(&context.manager);
                let failures = AuthFailures::new(name, clock.clone(), Arc::clone(&connections));
                let admin = AdminApi::new(guard, failures, Arc::clone(&service), manager, schemas);
                context
                    .tasks
                    .push(tokio::spawn(Arc::clone(&admin.live).sample_every_second(service)));
                serve(listener(socket, ConnectionTimeouts::default()), Http1(admin))
            }
            Endpoint::Gateway(sockets, upstreams) => {
                let sampled = Arc::clone(&upstreams);
                service.stats().counters.register_upstreams(move || sampled.samples());
                context.tasks.push(tokio::spawn(Arc::clone(&upstreams).run_health_checks()));
                let timeouts = ConnectionTimeouts { drain, ..upstreams.timeouts() };
                let gateway = GatewayContext {
                    upstreams,
                    service,
                    identity,
                    tls,
                    limits,
                    timeouts,
                    clock,
                    closing,
                };
                serve_gateway(sockets, &gateway, &mut context.gateway_threads)
            }
        }
    }
}

fn serve<H: ConnectionHandler>(listener: Listener, handler: H) -> ServeFuture {
    Box::pin(listener.serve(Arc::new(handler)))
}

fn serve_gateway(
    sockets: Vec<std::net::TcpListener>,
    gateway: &GatewayContext,
    threads: &mut Vec<GatewayThreads>,
) -> ServeFuture {
    match GatewayThreads::start(sockets, gateway) {
        Ok((started, served)) => {
            threads.push(started);
            Box::pin(served)
        }
        Err(error) => {
            tracing::error!(%error, "cannot start the gateway threads, requests are not forwarded");
            Box::pin(async { 0 })
        }
    }
}

/// The reason why a server can't start.
#[derive(Debug, Error)]
pub(crate) enum BindError {
    #[error("every listener is off, at least one is wanted")]
    AllOff,
    #[error("{listener} can't listen on {address}: {}", reason(.error))]
    Address { listener: &'static str, address: String, error: io::Error },
    /// A public admin listener needs a token.
    #[error(
        "admin can't listen on {address} without a token: any machine could change rules and blocks"
    )]
    NoToken { address: String },
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    #[error("gateway.upstreams: {0}")]
    Upstream(String),
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Keys for tokens can't be read.
    #[error(transparent)]
    Identity(#[from] ConfigError),
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the address is already in use".to_owned(),
        _ => error.to_string(),
    }
}
