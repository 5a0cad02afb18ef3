//! Asks servers now and then whether they are well.

use std::sync::Arc;

use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use tidegate_limiter::Clock;

use super::body::Up;
use super::config::{GatewayConfig, HealthConfig, Timeouts};
use super::forward::Forward;
use super::pool::Pool;
use super::upstream::{Server, Upstream};

/// Checks one server for as long as it is polled.
pub(super) async fn watch(server: Arc<Server>, health: HealthConfig, servers: usize, clock: Clock) {
    let timeouts =
        Timeouts { connect: health.timeout, response: health.timeout, ..Timeouts::default() };
    loop {
        // A connection of its own each time: whether there still can be one is the question.
        let pool = Arc::new(Pool::new(servers));
        let forward = Forward { pool, clock: clock.clone(), timeouts };
        server.checked(forward.probe(&server, request(&server, &health.path)).await);
        clock.sleep_until(clock.now() + health.every).await;
    }
}

/// The checks that a configuration asks for.
pub(super) fn checks(
    config: &GatewayConfig,
    upstreams: &[Arc<Upstream>],
) -> Vec<(Arc<Server>, HealthConfig)> {
    let pairs = config.upstreams.iter().zip(upstreams);
    let each = pairs.filter_map(|(config, upstream)| Some((config.health.clone()?, upstream)));
    each.flat_map(|(health, upstream)| {
        upstream.servers.iter().map(move |server| (Arc::clone(server), health.clone()))
    })
    .collect()
}

fn request(server: &Server, path: &str) -> Request<Up> {
    let mut request = Request::new(Up::empty());
    *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    if let Ok(host) = HeaderValue::from_str(server.authority.as_str()) {
        request.headers_mut().insert(HOST, host);
    }
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("tidegate-health"));
    request
}
