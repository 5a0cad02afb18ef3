//! Build, bind, run, drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tidegate::{Clock, HeaderStyle, Limiter, MemoryStore, OpenError, RuleSet};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::admin::{Admin, Guard, is_local};
use crate::config::{Door, Listen, StoreConfig};
use crate::service::Service;
use crate::store::AnyStore;
use crate::transport::connection::Patience;
use crate::transport::http;

/// How long it takes to look through the whole store for what has expired.
const SWEEP: Duration = Duration::from_secs(10);
/// How often a part of it is looked through.
const SWEEP_TICK: Duration = Duration::from_millis(50);

/// How often blocks that are over and denials that no longer count are looked for.
const SWEEP_BLOCKS: Duration = Duration::from_secs(1);

/// A server whose doors are bound and not yet open.
#[derive(Debug)]
pub(crate) struct App {
    http: Bound,
    admin: Option<(Bound, Admin)>,
    service: Arc<Service>,
    limiter: Limiter<AnyStore>,
    store: Arc<AnyStore>,
    clock: Clock,
}

/// An address that is ours.
#[derive(Debug)]
struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    async fn to(door: &'static str, wanted: &str) -> Result<Self, BindError> {
        let taken = |error| BindError::Door { door, address: wanted.to_owned(), error };
        let listener = TcpListener::bind(wanted).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        Ok(Self { listener, address })
    }
}

impl App {
    /// Takes the addresses; nobody is answered yet.
    ///
    /// # Errors
    /// There is no door to open, an address can't be had or is open to others without a token, or the
    /// store will never do.
    pub(crate) async fn bind(
        listen: &Listen,
        rules: RuleSet,
        store: StoreConfig,
        headers: HeaderStyle,
    ) -> Result<Self, BindError> {
        let Door::At(wanted) = &listen.http else { return Err(BindError::NoDoor) };
        let http = Bound::to("http", wanted).await?;
        let clock = Clock::system();
        let store = Arc::new(AnyStore::start(store, &clock).await?);
        let limiter =
            Limiter::builder().rules(rules).clock(clock.clone()).store(Arc::clone(&store)).build();
        if let AnyStore::Redis(store) = &*store {
            store.share_blocks(limiter.blocks());
        }
        let admin = match &listen.admin {
            Door::At(wanted) => {
                let bound = Bound::to("admin", wanted).await?;
                if listen.token.is_none() && !is_local(bound.address) {
                    return Err(BindError::NoToken { address: wanted.clone() });
                }
                let guard = Guard::new(listen.token.as_ref(), wanted);
                let blocks = Arc::clone(limiter.blocks());
                Some((bound, Admin { guard, blocks, clock: clock.clone() }))
            }
            Door::Off => None,
        };
        let service = Arc::new(Service::new(limiter.clone(), headers));
        Ok(Self { http, admin, service, limiter, store, clock })
    }

    /// Where checks are answered over HTTP.
    pub(crate) fn http(&self) -> SocketAddr {
        self.http.address
    }

    /// The doors by name, and where they really are.
    pub(crate) fn doors(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let admin = self.admin.iter().map(|(bound, _)| ("admin", bound.address));
        std::iter::once(("http", self.http.address)).chain(admin)
    }

    /// Answers until `closing` says so, then finishes what is under way. How many connections had
    /// to be cut off.
    pub(crate) async fn run(self, closing: watch::Receiver<bool>) -> usize {
        let mut sweepers = vec![tokio::spawn(sweep_blocks(self.limiter))];
        // Redis forgets what has expired by itself.
        if let AnyStore::Memory(store) = &*self.store {
            sweepers.push(tokio::spawn(sweep(Arc::clone(store))));
        }
        let (http, patience) = (self.http.listener, Patience::default());
        let http = http::serve(http, self.service, patience, self.clock, closing.clone());
        let admin = async {
            match self.admin {
                Some((bound, admin)) => admin.serve(bound.listener, closing).await,
                None => 0,
            }
        };
        let (http, admin) = tokio::join!(http, admin);
        sweepers.iter().for_each(JoinHandle::abort);
        self.store.leave().await;
        http + admin
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
async fn sweep_blocks(limiter: Limiter<AnyStore>) {
    let parts = usize::try_from(SWEEP.as_secs() / SWEEP_BLOCKS.as_secs()).unwrap_or(1);
    let mut ticker = tokio::time::interval(SWEEP_BLOCKS);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        limiter.sweep_blocks(parts);
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
