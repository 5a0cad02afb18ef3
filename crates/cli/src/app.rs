//! Build, bind, run, drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use thiserror::Error;
use tidegate_admin::{Admin, Guard, Schemas, is_local};
use tidegate_core::{HeaderStyle, Span};
use tidegate_gateway::{self, Front, GatewayConfig, Threads, Upstreams};
use tidegate_limiter::{Clock, Limiter, MemoryStore};
use tidegate_net::http1::Http1;
use tidegate_net::listener::tls::TlsError;
use tidegate_net::listener::{ConnectionCounts, ConnectionTimeouts, Listener, ListenerTls, socket};
use tidegate_redis::OpenError;
use tidegate_service::config_error::ConfigError;
use tidegate_service::identity::{Identity, IdentityConfig};
use tidegate_service::reload::ReloadSignal;
use tidegate_service::rules::{
    LoadedRules, RulesConfig, RulesManager, RulesManagerDeps, Shared, node_name, reports,
};
use tidegate_service::service::Service;
use tidegate_service::service::rls::{Rls, RlsHeaders};
use tidegate_service::store::{AnyStore, StoreConfig};
use tidegate_transport::grpc::{self, Grpc};
use tidegate_transport::http;
use tidegate_transport::resp::{Gate, Resp};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::config::{Door, Drain, Listen};
use crate::reference::Subject;

/// How long it takes to look through the whole store for what has expired.
const SWEEP: Duration = Duration::from_secs(10);
/// How often a part of it is looked through.
const SWEEP_TICK: Duration = Duration::from_millis(50);

/// How often blocks that are over and denials that no longer count are looked for.
const SWEEP_BLOCKS: Duration = Duration::from_secs(1);

/// How often certificates are looked at.
const RELOAD: Duration = Duration::from_secs(5);

/// A server whose doors are bound and not yet open.
#[derive(Debug)]
pub(crate) struct App {
    http: Option<Bound>,
    grpc: Option<Bound>,
    resp: Option<(Bound, Gate)>,
    admin: Option<(Bound, Admin)>,
    gateway: Option<Entrance>,
    drain: Drain,
    service: Arc<Service>,
    identity: Arc<Identity>,
    manager: Arc<RulesManager>,
    rules: RulesConfig,
    store: Arc<AnyStore>,
    clock: Clock,
}

/// How far a server is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Not on its way out.
    Open,
    /// Calls should go elsewhere; it closes soon.
    Leaving,
    /// No new connections; what is under way is answered.
    Closing,
}

/// An address that is ours.
#[derive(Debug)]
struct Bound {
    name: &'static str,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ListenerTls>>,
    connections: Arc<ConnectionCounts>,
}

/// The address of the gateway, which listens once for each of its threads.
#[derive(Debug)]
struct Entrance {
    listeners: Vec<std::net::TcpListener>,
    address: SocketAddr,
    tls: Option<Arc<ListenerTls>>,
    connections: Arc<ConnectionCounts>,
    upstreams: Arc<Upstreams>,
}

impl Entrance {
    /// Takes the address, if there is a gateway.
    async fn to(
        listen: &Listen,
        config: Option<GatewayConfig>,
        clock: Clock,
    ) -> Result<Option<Self>, BindError> {
        let (Door::At(wanted), Some(config)) = (&listen.gateway, config) else { return Ok(None) };
        let taken = |error| BindError::Door { door: "gateway", address: wanted.clone(), error };
        let listeners = tidegate_gateway::listen(wanted).await.map_err(taken)?;
        let first = listeners.first().map(std::net::TcpListener::local_addr);
        let address = first.unwrap_or_else(|| Err(io::Error::other("nobody listens")));
        let address = address.map_err(taken)?;
        let tls = listen.tls("gateway", &["h2", "http/1.1"])?;
        let upstreams = Arc::new(Upstreams::new(config, clock).map_err(BindError::Upstream)?);
        Ok(Some(Self { listeners, address, tls, connections: Arc::default(), upstreams }))
    }
}

impl Listen {
    /// TLS for a door, if it is to speak it. `protocols` are what it speaks inside.
    fn tls(&self, door: &str, protocols: &[&str]) -> Result<Option<Arc<ListenerTls>>, TlsError> {
        let files = self.tls.as_ref().and_then(|tls| tls.of(door));
        files.map(|files| ListenerTls::load(files.clone(), protocols).map(Arc::new)).transpose()
    }
}

impl Bound {
    /// Takes the address of a door that is not off. `protocols` are what it speaks inside of TLS.
    async fn to(
        name: &'static str,
        door: &Door,
        listen: &Listen,
        protocols: &[&str],
    ) -> Result<Option<Self>, BindError> {
        let Door::At(wanted) = door else { return Ok(None) };
        let taken = |error| BindError::Door { door: name, address: wanted.clone(), error };
        let listener = socket::listen(wanted).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let (tls, connections) = (listen.tls(name, protocols)?, Arc::default());
        Ok(Some(Self { name, listener, address, tls, connections }))
    }

