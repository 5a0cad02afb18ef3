//! The admin API and the dashboard, for operators. No other listener serves these paths.
//!
//! The listener uses the connections, bodies and errors of `net`, like the HTTP listener. Its router is a `match`.

mod block;
mod clients;
mod dashboard;
mod fleet;
mod guard;
#[cfg(feature = "simulate")]
mod lab;
mod live;
mod query;
mod refund;
mod rlconfig;
mod rule_client;
mod rules;
mod top;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tidegate_net::auth_failures::AuthFailures;
use tidegate_net::http::response::{self, Body};
use tidegate_net::http1::HttpHandler;
use tidegate_net::listener::Peer;
use tidegate_service::live::LiveHistory;
use tidegate_service::metrics::MetricsFormat;
use tidegate_service::rules::RulesManager;
use tidegate_service::service::Service;
use tokio::sync::Semaphore;

use self::dashboard::DashboardFile;
pub use self::guard::AccessGuard;
use self::guard::{AuthError, RequestHead};

/// Most open connections.
pub const MAX_CONNECTIONS: usize = 64;

/// Most documents of rules that are read at the same time.
const MAX_DOCUMENTS: usize = 2;

/// Most simulations that run at the same time.
#[cfg(feature = "simulate")]
const MAX_SIMULATIONS: usize = 2;

/// The path of the Lab in the error of an unknown path.
const LAB_PATH: &str = if cfg!(feature = "simulate") { " /v1/lab," } else { "" };

/// The handler of the admin listener.
#[derive(Debug)]
pub struct AdminApi {
    pub(crate) guard: AccessGuard,
    auth_failures: AuthFailures,
    pub(crate) service: Arc<Service>,
    pub(crate) manager: Arc<RulesManager>,
    /// LiveHistory figures, sampled once a second.
    pub live: Arc<LiveHistory>,
    schemas: SchemaFiles,
    /// Limits how many documents of rules are read at the same time: they may be long.
    documents: Semaphore,
    /// Limits how many simulations run at the same time: each uses a processor.
    #[cfg(feature = "simulate")]
    simulations: Semaphore,
}

/// The JSON SchemaFiles that the admin API serves.
#[derive(Debug)]
pub struct SchemaFiles {
    /// The schema of files of rules.
    pub rules: Bytes,
    /// The schema of `tidegate.yaml`.
    pub config: Bytes,
}

impl AdminApi {
    /// Returns the admin API of a service.
    pub fn new(
        guard: AccessGuard,
        auth_failures: AuthFailures,
        service: Arc<Service>,
        manager: Arc<RulesManager>,
        schemas: SchemaFiles,
    ) -> Self {
        let live = Arc::new(LiveHistory::new(service.clock().now()));
        Self {
            guard,
            auth_failures,
            service,
            manager,
            live,
            schemas,
            documents: Semaphore::new(MAX_DOCUMENTS),
            #[cfg(feature = "simulate")]
            simulations: Semaphore::new(MAX_SIMULATIONS),
        }
    }

    /// Returns the response to a request that is not permitted. A wrong token is counted and answered late.
    ///
    /// A response with status 401 closes its connection: it must not keep the place of an operator.
    async fn reject(&self, error: AuthError, from: SocketAddr) -> Response<Body> {
        let mut response = error.response();
        if matches!(error, AuthError::WrongToken) {
            self.auth_failures.delay_answer(from).await;
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn route(&self, request: Request<Incoming>, from: SocketAddr) -> Response<Body> {
        let (service, active) = (&*self.service, self.service.active_rules());
        match request.uri().path() {
            "/metrics" => read_only(&request, || metrics(self, &request)),
            "/rlconfig" => rlconfig::handle(active.envoy(), request.method()),
            "/v1/block" => block::handle(active.limiter(), request, from).await,
            "/v1/fleet" => match reject_writes(&request) {
                None => fleet::handle(self, &active).await,
                Some(rejection) => rejection,
            },
            "/v1/live" => {
                read_only(&request, || live::handle(self, &active, request.uri().query()))
            }
            #[cfg(feature = "simulate")]
            "/v1/lab" => lab::handle(self, request).await,
            "/v1/refund" => refund::handle(active.limiter(), request, from).await,
            "/v1/top" => {
                read_only(&request, || top::handle(service, &active, request.uri().query()))
            }
            rules::PATH | "/v1/rules/diff" | "/v1/rules/history" | "/v1/rules/status" => {
                rules::handle(self, &active, request, from).await
            }
            "/v1/schema/rules.json" => read_only(&request, || schema(&self.schemas.rules)),
            "/v1/schema/config.json" => read_only(&request, || schema(&self.schemas.config)),
            path if path.starts_with(clients::PATH) => {
                clients::handle(active.limiter(), request, from).await
            }
            path => {
                let path = tidegate_core::quote(path);
                let detail = format!(
                    "path: found {path}, wanted /, /metrics, /rlconfig, /v1/block, /v1/clients, /v1/fleet,{LAB_PATH} /v1/live, \
                     /v1/refund, /v1/rules, /v1/rules/diff, /v1/rules/history, /v1/rules/status, /v1/schema/config.json, \
                     /v1/schema/rules.json or /v1/top"
                );
                response::problem(StatusCode::NOT_FOUND, &detail)
            }
        }
    }
}

impl HttpHandler for AdminApi {
    async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let mut response = match DashboardFile::find(request.uri().path()) {
            // Files of the dashboard need no token: the operator enters it on the page.
            Some(file) => match self.guard.check_origin(request.headers()) {
                Ok(()) => read_only(&request, || file.response()),
                Err(error) => error.response(),
            },
            None => {
                let (method, path) = (request.method(), request.uri().path());
                let head = RequestHead { method, path, headers: request.headers() };
                match self.guard.authenticate(&head) {
                    Ok(()) => self.route(request, peer.address).await,
                    Err(error) => self.reject(error, peer.address).await,
                }
            }
        };
        // Responses change all the time, and are for this operator only.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Returns the response of a read-only path, or the error of another method.
fn read_only(request: &Request<Incoming>, read: impl FnOnce() -> Response<Body>) -> Response<Body> {
    match reject_writes(request) {
        None => read(),
        Some(rejection) => rejection,
    }
}

/// Returns the response to a method other than GET or HEAD; `None` for these two.
fn reject_writes(request: &Request<Incoming>) -> Option<Response<Body>> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *request.method() {
        // hyper sends only the head of the same response to HEAD.
        Method::GET | Method::HEAD => None,
        Method::OPTIONS => Some(response::options(ALLOWED)),
        ref other => {
            let detail = format!("method: found {other}, wanted GET");
            Some(response::wrong_method(&detail, ALLOWED))
        }
    }
}

fn metrics(admin: &AdminApi, request: &Request<Incoming>) -> Response<Body> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = MetricsFormat::from_accept(accept);
    let mut response =
        response::text_no_store(admin.service.metrics(format, &admin.manager.source_status()));
    let kind = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn schema(json: &Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(json.clone()));
    let kind = HeaderValue::from_static("application/schema+json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Returns whether only programs on this machine can reach an address.
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
