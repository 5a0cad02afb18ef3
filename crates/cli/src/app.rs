//! The life of a server: build, bind, run, drain.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tidegate_core::Span;
use tidegate_gateway::GatewayConfig;
use tidegate_limiter::{Clock, Limiter, MemoryStore};
use tidegate_net::listener::{ClientLimit, ListenerTls, ProcessResources};
use tidegate_service::identity::{Identity, IdentityConfig};
use tidegate_service::reload::{FileWatcher, ReloadSignal, WakeReason};
use tidegate_service::rules::{
    LoadedRules, RulesConfig, RulesManager, RulesManagerDeps, RulesStorage, follow_sources,
    node_name, report_document, start_from_source,
};
use tidegate_service::service::Service;
use tidegate_service::service::rls::RlsContext;
use tidegate_service::store::{AnyStore, StoreConfig};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::MissedTickBehavior;

use crate::config::{DrainConfig, ListenConfig, ReplyConfig};
use crate::listeners::{self, BindError, BoundListener, ConnectionSharing, ServeContext};

/// Time in which one sweep covers the whole store.
const STORE_SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// Time between two sweeps of a part of the store.
const STORE_SWEEP_TICK: Duration = Duration::from_millis(50);

/// Time between two sweeps of a part of the block list and the denial counters.
const BLOCK_SWEEP_TICK: Duration = Duration::from_secs(1);

/// Time between two reads of certificates and keys, for file systems that report no changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// A server with bound listeners that do not accept yet.
#[derive(Debug)]
pub(crate) struct App {
    listeners: Vec<BoundListener>,
    drain: DrainConfig,
    service: Arc<Service>,
    identity: Arc<Identity>,
    manager: Arc<RulesManager>,
    rules: RulesConfig,
    store: Arc<AnyStore>,
    clock: Clock,
}

/// The progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShutdownStage {
    /// No signal arrived yet.
    Running,
    /// The server reports not ready; listeners close after the drain delay.
    Draining,
    /// Listeners close at once; requests in flight are answered.
    Closing,
}

impl App {
    /// Binds the listeners, opens the store and loads the first rules. No connection is accepted yet.
    ///
    /// # Errors
    /// Every listener is off, an address can't be bound or is public without a token, a certificate can't be used, or
    /// the store can't be used.
    pub(crate) async fn bind(
        listen: &ListenConfig,
        resources: ProcessResources,
        rules: LoadedRules,
        store: StoreConfig,
        replies: ReplyConfig,
        identity: IdentityConfig,
        gateway: Option<GatewayConfig>,
    ) -> Result<Self, BindError> {
        let clock = Clock::system();
        let sharing = ConnectionSharing {
            resources,
            redis: matches!(store, StoreConfig::Redis { .. }),
            client_limit: listen.per_client.map(|connections| ClientLimit {
                connections,
                ipv6_prefix: identity.address.ipv6_prefix,
                exempt: identity.address.trusted.clone().into(),
            }),
        };
        let (listeners, budget) = listeners::bind_all(listen, gateway, sharing, &clock).await?;
        let storage = RulesStorage::select(&store, &rules.config.source);
        let store = Arc::new(AnyStore::start(store, &clock).await?);
        let limiter = Limiter::builder().clock(clock.clone()).store(Arc::clone(&store)).build();
        let blocks = Arc::clone(limiter.blocks());
        if let AnyStore::Redis(store) = &*store {
            store.share_blocks(&blocks);
        }
        let service = Service::new(limiter, replies.headers)
            .with_rls(RlsContext::new(replies.rls_headers))
            .with_on_invalid_call(replies.on_invalid_call);
        let service = Arc::new(service);
        let identity = Arc::new(Identity::new(identity, blocks, clock.clone())?);
        let shared = storage.open_document(&store).await?;
        let manager_deps = RulesManagerDeps {
            service: Arc::clone(&service),
            identity: Arc::clone(&identity),
            source: rules.config.source.to_string(),
            is_remote: rules.config.source.is_remote(),
            warnings: rules.config.warnings.clone(),
            node: node_name(node_address(&listeners)),
            copy: rules.copy(),
            reports: report_document(shared.as_ref(), &store),
            shared,
        };
        let LoadedRules { config: rules, inputs, rules: first } = rules;
        let manager = Arc::new(RulesManager::new(manager_deps, inputs, first));
        start_from_source(&manager, &rules).await;
        let drain = listen.drain;
        // After every step that can fail, so that a failed start prints only its error.
        listeners::log_budget(&budget);
        Ok(Self { listeners, drain, service, identity, manager, rules, store, clock })
    }

    /// Returns the number of active rules.
    pub(crate) fn rules(&self) -> usize {
        self.service.active_rules().limiter().rules().rules().len()
    }

    /// Returns the listeners, in the order in which they are printed.
    pub(crate) fn listeners(&self) -> &[BoundListener] {
        &self.listeners
    }

    /// Returns the listener of this name, unless it is off.
    pub(crate) fn listener(&self, name: &str) -> Option<&BoundListener> {
        self.listeners.iter().find(|listener| listener.name() == name)
    }