    /// The door, ready to be opened.
    fn doorway(
        self,
        timeouts: ConnectionTimeouts,
        clock: &Clock,
        closing: &watch::Receiver<bool>,
    ) -> Listener {
        let (clock, closing) = (clock.clone(), closing.clone());
        let Self { listener, tls, connections, .. } = self;
        Listener { listener, tls, connections, timeouts, clock, closing, shared: false }
    }
}

impl App {
    /// Takes the addresses; nobody is answered yet.
    ///
    /// # Errors
    /// There is no door to open, an address can't be had or is open to others without a token, a
    /// certificate can't be used, or the store will never do.
    pub(crate) async fn bind(
        listen: &Listen,
        rules: LoadedRules,
        store: StoreConfig,
        headers: HeaderStyle,
        rls_headers: RlsHeaders,
        identity: IdentityConfig,
        gateway: Option<GatewayConfig>,
    ) -> Result<Self, BindError> {
        let doors = [&listen.http, &listen.grpc, &listen.resp, &listen.gateway];
        if doors.into_iter().all(|door| *door == Door::Off) {
            return Err(BindError::NoDoor);
        }
        let http = Bound::to("http", &listen.http, listen, &["http/1.1"]).await?;
        let grpc = Bound::to("grpc", &listen.grpc, listen, &["h2"]).await?;
        let gate = Gate::new(listen.resp_password.as_ref());
        let resp = Bound::to("resp", &listen.resp, listen, &[]).await?.map(|bound| (bound, gate));
        let clock = Clock::system();
        let gateway = Entrance::to(listen, gateway, clock.clone()).await?;
        let shared = Shared::of(&store, &rules.config.source);
        let store = Arc::new(AnyStore::start(store, &clock).await?);
        let limiter = Limiter::builder().clock(clock.clone()).store(Arc::clone(&store)).build();
        let blocks = Arc::clone(limiter.blocks());
        if let AnyStore::Redis(store) = &*store {
            store.share_blocks(&blocks);
        }
        let service = Service::new(limiter, headers).with_rls(Rls::new(rls_headers));
        let service = Arc::new(service);
        let identity = Arc::new(Identity::new(identity, blocks, clock.clone())?);
        let admin = match Bound::to("admin", &listen.admin, listen, &["http/1.1"]).await? {
            Some(bound) => {
                let wanted = listen.admin.to_string();
                if listen.token.is_none() && !is_local(bound.address) {
                    return Err(BindError::NoToken { address: wanted });
                }
                let guard = Guard::new(listen.token.as_ref(), &wanted);
                Some((bound, guard))
            }
            None => None,
        };
        let addresses = [http.as_ref(), grpc.as_ref(), resp.as_ref().map(|(bound, _)| bound)];
        let admin_at = admin.as_ref().map(|(bound, _)| bound.address);
        let gateway_at = gateway.as_ref().map(|entrance| entrance.address);
        let at = addresses.into_iter().flatten().map(|bound| bound.address);
        let at = admin_at.or_else(|| at.chain(gateway_at).next());
        let shared = shared.rules(&store).await?;
        let household = RulesManagerDeps {
            service: Arc::clone(&service),
            identity: Arc::clone(&identity),
            source: rules.config.source.to_string(),
            is_remote: rules.config.source.is_remote(),
            node: node_name(at),
            copy: rules.copy(),
            reports: reports(shared.as_ref(), &store),
            shared,
        };
        let LoadedRules { config: rules, inputs, rules: first } = rules;
        let manager = Arc::new(RulesManager::new(household, inputs, first));
        manager.begin(&rules).await;
        let admin = admin.map(|(bound, guard)| {
            let (service, manager) = (Arc::clone(&service), Arc::clone(&manager));
            let schemas = Schemas {
                rules: Subject::Rules.schema().to_json().into(),
                config: Subject::Config.schema().to_json().into(),
            };
            (bound, Admin::new(guard, service, manager, schemas))
        });
        Ok(Self {
            http,
            grpc,
            resp,
            admin,
            gateway,
            drain: listen.drain,
            service,
            identity,
            manager,
            rules,
            store,
            clock,
        })
    }

    /// How many rules somebody wrote are in force.
    pub(crate) fn rules(&self) -> usize {
        self.service.active_rules().limiter().rules().rules().len()
    }

