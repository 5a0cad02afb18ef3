//! The admin listener: what operators see and change. Nothing here is reachable on another listener.
//!
//! It is an HTTP listener like the other one, and uses its connections, bodies and errors; a router for a
//! handful of paths is a `match`.

mod block;
mod clients;
mod fleet;
mod guard;
#[cfg(feature = "simulate")]
mod lab;
mod live;
mod page;
mod query;
mod refund;
mod rlconfig;
mod rules;
mod standing;
mod top;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tidegate_net::http::response::{self, Body};
use tidegate_net::http1::HttpHandler;
use tidegate_net::listener::{ConnectionTimeouts, Peer};
use tidegate_service::live::Live;
use tidegate_service::metrics::Format;
use tidegate_service::rules::RulesManager;
use tidegate_service::service::Service;
use tokio::sync::Semaphore;

pub use self::guard::Guard;
use self::page::Page;

/// Most operators at once.
const CONNECTIONS: usize = 64;

/// Most documents of rules that are read at a time.
const DOCUMENTS: usize = 2;

/// Most simulations at a time.
#[cfg(feature = "simulate")]
const LABS: usize = 2;

/// The path of the Lab among those that a wrong path is answered with.
const LAB: &str = if cfg!(feature = "simulate") { " /v1/lab," } else { "" };

/// What the admin listener shows.
#[derive(Debug)]
pub struct Admin {
    pub(crate) guard: Guard,
    pub(crate) service: Arc<Service>,
    pub(crate) manager: Arc<RulesManager>,
    /// Live figures, sampled once a second.
    pub live: Arc<Live>,
    schemas: Schemas,
    /// Room for documents of rules, which may be long.
    documents: Semaphore,
    /// Room for simulations, which take a processor each.
    #[cfg(feature = "simulate")]
    labs: Semaphore,
}

/// The JSON Schemas that the admin API serves.
#[derive(Debug)]
pub struct Schemas {
    /// Of files of rules.
    pub rules: Bytes,
    /// Of `tidegate.yaml`.
    pub config: Bytes,
}

impl Admin {
    /// Returns the admin API of a service.
    pub fn new(
        guard: Guard,
        service: Arc<Service>,
        manager: Arc<RulesManager>,
        schemas: Schemas,
    ) -> Self {
        let live = Arc::new(Live::new(service.clock().now()));
        Self {
            guard,
            service,
            manager,
            live,
            schemas,
            documents: Semaphore::new(DOCUMENTS),
            #[cfg(feature = "simulate")]
            labs: Semaphore::new(LABS),
        }
    }

    /// An operator is served like everybody else, only that there are not many of them.
    pub fn timeouts() -> ConnectionTimeouts {
        ConnectionTimeouts { connections: CONNECTIONS, ..ConnectionTimeouts::default() }
    }

    async fn route(&self, request: Request<Incoming>, from: SocketAddr) -> Response<Body> {
        let (service, now) = (&*self.service, self.service.active_rules());
        match request.uri().path() {
            "/metrics" => reading(&request, || metrics(self, &request)),
            "/rlconfig" => rlconfig::answer(now.envoy(), request.method()),
            "/v1/block" => block::answer(now.limiter(), request, from).await,
            "/v1/fleet" => match other_than_reading(&request) {
                None => fleet::answer(self, &now).await,
                Some(refusal) => refusal,
            },
            "/v1/live" => reading(&request, || live::answer(self, &now, request.uri().query())),
            #[cfg(feature = "simulate")]
            "/v1/lab" => lab::answer(self, request).await,
            "/v1/refund" => refund::answer(now.limiter(), request, from).await,
            "/v1/top" => reading(&request, || top::answer(service, &now, request.uri().query())),
            rules::PATH | "/v1/rules/diff" | "/v1/rules/history" | "/v1/rules/status" => {
                rules::answer(self, &now, request, from).await
            }
            "/v1/schema/rules.json" => reading(&request, || schema(&self.schemas.rules)),
            "/v1/schema/config.json" => reading(&request, || schema(&self.schemas.config)),
            path if path.starts_with(clients::PATH) => {
                clients::answer(now.limiter(), request, from).await
            }
            path => {
                let path = tidegate_core::quote(path);
                let detail = format!(
                    "path: found {path}, wanted /, /metrics, /rlconfig, /v1/block, /v1/clients, /v1/fleet,{LAB} /v1/live, \
                     /v1/refund, /v1/rules, /v1/rules/diff, /v1/rules/history, /v1/rules/status, /v1/schema/config.json, \
                     /v1/schema/rules.json or /v1/top"
                );
                response::problem(StatusCode::NOT_FOUND, &detail)
            }
        }
    }
}

impl HttpHandler for Admin {
    async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let mut response = match Page::at(request.uri().path()) {
            // Whoever opens a page has yet to say its token there.
            Some(page) => match self.guard.visit(request.headers()) {
                Ok(()) => reading(&request, || page.response()),
                Err(stranger) => stranger.response(),
            },
            None => match self.guard.admit(request.headers()) {
                Ok(()) => self.route(request, peer.address).await,
                Err(stranger) => stranger.response(),
            },
        };
        // What is shown here changes all the time, and is for this operator alone.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Answers a path that can only be read.
fn reading(request: &Request<Incoming>, read: impl FnOnce() -> Response<Body>) -> Response<Body> {
    match other_than_reading(request) {
        None => read(),
        Some(refusal) => refusal,
    }
}

/// The answer to who wants something else of a path that can only be read.
fn other_than_reading(request: &Request<Incoming>) -> Option<Response<Body>> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *request.method() {
        // hyper sends the head of the same answer to HEAD.
        Method::GET | Method::HEAD => None,
        Method::OPTIONS => Some(response::options(ALLOWED)),
        ref other => {
            let detail = format!("method: found {other}, wanted GET");
            Some(response::wrong_method(&detail, ALLOWED))
        }
    }
}

fn metrics(admin: &Admin, request: &Request<Incoming>) -> Response<Body> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept);
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

/// Whether only programs on this machine can reach an address.
pub fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
