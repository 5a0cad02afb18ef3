//! Health checks of upstream servers.

use std::sync::Arc;

use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use tidegate_limiter::Clock;

use crate::config::{GatewayConfig, HealthConfig, ProxyTimeouts};
use crate::forward::RequestForwarder;
use crate::pool::ConnectionPool;
use crate::request_body::RequestBody;
use crate::upstream::{Upstream, UpstreamServer};
use crate::upstream_socket::UpstreamSockets;

/// Checks one server at the configured interval. Never returns; drop the future to stop.
pub(crate) async fn run(
    server: Arc<UpstreamServer>,
    health: HealthConfig,
    server_count: usize,
    clock: Clock,
) {
    let timeouts = ProxyTimeouts {
        connect: health.timeout,
        response: health.timeout,
        ..ProxyTimeouts::default()
    };
    loop {
        // An empty pool: the check also has to prove that the server accepts new connections.
        let pool = Arc::new(ConnectionPool::new(server_count, UpstreamSockets::unlimited()));
        let forwarder = RequestForwarder { pool, clock: clock.clone(), timeouts };
        let passed = forwarder.probe(&server, check_request(&server, &health.path)).await;
        server.on_health_check(passed);
        clock.sleep_until(clock.now() + health.every).await;
    }
}

/// Returns the servers that have a health check.
pub(crate) fn configured_checks(
    config: &GatewayConfig,
    upstreams: &[Arc<Upstream>],
) -> Vec<(Arc<UpstreamServer>, HealthConfig)> {
    let pairs = config.upstreams.iter().zip(upstreams);
    let checked = pairs.filter_map(|(config, upstream)| Some((config.health.clone()?, upstream)));
    checked
        .flat_map(|(health, upstream)| {
            upstream.servers.iter().map(move |server| (Arc::clone(server), health.clone()))
        })
        .collect()
}

fn check_request(server: &UpstreamServer, path: &str) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    if let Ok(host) = HeaderValue::from_str(server.authority.as_str()) {
        request.headers_mut().insert(HOST, host);
    }
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("tidegate-health"));
    request
}
