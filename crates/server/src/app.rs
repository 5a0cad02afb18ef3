//! Build, bind, run, drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tidegate::{Clock, HeaderStyle, Limiter, MemoryStore, OpenError, RuleSet};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::config::{Door, Listen, StoreConfig};
use crate::service::Service;
use crate::store::AnyStore;
use crate::transport::connection::Patience;
use crate::transport::http;

/// How long it takes to look through the whole store for what has expired.
const SWEEP: Duration = Duration::from_secs(10);
/// How often a part of it is looked through.
const SWEEP_TICK: Duration = Duration::from_millis(50);

/// A server whose doors are bound and not yet open.
#[derive(Debug)]
pub(crate) struct App {
    http: TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
    store: Arc<AnyStore>,
    clock: Clock,
}

impl App {
    /// Takes the addresses; nobody is answered yet.
    ///
    /// # Errors
    /// There is no door to open, an address can't be had, or the store will never do.
    pub(crate) async fn bind(
        listen: &Listen,
        rules: RuleSet,
        store: StoreConfig,
        headers: HeaderStyle,
    ) -> Result<Self, BindError> {
        let Door::At(wanted) = &listen.http else { return Err(BindError::NoDoor) };
        let taken = |error| BindError::Door { door: "http", address: wanted.clone(), error };
        let http = TcpListener::bind(wanted).await.map_err(taken)?;
        let address = http.local_addr().map_err(taken)?;
        let clock = Clock::system();
        let store = Arc::new(AnyStore::start(store, &clock).await?);
        let limiter =
            Limiter::builder().rules(rules).clock(clock.clone()).store(Arc::clone(&store)).build();
        let service = Arc::new(Service::new(limiter, headers));
        Ok(Self { http, address, service, store, clock })
    }

    /// The doors by name, and where they really are.
    pub(crate) fn doors(&self) -> [(&'static str, SocketAddr); 1] {
        [("http", self.address)]
    }

    /// Answers until `closing` says so, then finishes what is under way. How many connections had
    /// to be cut off.
    pub(crate) async fn run(self, closing: watch::Receiver<bool>) -> usize {
        let sweeper = match &*self.store {
            AnyStore::Memory(store) => Some(tokio::spawn(sweep(Arc::clone(store)))),
            // Redis forgets what has expired by itself.
            AnyStore::Redis(_) => None,
        };
        let patience = Patience::default();
        let cut_off = http::serve(self.http, self.service, patience, self.clock, closing).await;
        if let Some(sweeper) = sweeper {
            sweeper.abort();
        }
        self.store.leave().await;
        cut_off
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

/// Why a server can't start.
#[derive(Debug, Error)]
pub(crate) enum BindError {
    #[error("every door is off, there is nothing to serve")]
    NoDoor,
    #[error("{door} can't listen on {address}: {}", reason(.error))]
    Door { door: &'static str, address: String, error: io::Error },
    #[error(transparent)]
    Store(#[from] OpenError),
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the address is already in use".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{ManualClock, Request, Span};

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