    /// Where checks are answered over HTTP.
    pub(crate) fn http(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|bound| bound.address)
    }

    /// Where requests are forwarded from.
    pub(crate) fn gateway(&self) -> Option<SocketAddr> {
        self.gateway.as_ref().map(|entrance| entrance.address)
    }

    /// Where operators look.
    pub(crate) fn dashboard(&self) -> Option<String> {
        let (bound, _) = self.admin.as_ref()?;
        let scheme = if bound.tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{}/", bound.address))
    }

    /// The doors by name, and where they really are.
    pub(crate) fn doors(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let resp = self.resp.as_ref().map(|(bound, _)| bound);
        let admin = self.admin.as_ref().map(|(bound, _)| bound);
        let at = |bound: &Bound| (bound.name, bound.address);
        let doors = [self.http.as_ref(), self.grpc.as_ref(), resp].into_iter().flatten().map(at);
        doors.chain(self.gateway().map(|address| ("gateway", address))).chain(admin.map(at))
    }

    /// Answers until `stage` says so, then finishes what is under way. How many connections had
    /// to be cut off. Every reload reads rules, certificates and keys again.
    pub(crate) async fn run(self, stage: watch::Receiver<Stage>, reloads: ReloadSignal) -> usize {
        let mut tasks = self.manager.follow(&self.rules, &reloads);
        tasks.push(tokio::spawn(reload_keys(Arc::clone(&self.identity), reloads.clone())));
        tasks.push(tokio::spawn(sweep_blocks(Arc::clone(&self.service))));
        // Redis forgets what has expired by itself.
        if let AnyStore::Memory(store) = &*self.store {
            tasks.push(tokio::spawn(sweep(Arc::clone(store))));
        }
        if let Some((_, admin)) = &self.admin {
            let (live, service) = (Arc::clone(&admin.live), Arc::clone(&self.service));
            tasks.push(tokio::spawn(live.watch(service)));
        }
        let resp = self.resp.as_ref().map(|(bound, _)| bound);
        let admin = self.admin.as_ref().map(|(bound, _)| bound);
        let bounds = [self.http.as_ref(), self.grpc.as_ref(), resp, admin];
        for bound in bounds.into_iter().flatten() {
            self.service
                .stats()
                .counters
                .register_listener(bound.name, Arc::clone(&bound.connections));
        }
        let mut tls: Vec<_> = bounds.into_iter().filter_map(|bound| bound?.tls.clone()).collect();
        tls.extend(self.gateway.as_ref().and_then(|entrance| entrance.tls.clone()));
        if !tls.is_empty() {
            tasks.push(tokio::spawn(reload_certificates(tls, reloads)));
        }
        let (clock, drain) = (self.clock, self.drain);
        let (close, closing) = watch::channel(false);
        let leaving = leave(stage, Arc::clone(&self.service), clock.clone(), drain.delay, close);
        tasks.push(tokio::spawn(leaving));
        let timeouts =
            |timeouts: ConnectionTimeouts| ConnectionTimeouts { drain: drain.timeout, ..timeouts };
        let mut threads = self.gateway.and_then(|entrance| {
            let Entrance { listeners, tls, connections, upstreams, .. } = entrance;
            self.service.stats().counters.register_listener("gateway", Arc::clone(&connections));
            let sampled = Arc::clone(&upstreams);
            self.service.stats().counters.register_upstreams(move || sampled.samples());
            tasks.push(tokio::spawn(Arc::clone(&upstreams).watch()));
            let front = Front {
                timeouts: timeouts(upstreams.timeouts()),
                upstreams,
                service: Arc::clone(&self.service),
                identity: Arc::clone(&self.identity),
                tls,
                connections,
                clock: clock.clone(),
                closing: closing.clone(),
            };
            Threads::start(listeners, &front)
                .inspect_err(|error| tracing::error!(%error, "gateway not started"))
                .ok()
        });
        let http = self.http.map(|bound| {
            let doorway = bound.doorway(timeouts(ConnectionTimeouts::default()), &clock, &closing);
            doorway
                .serve(Arc::new(Http1(http::Door::new(Arc::clone(&self.service), self.identity))))
        });
        let grpc = self.grpc.map(|bound| {
            let doorway = bound.doorway(timeouts(grpc::timeouts()), &clock, &closing);
            let service = Arc::clone(&self.service);
            doorway.serve(Arc::new(Grpc::new(service, clock.clone(), closing.clone())))
        });
        let resp = self.resp.map(|(bound, gate)| {
            let doorway = bound.doorway(timeouts(Resp::timeouts()), &clock, &closing);
            doorway.serve(Arc::new(Resp::new(Arc::clone(&self.service), gate)))
        });
        let admin = self.admin.map(|(bound, admin)| {
            let doorway = bound.doorway(timeouts(Admin::timeouts()), &clock, &closing);
            doorway.serve(Arc::new(Http1(admin)))
        });
        let gateway = threads.as_mut().map(Threads::served);
        let (http, grpc, resp, admin, gateway) = tokio::join!(
            OptionFuture::from(http),
            OptionFuture::from(grpc),
            OptionFuture::from(resp),
            OptionFuture::from(admin),
            OptionFuture::from(gateway)
        );
        tasks.iter().for_each(JoinHandle::abort);
        // What this node holds ahead of use is the others' again at once.
        self.service.active_rules().limiter().release_all().await;
        self.store.leave().await;
        drop(threads);
        [http, grpc, resp, admin, gateway].into_iter().flatten().sum()
    }
}

