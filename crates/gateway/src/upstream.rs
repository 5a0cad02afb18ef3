//! Servers that do the same: which one takes a request, and whether there is room for it at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hyper::StatusCode;
use hyper::http::uri::{self, Authority};
use rustls::pki_types::ServerName;
use tidegate_core::{Span, Timestamp};
use tidegate_service::stats::{Shards, UpstreamSample};
use tokio_rustls::TlsConnector;

use super::config::{GatewayConfig, Priority, Scheme, ServerUrl, UpstreamConfig};

/// How many failures in a row mark a server as down.
const FAILURES: u32 = 3;
/// For how long it is then left alone.
const REST: Span = Span::from_secs(10);
/// How many good answers to health checks bring a server back.
const RISES: u32 = 2;

/// Servers that do the same.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) name: Arc<str>,
    pub(super) servers: Vec<Arc<Server>>,
    in_flight: AtomicUsize,
    /// Most requests at once that leave one of each priority in.
    caps: [usize; 3],
    turn: AtomicUsize,
    outcomes: Shards,
}

/// What became of a request that the rules let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Informational,
    Success,
    Redirection,
    ClientError,
    ServerError,
    /// There was no room for it.
    Shed,
    /// No server answered it.
    Failed,
}

impl Outcome {
    const ALL: [(Self, &str); 7] = [
        (Self::Informational, "1xx"),
        (Self::Success, "2xx"),
        (Self::Redirection, "3xx"),
        (Self::ClientError, "4xx"),
        (Self::ServerError, "5xx"),
        (Self::Shed, "shed"),
        (Self::Failed, "failed"),
    ];

    /// What an upstream answered.
    pub(super) fn of(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => Self::Informational,
            2 => Self::Success,
            3 => Self::Redirection,
            4 => Self::ClientError,
            _ => Self::ServerError,
        }
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct Server {
    /// Its place among the servers of all upstreams.
    pub(super) id: usize,
    pub(super) url: ServerUrl,
    /// Where it is, for requests that do not say whom they are for.
    pub(super) authority: Authority,
    pub(super) tls: Option<ServerTls>,
    /// Whether it speaks HTTP/2, once that is known.
    spoken: AtomicU8,
    in_flight: AtomicUsize,
    /// Failures in a row; after a health check failed, good ones in a row.
    failures: AtomicU32,
    rises: AtomicU32,
    rests_until: AtomicU64,
    sick: AtomicBool,
}

/// How to shake hands with a server.
#[derive(Clone)]
pub(super) struct ServerTls {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A request that is under way at an upstream.
#[derive(Debug)]
pub(super) struct Entered(Arc<Upstream>);

/// A request that is under way at a server.
#[derive(Debug)]
pub(super) struct Busy(Arc<Server>);

impl Upstream {
    /// The upstreams of a configuration, with their servers numbered from 0.
    ///
    /// # Errors
    /// Files for TLS can't be used.
    pub(super) fn all(config: &GatewayConfig) -> Result<Vec<Arc<Self>>, String> {
        let mut next = 0;
        let upstream = |(place, upstream): (usize, &UpstreamConfig)| {
            let mut servers = Vec::new();
            for url in &upstream.servers {
                servers.push(Arc::new(Server::new(next, url.clone(), upstream)?));
                next += 1;
            }
            let used = config.routes.iter().filter(|route| route.upstream == place);
            let used: Vec<Priority> = used.map(|route| route.priority).collect();
            Ok(Arc::new(Self {
                name: Arc::clone(&upstream.name),
                servers,
                in_flight: AtomicUsize::new(0),
                caps: caps(upstream.max_in_flight, &used),
                turn: AtomicUsize::new(0),
                outcomes: Shards::new(1),
            }))
        };
        config.upstreams.iter().enumerate().map(upstream).collect()
    }

