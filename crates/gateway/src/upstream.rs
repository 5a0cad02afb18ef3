//! An upstream: a group of equivalent servers, with a capacity for requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hyper::StatusCode;
use hyper::http::uri::{self, Authority};
use rustls::pki_types::ServerName;
use tidegate_core::{Span, Timestamp};
use tidegate_service::stats::{ShardedCounters, UpstreamSample};
use tokio_rustls::TlsConnector;

use crate::config::{GatewayConfig, Priority, ServerScheme, ServerUrl, UpstreamConfig};

/// Number of consecutive failures that eject a server.
const EJECT_AFTER_FAILURES: u32 = 3;
/// Most abandoned requests in flight from this node to one upstream. Further requests are shed.
const MAX_ABANDONED_IN_FLIGHT: usize = 4096;
/// Time for which an ejected server gets no requests.
const EJECTION_TIME: Span = Span::from_secs(10);
/// Number of consecutive passed checks that make an unhealthy server healthy.
const RECOVER_AFTER_CHECKS: u32 = 2;

/// A group of equivalent servers.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) name: Arc<str>,
    pub(crate) servers: Vec<Arc<UpstreamServer>>,
    /// Requests in flight, if there is a capacity. Without one, [`outcomes`](Self::outcomes) has their number: threads do
    /// not share its counters.
    in_flight: AtomicUsize,
    /// Requests in flight of clients that have disconnected.
    abandoned: AtomicUsize,
    /// Capacity by priority: a request is admitted while fewer requests, of any priority, are in flight.
    caps: [usize; 3],
    /// Rotates the server at which the selection starts.
    rotation: AtomicUsize,
    /// One line for [`RequestOutcome`], and [`IN_FLIGHT_LINE`].
    outcomes: ShardedCounters,
}

/// The line of the counter of requests in flight.
const IN_FLIGHT_LINE: usize = 1;

/// The outcome of a request that the rules admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Informational,
    Success,
    Redirection,
    ClientError,
    ServerError,
    /// Rejected, because the upstream was at its capacity.
    Shed,
    /// No server responded.
    Failed,
    /// The client disconnected before the response.
    Abandoned,
}

impl RequestOutcome {
    const ALL: [(Self, &str); 8] = [
        (Self::Informational, "1xx"),
        (Self::Success, "2xx"),
        (Self::Redirection, "3xx"),
        (Self::ClientError, "4xx"),
        (Self::ServerError, "5xx"),
        (Self::Shed, "shed"),
        (Self::Failed, "failed"),
        (Self::Abandoned, "abandoned"),
    ];

    /// Returns the outcome of a response with this status.
    pub(crate) fn of(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => Self::Informational,
            2 => Self::Success,
            3 => Self::Redirection,
            4 => Self::ClientError,
            _ => Self::ServerError,
        }
    }
}

/// One server of an upstream.
#[derive(Debug)]
pub(crate) struct UpstreamServer {
    /// Index among the servers of all upstreams.
    pub(crate) id: usize,
    pub(crate) url: ServerUrl,
    /// Host and port, for requests without a `Host` header.
    pub(crate) authority: Authority,
    pub(crate) tls: Option<ServerTls>,
    /// The HTTP version: `VERSION_UNKNOWN`, `HTTP1` or `HTTP2`.
    http_version: AtomicU8,
    /// Set for the only server of an upstream.
    is_only: bool,
    in_flight: AtomicUsize,
    /// Consecutive failed requests.
    failures: AtomicU32,
    /// Consecutive passed health checks since the last failed one.
    passed_checks: AtomicU32,
    /// End of the ejection, in microseconds; in the past if the server is not ejected.
    ejected_until: AtomicU64,
    /// Set while the health check fails.
    unhealthy: AtomicBool,
}