/// Closes the doors: at once, or after a while in which calls can be sent elsewhere.
async fn leave(
    mut stage: watch::Receiver<Stage>,
    service: Arc<Service>,
    clock: Clock,
    delay: Span,
    close: watch::Sender<bool>,
) {
    // Nobody is left to say anything only when everything is over.
    let _ = stage.wait_for(|stage| *stage > Stage::Open).await;
    service.drain();
    // Logged here, so that health checks answer "not serving" from this line on.
    tracing::info!("told to stop, answering what is under way");
    tokio::select! {
        _ = stage.wait_for(|stage| *stage == Stage::Closing) => {}
        () = clock.sleep_until(clock.now() + delay) => {}
    }
    let _ = close.send(true);
}

/// Takes up certificates that have changed, at intervals and on every reload. The log has the error of one that can't
/// be used, once and after every reload; the old one stays.
async fn reload_certificates(doors: Vec<Arc<ListenerTls>>, mut reloads: ReloadSignal) {
    let mut ticker = tokio::time::interval(RELOAD);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = String::new();
    loop {
        let is_reload = tokio::select! {
            () = reloads.next() => true,
            _ = ticker.tick() => false,
        };
        for tls in &doors {
            let certificate = tls.certificate().display();
            match tls.reload() {
                Ok(true) => tracing::info!(%certificate, "certificate taken up"),
                Ok(false) if is_reload => {
                    tracing::info!(%certificate, "reload: certificate unchanged");
                }
                Ok(false) => {}
                Err(error) => {
                    let error = error.to_string();
                    if is_reload || told != error {
                        tracing::warn!(error, "certificate not taken up, the old one stays");
                        told = error;
                    }
                }
            }
        }
    }
}

/// Reads the keys for tokens again on every reload. They are also read when their file changes.
async fn reload_keys(identity: Arc<Identity>, mut reloads: ReloadSignal) {
    loop {
        reloads.next().await;
        identity.reload_keys();
    }
}

/// Drops what has expired, a few shards at a time, so that memory shrinks when traffic does.
async fn sweep(store: Arc<MemoryStore>) {
    let ticks = SWEEP.as_millis() / SWEEP_TICK.as_millis();
    let each = store.shards().div_ceil(usize::try_from(ticks).unwrap_or(1));
    let mut ticker = tokio::time::interval(SWEEP_TICK);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        store.sweep(each);
    }
}

/// The same for blocks, and for the denials that penalties count.
async fn sweep_blocks(service: Arc<Service>) {
    let parts = usize::try_from(SWEEP.as_secs() / SWEEP_BLOCKS.as_secs()).unwrap_or(1);
    let mut ticker = tokio::time::interval(SWEEP_BLOCKS);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        service.active_rules().limiter().sweep_blocks(parts);
    }
}

/// Why a server can't start.
#[derive(Debug, Error)]
pub(crate) enum BindError {
    #[error("every door is off, there is nothing to serve")]
    NoDoor,
    #[error("{door} can't listen on {address}: {}", reason(.error))]
    Door { door: &'static str, address: String, error: io::Error },
    #[error(
        "admin can't listen on {address} without a token: whoever reaches it could block anybody"
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

#[cfg(test)]
mod tests {
    use tidegate_core::Request;
    use tidegate_limiter::ManualClock;
    use tidegate_rules::RuleSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_has_expired_is_gone_after_one_round() {
        let time = ManualClock::default();
        let store = Arc::new(MemoryStore::new(time.clock()));
        let rules = RuleSet::parse("", "rules: [{name: api, per: [user], limit: 1/s}]").unwrap();
        let limiter = Limiter::builder().rules(rules).store(Arc::clone(&store)).build();
        for user in 0..1_000 {
            let user = user.to_string();
            limiter.check(&Request::new().with("user", user.as_str()).unwrap()).await;
        }
        assert_eq!(store.usage().keys, 1_000);
        time.advance(Span::MINUTE);
        let round = tokio::time::timeout(SWEEP, sweep(Arc::clone(&store))).await;
        assert!(round.is_err());
        assert_eq!(store.usage().keys, 0);
    }
}