    /// Lets a request in, unless what its priority may use is in use.
    pub(super) fn enter(self: &Arc<Self>, priority: Priority) -> Option<Entered> {
        let cap = self.caps[priority as usize];
        let counted = self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < cap).then_some(count + 1)
        });
        counted.ok().map(|_| Entered(Arc::clone(self)))
    }

    /// Counts what became of a request.
    pub(super) fn count(&self, outcome: Outcome) {
        self.outcomes.add(0, outcome as usize, 1);
    }

    /// How it does.
    pub(super) fn sample(&self, now: Timestamp) -> UpstreamSample {
        let most = self.caps[Priority::High as usize];
        let total = |(outcome, name)| (name, self.outcomes.total(0, outcome as usize));
        let servers = self.servers.iter();
        UpstreamSample {
            name: Arc::clone(&self.name),
            in_flight: self.in_flight(),
            max_in_flight: Some(most).filter(|most| *most != usize::MAX),
            outcomes: Outcome::ALL.map(total).into(),
            servers: servers.map(|server| (server.url.to_string(), server.is_well(now))).collect(),
        }
    }

    /// How many requests are under way.
    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// A server for a request that `tried` some in vain: the less busy of two that are well. If none is
    /// well, one that is not: it may be the check that is wrong.
    pub(super) fn choose(
        &self,
        now: impl FnOnce() -> Timestamp,
        tried: &[usize],
    ) -> Option<&Arc<Server>> {
        if let [only] = self.servers.as_slice() {
            return tried.is_empty().then_some(only);
        }
        let (now, turn) = (now(), self.turn.fetch_add(1, Ordering::Relaxed));
        let (before, from) = self.servers.split_at(turn % self.servers.len());
        let left = || from.iter().chain(before).filter(|server| !tried.contains(&server.id));
        let mut well = left().filter(|server| server.is_well(now));
        match (well.next(), well.next()) {
            (Some(one), Some(other)) => {
                Some(if other.in_flight() < one.in_flight() { other } else { one })
            }
            (Some(one), None) => Some(one),
            (None, _) => left().next(),
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What each priority may use of a cap: of those that are in use the highest has all of it, and each
/// leaves a fifth to the ones above it.
fn caps(most: Option<usize>, used: &[Priority]) -> [usize; 3] {
    let Some(most) = most else { return [usize::MAX; 3] };
    [Priority::Low, Priority::Normal, Priority::High].map(|priority| {
        let mut above: Vec<_> = used.iter().filter(|used| **used > priority).collect();
        above.sort();
        above.dedup();
        (most - most * above.len() / 5).max(1)
    })
}

impl Server {
    const UNKNOWN: u8 = 0;
    const ONE: u8 = 1;
    const TWO: u8 = 2;

    fn new(id: usize, url: ServerUrl, upstream: &UpstreamConfig) -> Result<Self, String> {
        let tls = match url.scheme {
            Scheme::Https => {
                let connector = upstream.tls.connector(&["h2", "http/1.1"])?;
                let name = ServerName::try_from(url.host.clone()).map_err(|_| {
                    format!("{:?} is no name that a certificate could have", url.host)
                })?;
                Some(ServerTls { connector, name })
            }
            Scheme::Http | Scheme::H2c => None,
        };
        let authority = url.authority();
        let authority = authority.parse().map_err(|_| format!("{authority:?} is no host"))?;
        let spoken = match url.scheme {
            Scheme::Http => Self::ONE,
            Scheme::H2c => Self::TWO,
            Scheme::Https => Self::UNKNOWN,
        };
        Ok(Self {
            id,
            url,
            authority,
            tls,
            spoken: AtomicU8::new(spoken),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            rises: AtomicU32::new(0),
            rests_until: AtomicU64::new(0),
            sick: AtomicBool::new(false),
        })
    }

    /// Whether one connection serves many requests at once; also said while that is not known.
    pub(super) fn may_speak_http2(&self) -> bool {
        self.spoken.load(Ordering::Relaxed) != Self::ONE
    }

    /// Notes what the server prefers.
    pub(super) fn speaks(&self, http2: bool) {
        self.spoken.store(if http2 { Self::TWO } else { Self::ONE }, Ordering::Relaxed);
    }

    /// What its URLs begin with.
    pub(super) fn scheme(&self) -> uri::Scheme {
        if self.tls.is_some() { uri::Scheme::HTTPS } else { uri::Scheme::HTTP }
    }

    /// Counts a request until what this gives is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether requests should go there.
    pub(super) fn is_well(&self, now: Timestamp) -> bool {
        !self.sick.load(Ordering::Relaxed)
            && self.rests_until.load(Ordering::Relaxed) <= now.as_micros()
    }

    /// Notes that it answered.
    pub(super) fn answered(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that it could not be reached, broke off or was silent. A server that is away is told of when
    /// it is left alone, and not with every request that wanted it.
    pub(super) fn failed(&self, now: Timestamp, reason: &str) {
        tracing::debug!(server = %self.url, reason, "upstream server failed");
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
            self.failures.store(0, Ordering::Relaxed);
            let until = self.rests_until.swap((now + REST).as_micros(), Ordering::Relaxed);
            if until <= now.as_micros() {
                tracing::warn!(server = %self.url, reason, "upstream server left alone for a while");
            }
        }
    }

    /// Notes what a health check found.
    pub(super) fn checked(&self, well: bool) {
        if !well {
            self.rises.store(0, Ordering::Relaxed);
            if !self.sick.swap(true, Ordering::Relaxed) {
                tracing::warn!(server = %self.url, "upstream server is not well");
            }
        } else if self.sick.load(Ordering::Relaxed)
            && self.rises.fetch_add(1, Ordering::Relaxed) + 1 >= RISES
        {
            self.sick.store(false, Ordering::Relaxed);
            self.rests_until.store(0, Ordering::Relaxed);
            tracing::info!(server = %self.url, "upstream server is well again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(servers: usize, most: Option<usize>) -> Arc<Upstream> {
        let url = |port| format!("http://127.0.0.1:{}", 1 + port).parse().unwrap();
        let mut config = GatewayConfig::to((0..servers).map(url).collect());
        config.upstreams[0].max_in_flight = most;
        Upstream::all(&config).unwrap().remove(0)
    }

    #[test]
    fn each_priority_leaves_a_fifth_to_those_above_it() {
        use Priority::{High, Low, Normal};
        assert_eq!(caps(None, &[Low, High]), [usize::MAX; 3]);
        assert_eq!(caps(Some(100), &[Low, Normal, High]), [60, 80, 100]);
        assert_eq!(caps(Some(100), &[Low, High, High]), [80, 80, 100]);
        assert_eq!(caps(Some(100), &[Normal]), [80, 100, 100]);
        assert_eq!(caps(Some(1), &[Low, High]), [1, 1, 1]);
    }

    #[test]
    fn who_finds_no_room_takes_none() {
        let upstream = upstream(1, Some(2));
        let (one, other) = (upstream.enter(Priority::Normal), upstream.enter(Priority::Normal));
        assert!(one.is_some() && other.is_some());
        assert!(upstream.enter(Priority::Normal).is_none());
        assert_eq!(upstream.in_flight(), 2);
        drop(one);
        assert!(upstream.enter(Priority::Normal).is_some());
        drop(other);
        assert_eq!(upstream.in_flight(), 0);
    }

    #[test]
    fn the_less_busy_of_two_that_are_well_is_chosen() {
        let (upstream, now) = (upstream(2, None), Timestamp::from_secs(100));
        let _busy = upstream.servers[0].busy();
        for _ in 0..4 {
            assert_eq!(upstream.choose(|| now, &[]).unwrap().id, 1);
        }
        assert_eq!(upstream.choose(|| now, &[1]).unwrap().id, 0);
        assert!(upstream.choose(|| now, &[0, 1]).is_none());
    }

    #[test]
    fn a_server_that_fails_is_left_alone_for_a_while() {
        let (upstream, now) = (upstream(2, None), Timestamp::from_secs(100));
        let bad = &upstream.servers[0];
        bad.failed(now, "");
        bad.failed(now, "");
        bad.answered();
        bad.failed(now, "");
        bad.failed(now, "");
        assert!(bad.is_well(now));
        bad.failed(now, "");
        for _ in 0..4 {
            assert_eq!(upstream.choose(|| now, &[]).unwrap().id, 1);
        }
        assert!(bad.is_well(now + REST));
    }

    #[test]
    fn a_health_check_takes_a_server_out_and_two_bring_it_back() {
        let (upstream, now) = (upstream(2, None), Timestamp::from_secs(100));
        let server = &upstream.servers[0];
        server.checked(false);
        assert!(!server.is_well(now));
        server.checked(true);
        server.checked(false);
        server.checked(true);
        assert!(!server.is_well(now));
        server.checked(true);
        assert!(server.is_well(now));
        // If none is well, one is tried all the same.
        upstream.servers.iter().for_each(|server| server.checked(false));
        assert!(upstream.choose(|| now, &[]).is_some());
    }
}