    /// Serves until `stage` requests the end, then finishes the requests in flight. Returns the number of connections
    /// that were aborted. Every reload reads rules, certificates and keys again.
    pub(crate) async fn run(
        self,
        stage: watch::Receiver<ShutdownStage>,
        reloads: ReloadSignal,
    ) -> usize {
        let mut tasks = follow_sources(&self.manager, &self.rules, &reloads);
        tasks.push(tokio::spawn(reload_keys(Arc::clone(&self.identity), reloads.clone())));
        tasks.push(tokio::spawn(sweep_blocks(Arc::clone(&self.service))));
        // Redis expires keys by itself.
        if let AnyStore::Memory(store) = &*self.store {
            tasks.push(tokio::spawn(sweep(Arc::clone(store))));
        }
        let certificates: Vec<_> = self.listeners.iter().filter_map(BoundListener::tls).collect();
        if !certificates.is_empty() {
            tasks.push(tokio::spawn(reload_certificates(certificates, reloads)));
        }
        let (close, closing) = watch::channel(false);
        let delay = self.drain.delay;
        let draining = drain(stage, Arc::clone(&self.service), self.clock.clone(), delay, close);
        tasks.push(tokio::spawn(draining));
        let mut context = ServeContext {
            service: Arc::clone(&self.service),
            identity: self.identity,
            manager: self.manager,
            clock: self.clock,
            drain_timeout: self.drain.timeout,
            closing,
            tasks,
            gateway_threads: Vec::new(),
        };
        let serving: Vec<_> =
            self.listeners.into_iter().map(|listener| listener.serve(&mut context)).collect();
        let aborted = join_all(serving).await.into_iter().sum();
        context.tasks.iter().for_each(JoinHandle::abort);
        // Leased tokens become available to the other nodes at once.
        self.service.active_rules().limiter().release_all().await;
        self.store.leave().await;
        // The last slots of a gateway are released by tasks of its threads.
        drop(context.gateway_threads);
        aborted
    }
}

/// Returns the address that names this node to others: the admin listener's if there is one.
fn node_address(listeners: &[BoundListener]) -> Option<SocketAddr> {
    let admin = listeners.iter().find(|listener| listener.name() == "admin");
    admin.or(listeners.first()).map(BoundListener::address)
}

/// Closes the listeners: at once, or after a delay in which load balancers can react.
async fn drain(
    mut stage: watch::Receiver<ShutdownStage>,
    service: Arc<Service>,
    clock: Clock,
    delay: Span,
    close: watch::Sender<bool>,
) {
    // The sender is dropped only after the server has ended.
    let _ = stage.wait_for(|stage| *stage > ShutdownStage::Running).await;
    service.readiness().drain();
    // Logged here, so that health checks answer "not serving" from this line on.
    tracing::info!(
        "stop signal, draining: new checks go elsewhere, requests in flight are answered"
    );
    tokio::select! {
        _ = stage.wait_for(|stage| *stage == ShutdownStage::Closing) => {}
        () = clock.sleep_until(clock.now() + delay) => {}
    }
    let _ = close.send(true);
}

/// Reads certificates again when their files change, and on every reload. An invalid certificate leaves the old one
/// active; its error is logged once, and again after every reload.
async fn reload_certificates(listeners: Vec<Arc<ListenerTls>>, reloads: ReloadSignal) {
    let files = listeners.iter().flat_map(|tls| tls.files().paths());
    let mut watcher = FileWatcher::new(files, RELOAD_INTERVAL, reloads);
    let last_error = Arc::new(Mutex::new(String::new()));
    loop {
        let reason = watcher.wait().await;
        for tls in &listeners {
            let (tls, last_error) = (Arc::clone(tls), Arc::clone(&last_error));
            let reload = move || reload_certificate(&tls, reason, &mut last_error.lock());
            let _ = spawn_blocking(reload).await;
        }
    }
}

fn reload_certificate(tls: &ListenerTls, reason: WakeReason, last_error: &mut String) {
    let certificate = tls.certificate().display();
    match tls.reload() {
        Ok(true) => tracing::info!(%certificate, "certificate reloaded"),
        Ok(false) if reason == WakeReason::Reload => {
            tracing::info!(%certificate, "reload: certificate unchanged");
        }
        Ok(false) => {}
        Err(error) => {
            let error = error.to_string();
            if reason == WakeReason::Reload || *last_error != error {
                tracing::warn!(error, "cannot reload certificate, the old one stays active");
                *last_error = error;
            }
        }
    }
}

/// Reads the keys of JWTs again when their file changes, and on every reload.
async fn reload_keys(identity: Arc<Identity>, reloads: ReloadSignal) {
    let Some(file) = identity.key_file().map(Path::to_owned) else { return };
    let mut watcher = FileWatcher::new([file.as_path()], RELOAD_INTERVAL, reloads);
    // The file may have changed after it was read and before it was watched.
    let mut reason = WakeReason::Change;
    loop {
        let identity = Arc::clone(&identity);
        let _ = spawn_blocking(move || identity.reload_keys(reason)).await;
        reason = watcher.wait().await;
    }
}

/// Removes expired entries, a few shards at a time, so that memory shrinks with the traffic.
async fn sweep(store: Arc<MemoryStore>) {
    let ticks = STORE_SWEEP_PERIOD.as_millis() / STORE_SWEEP_TICK.as_millis();
    let shards_per_tick = store.shards().div_ceil(usize::try_from(ticks).unwrap_or(1));
    let mut ticker = tokio::time::interval(STORE_SWEEP_TICK);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        store.sweep(shards_per_tick);
    }
}

/// Removes expired blocks, and the denials that no longer count for a penalty.
async fn sweep_blocks(service: Arc<Service>) {
    let parts =
        usize::try_from(STORE_SWEEP_PERIOD.as_secs() / BLOCK_SWEEP_TICK.as_secs()).unwrap_or(1);
    let mut ticker = tokio::time::interval(BLOCK_SWEEP_TICK);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        service.active_rules().limiter().sweep_blocks(parts);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Request;
    use tidegate_limiter::ManualClock;
    use tidegate_rules::RuleSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_sweep_removes_all_expired_entries() {
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
        let sweeping = tokio::time::timeout(STORE_SWEEP_PERIOD, sweep(Arc::clone(&store))).await;
        assert!(sweeping.is_err());
        assert_eq!(store.usage().keys, 0);
    }
}