/// The TLS connector and certificate name of a server.
#[derive(Clone)]
pub(crate) struct ServerTls {
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Counts a request as in flight at an upstream, until it is dropped.
#[derive(Debug)]
pub(crate) struct CapacityPermit(Arc<Upstream>);

/// Counts a request in flight as abandoned by its client, until it is dropped.
#[derive(Debug)]
pub(crate) struct AbandonedInFlight(Arc<Upstream>);

/// Counts a request as in flight at a server, until it is dropped. `None` for the only server of an upstream, which is
/// never compared with another one.
#[derive(Debug)]
pub(crate) struct ServerInFlight(Option<Arc<UpstreamServer>>);

impl Upstream {
    /// Creates the upstreams of a configuration, with their servers numbered from 0.
    ///
    /// # Errors
    /// A TLS file can't be used, or a host is not a valid certificate name.
    pub(crate) fn from_config(config: &GatewayConfig) -> Result<Vec<Arc<Self>>, String> {
        let mut next_id = 0;
        let upstream = |(index, upstream): (usize, &UpstreamConfig)| {
            let mut servers = Vec::new();
            for url in &upstream.servers {
                servers.push(Arc::new(UpstreamServer::new(next_id, url.clone(), upstream)?));
                next_id += 1;
            }
            let routes = config.routes.iter().filter(|route| route.upstream == index);
            let priorities: Vec<Priority> = routes.map(|route| route.priority).collect();
            Ok(Arc::new(Self {
                name: Arc::clone(&upstream.name),
                servers,
                in_flight: AtomicUsize::new(0),
                abandoned: AtomicUsize::new(0),
                caps: caps(upstream.max_in_flight, &priorities),
                rotation: AtomicUsize::new(0),
                outcomes: ShardedCounters::new(IN_FLIGHT_LINE + 1),
            }))
        };
        config.upstreams.iter().enumerate().map(upstream).collect()
    }

    /// Counts a request as in flight; `None` if the capacity of its priority is in use, or if too many abandoned requests
    /// are in flight: each holds a connection that no client connection bounds.
    pub(crate) fn acquire_permit(self: &Arc<Self>, priority: Priority) -> Option<CapacityPermit> {
        if self.abandoned.load(Ordering::Relaxed) >= MAX_ABANDONED_IN_FLIGHT {
            return None;
        }
        let cap = self.caps[priority as usize];
        if cap == usize::MAX {
            self.outcomes.add(IN_FLIGHT_LINE, 0, 1);
            return Some(CapacityPermit(Arc::clone(self)));
        }
        let counted = self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < cap).then_some(count + 1)
        });
        counted.ok().map(|_| CapacityPermit(Arc::clone(self)))
    }

    /// Counts the outcome of a request.
    pub(crate) fn count_outcome(&self, outcome: RequestOutcome) {
        self.outcomes.add(0, outcome as usize, 1);
    }

    /// Returns the metrics of this upstream.
    pub(crate) fn sample(&self, now: Timestamp) -> UpstreamSample {
        // The highest priority may use the whole capacity.
        let cap = self.caps[Priority::High as usize];
        let total = |(outcome, name)| (name, self.outcomes.total(0, outcome as usize));
        let health =
            |server: &Arc<UpstreamServer>| (server.url.to_string(), server.is_healthy(now));
        UpstreamSample {
            name: Arc::clone(&self.name),
            in_flight: self.in_flight(),
            max_in_flight: Some(cap).filter(|cap| *cap != usize::MAX),
            outcomes: RequestOutcome::ALL.map(total).into(),
            servers: self.servers.iter().map(health).collect(),
        }
    }

    /// Returns the number of requests in flight.
    fn in_flight(&self) -> usize {
        match self.is_limited() {
            true => self.in_flight.load(Ordering::Relaxed),
            false => {
                // Threads that are read one after another can have a sum below zero.
                let total = i64::try_from(self.outcomes.total(IN_FLIGHT_LINE, 0)).unwrap_or(0);
                usize::try_from(total).unwrap_or(0)
            }
        }
    }

    /// Returns whether the upstream has a capacity. Then each priority has one.
    fn is_limited(&self) -> bool {
        self.caps[Priority::High as usize] != usize::MAX
    }

    /// Returns a server with an id that is not in `tried`: of the next two healthy servers, the one with fewer requests in
    /// flight.
    ///
    /// If none is healthy, it returns an unhealthy one, because the health check itself may be wrong. Returns `None` if
    /// all were tried. `now` is not called if there is only one server.
    pub(crate) fn pick_server(
        &self,
        now: impl FnOnce() -> Timestamp,
        tried: &[usize],
    ) -> Option<&Arc<UpstreamServer>> {
        if let [only] = self.servers.as_slice() {
            return tried.is_empty().then_some(only);
        }
        let (now, rotation) = (now(), self.rotation.fetch_add(1, Ordering::Relaxed));
        let (before, from) = self.servers.split_at(rotation % self.servers.len());
        let untried = || from.iter().chain(before).filter(|server| !tried.contains(&server.id));
        let mut healthy = untried().filter(|server| server.is_healthy(now));
        match (healthy.next(), healthy.next()) {
            (Some(first), Some(second)) => {
                Some(if second.in_flight() < first.in_flight() { second } else { first })
            }
            (Some(only), None) => Some(only),
            (None, _) => untried().next(),
        }
    }
}

impl CapacityPermit {
    /// Returns whether the upstream has a capacity.
    pub(crate) fn is_limited(&self) -> bool {
        self.0.is_limited()
    }

