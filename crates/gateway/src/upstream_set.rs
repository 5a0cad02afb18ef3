//! The upstreams of a configuration, shared by all gateway threads.

use std::sync::Arc;

use tidegate_core::Span;
use tidegate_limiter::Clock;
use tidegate_net::listener::ConnectionTimeouts;
use tidegate_service::stats::UpstreamSample;

use crate::config::GatewayConfig;
use crate::health_check;
use crate::route::RouteTable;
use crate::upstream::Upstream;

/// Time that an idle client connection stays open while the gateway closes: a request may be on its way.
const IDLE_GRACE: Span = Span::from_secs(3);

/// All upstreams and the routes to them.
#[derive(Debug)]
pub struct UpstreamSet {
    pub(crate) config: GatewayConfig,
    pub(crate) routes: Arc<RouteTable>,
    upstreams: Vec<Arc<Upstream>>,
    clock: Clock,
}

impl UpstreamSet {
    /// Creates the upstreams and routes of a configuration, and reads its TLS files.
    ///
    /// # Errors
    /// A TLS file can't be read or used.
    pub fn new(config: GatewayConfig, clock: Clock) -> Result<Self, String> {
        let upstreams = Upstream::from_config(&config)?;
        let routes = Arc::new(RouteTable::new(&config, &upstreams));
        Ok(Self { config, routes, upstreams, clock })
    }

    /// Runs the health checks of all servers. Never returns while a check is configured; drop the future to stop.
    pub async fn run_health_checks(self: Arc<Self>) {
        let server_count = self.server_count();
        let checks = health_check::configured_checks(&self.config, &self.upstreams).into_iter();
        let checks = checks.map(|(server, health)| {
            health_check::run(server, health, server_count, self.clock.clone())
        });
        futures_util::future::join_all(checks).await;
    }

    /// Returns the timeouts of client connections.
    pub fn timeouts(&self) -> ConnectionTimeouts {
        let idle = self.config.timeouts.idle;
        ConnectionTimeouts {
            request: idle,
            idle_grace: Some(IDLE_GRACE),
            ..ConnectionTimeouts::default()
        }
    }

    /// Returns a sample of each upstream.
    pub fn samples(&self) -> Vec<UpstreamSample> {
        let now = self.clock.now();
        self.upstreams.iter().map(|upstream| upstream.sample(now)).collect()
    }

    /// Returns the number of servers of all upstreams.
    pub(crate) fn server_count(&self) -> usize {
        self.upstreams.iter().map(|upstream| upstream.servers.len()).sum()
    }
}