    /// Counts the request as abandoned until the returned guard is dropped.
    pub(crate) fn count_abandoned(&self) -> AbandonedInFlight {
        self.0.abandoned.fetch_add(1, Ordering::Relaxed);
        AbandonedInFlight(Arc::clone(&self.0))
    }
}

impl Drop for AbandonedInFlight {
    fn drop(&mut self) {
        self.0.abandoned.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for CapacityPermit {
    fn drop(&mut self) {
        match self.0.is_limited() {
            true => drop(self.0.in_flight.fetch_sub(1, Ordering::Relaxed)),
            // The counter wraps around: this subtracts one.
            false => self.0.outcomes.add(IN_FLIGHT_LINE, 0, u64::MAX),
        }
    }
}

impl Drop for ServerInFlight {
    fn drop(&mut self) {
        if let Some(server) = &self.0 {
            server.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns the capacity of each priority. The highest priority of the routes has all of `max_in_flight`. A lower one
/// leaves a fifth of it for each used priority above.
fn caps(max_in_flight: Option<usize>, used: &[Priority]) -> [usize; 3] {
    let Some(max) = max_in_flight else { return [usize::MAX; 3] };
    [Priority::Low, Priority::Normal, Priority::High].map(|priority| {
        let mut above: Vec<_> = used.iter().filter(|used| **used > priority).collect();
        above.sort();
        above.dedup();
        (max - max * above.len() / 5).max(1)
    })
}

impl UpstreamServer {
    /// No TLS handshake has negotiated a version yet.
    const VERSION_UNKNOWN: u8 = 0;
    const HTTP1: u8 = 1;
    const HTTP2: u8 = 2;

    fn new(id: usize, url: ServerUrl, upstream: &UpstreamConfig) -> Result<Self, String> {
        let tls = match url.scheme {
            ServerScheme::Https => {
                let connector = upstream.tls.connector(&["h2", "http/1.1"])?;
                let name = ServerName::try_from(url.host.clone())
                    .map_err(|_| format!("{:?} is not a valid name for a certificate", url.host))?;
                Some(ServerTls { connector, name })
            }
            ServerScheme::Http | ServerScheme::H2c => None,
        };
        let authority = url.authority();
        let authority =
            authority.parse().map_err(|_| format!("{authority:?} is not a valid host"))?;
        let http_version = match url.scheme {
            ServerScheme::Http => Self::HTTP1,
            ServerScheme::H2c => Self::HTTP2,
            ServerScheme::Https => Self::VERSION_UNKNOWN,
        };
        Ok(Self {
            id,
            url,
            authority,
            tls,
            http_version: AtomicU8::new(http_version),
            is_only: upstream.servers.len() == 1,
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            passed_checks: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            unhealthy: AtomicBool::new(false),
        })
    }

    /// Returns whether the server uses HTTP/1 without TLS.
    pub(crate) fn is_plain_http1(&self) -> bool {
        self.url.scheme == ServerScheme::Http
    }

    /// Returns whether the server uses HTTP/2, or its version is not known yet.
    pub(crate) fn may_use_http2(&self) -> bool {
        self.http_version.load(Ordering::Relaxed) != Self::HTTP1
    }

    /// Records the version that TLS has negotiated.
    pub(crate) fn set_http2(&self, http2: bool) {
        self.http_version.store(if http2 { Self::HTTP2 } else { Self::HTTP1 }, Ordering::Relaxed);
    }

    /// Returns the scheme of its URLs.
    pub(crate) fn scheme(&self) -> uri::Scheme {
        if self.tls.is_some() { uri::Scheme::HTTPS } else { uri::Scheme::HTTP }
    }

    /// Counts a request as in flight until the returned guard is dropped.
    pub(crate) fn start_request(self: &Arc<Self>) -> ServerInFlight {
        if self.is_only {
            return ServerInFlight(None);
        }
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        ServerInFlight(Some(Arc::clone(self)))
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns whether the server is not ejected and has not failed its health check.
    pub(crate) fn is_healthy(&self, now: Timestamp) -> bool {
        !self.unhealthy.load(Ordering::Relaxed)
            && self.ejected_until.load(Ordering::Relaxed) <= now.as_micros()
    }

    /// Records a response, which ends a series of failures.
    pub(crate) fn on_response(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failed connection, a lost connection or a response timeout.
    ///
    /// The third in a row ejects the server. Only the ejection is a warning, because a server that is down fails every
    /// request.
    pub(crate) fn on_failure(&self, now: Timestamp, reason: &str) {
        tracing::debug!(server = %self.url, reason, "request to upstream server failed");
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= EJECT_AFTER_FAILURES {
            self.failures.store(0, Ordering::Relaxed);
            let end = (now + EJECTION_TIME).as_micros();
            let previous_end = self.ejected_until.swap(end, Ordering::Relaxed);
            if previous_end <= now.as_micros() {
                tracing::warn!(
                    server = %self.url,
                    reason,
                    duration = %EJECTION_TIME,
                    "upstream server ejected after repeated failures"
                );
            }
        }
    }

    /// Records the result of a health check. One failed check makes the server unhealthy. Two passed checks in a row
    /// make it healthy again, and end an ejection.
    pub(crate) fn on_health_check(&self, passed: bool) {
        if !passed {
            self.passed_checks.store(0, Ordering::Relaxed);
            if !self.unhealthy.swap(true, Ordering::Relaxed) {
                tracing::warn!(server = %self.url, "upstream server failed its health check, it gets no requests");
            }
        } else if self.unhealthy.load(Ordering::Relaxed)
            && self.passed_checks.fetch_add(1, Ordering::Relaxed) + 1 >= RECOVER_AFTER_CHECKS
        {
            self.unhealthy.store(false, Ordering::Relaxed);
            self.ejected_until.store(0, Ordering::Relaxed);
            tracing::info!(server = %self.url, "upstream server is healthy again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(servers: usize, max_in_flight: Option<usize>) -> Arc<Upstream> {
        let url = |port| format!("http://127.0.0.1:{}", 1 + port).parse().unwrap();
        let mut config = GatewayConfig::single_upstream((0..servers).map(url).collect());
        config.upstreams[0].max_in_flight = max_in_flight;
        Upstream::from_config(&config).unwrap().remove(0)
    }

    #[test]
    fn each_priority_reserves_a_fifth_of_the_capacity_for_those_above_it() {
        use Priority::{High, Low, Normal};
        assert_eq!(caps(None, &[Low, High]), [usize::MAX; 3]);
        assert_eq!(caps(Some(100), &[Low, Normal, High]), [60, 80, 100]);
        assert_eq!(caps(Some(100), &[Low, High, High]), [80, 80, 100]);
        assert_eq!(caps(Some(100), &[Normal]), [80, 100, 100]);
        assert_eq!(caps(Some(1), &[Low, High]), [1, 1, 1]);
    }

    #[test]
    fn full_upstream_rejects_requests_until_a_permit_is_dropped() {
        let upstream = upstream(1, Some(2));
        let (first, second) =
            (upstream.acquire_permit(Priority::Normal), upstream.acquire_permit(Priority::Normal));
        assert!(first.is_some() && second.is_some());
        assert!(upstream.acquire_permit(Priority::Normal).is_none());
        assert_eq!(upstream.in_flight(), 2);
        drop(first);
        assert!(upstream.acquire_permit(Priority::Normal).is_some());
        drop(second);
        assert_eq!(upstream.in_flight(), 0);
    }

    #[test]
    fn server_with_fewer_requests_in_flight_is_picked() {
        let (upstream, now) = (upstream(2, None), Timestamp::from_secs(100));
        let _in_flight = upstream.servers[0].start_request();
        for _ in 0..4 {
            assert_eq!(upstream.pick_server(|| now, &[]).unwrap().id, 1);
        }
        assert_eq!(upstream.pick_server(|| now, &[1]).unwrap().id, 0);
        assert!(upstream.pick_server(|| now, &[0, 1]).is_none());
    }

    #[test]
    fn three_failures_in_a_row_eject_a_server_for_ten_seconds() {
        let (upstream, now) = (upstream(2, None), Timestamp::from_secs(100));
        let bad = &upstream.servers[0];
        bad.on_failure(now, "");
        bad.on_failure(now, "");
        bad.on_response();
        bad.on_failure(now, "");
        bad.on_failure(now, "");
        assert!(bad.is_healthy(now));
        bad.on_failure(now, "");
        for _ in 0..4 {
            assert_eq!(upstream.pick_server(|| now, &[]).unwrap().id, 1);
        }
        assert!(bad.is_healthy(now + EJECTION_TIME));
    }

    #[test]
    fn failed_health_check_removes_a_server_until_two_checks_pass() {
        let (upstream, now) = (upstream(2, None), Timestamp::from_secs(100));
        let server = &upstream.servers[0];
        server.on_health_check(false);
        assert!(!server.is_healthy(now));
        server.on_health_check(true);
        server.on_health_check(false);
        server.on_health_check(true);
        assert!(!server.is_healthy(now));
        server.on_health_check(true);
        assert!(server.is_healthy(now));
        // Without a healthy server, an unhealthy one is picked.
        upstream.servers.iter().for_each(|server| server.on_health_check(false));
        assert!(upstream.pick_server(|| now, &[]).is_some());
    }
}
