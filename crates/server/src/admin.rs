//! The admin door: what operators see and change. Nothing here is reachable on another door.
//!
//! It is an HTTP door like the other one, and uses its connections, bodies and errors; a router for a
//! handful of paths is a `match`.

mod block;
mod clients;
mod guard;
mod lab;
mod query;
mod refund;
mod rlconfig;
mod rules;
mod standing;
mod top;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;

pub(crate) use self::guard::Guard;
use crate::metrics::Format;
use crate::reference::Subject;
use crate::rules::Keeper;
use crate::service::Service;
use crate::transport::connection::Handler;
use crate::transport::door::{Patience, Peer};
use crate::transport::http::encode::{self, Body};

/// Most operators at once.
const CONNECTIONS: usize = 64;

/// Most documents of rules that are read at a time.
const DOCUMENTS: usize = 2;

/// Most simulations at a time.
const LABS: usize = 2;

const ENDPOINTS: &str = "/metrics, /rlconfig, /v1/block, /v1/clients, /v1/lab, /v1/refund, /v1/rules, \
     /v1/rules/diff, /v1/rules/history, /v1/rules/status, /v1/schema/config.json, /v1/schema/rules.json \
     or /v1/top";

/// What the admin door shows.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) guard: Guard,
    pub(crate) service: Arc<Service>,
    pub(crate) keeper: Arc<Keeper>,
    /// Room for documents of rules, which may be long.
    documents: Semaphore,
    /// Room for simulations, which take a processor each.
    labs: Semaphore,
}

impl Admin {
    pub(crate) fn new(guard: Guard, service: Arc<Service>, keeper: Arc<Keeper>) -> Self {
        let (documents, labs) = (Semaphore::new(DOCUMENTS), Semaphore::new(LABS));
        Self { guard, service, keeper, documents, labs }
    }

    /// An operator is served like everybody else, only that there are not many of them.
    pub(crate) fn patience() -> Patience {
        Patience { connections: CONNECTIONS, ..Patience::default() }
    }

    async fn route(&self, request: Request<Incoming>, from: SocketAddr) -> Response<Body> {
        let (service, now) = (&*self.service, self.service.now());
        match request.uri().path() {
            "/metrics" => reading(&request, || metrics(self, &request)),
            "/rlconfig" => rlconfig::answer(now.envoy(), request.method()),
            "/v1/block" => block::answer(now.limiter(), request, from).await,
            "/v1/lab" => lab::answer(self, request).await,
            "/v1/refund" => refund::answer(now.limiter(), request, from).await,
            "/v1/top" => reading(&request, || top::answer(service, &now, request.uri().query())),
            rules::PATH | "/v1/rules/diff" | "/v1/rules/history" | "/v1/rules/status" => {
                rules::answer(self, &now, request, from).await
            }
            "/v1/schema/rules.json" => reading(&request, || schema(Subject::Rules)),
            "/v1/schema/config.json" => reading(&request, || schema(Subject::Config)),
            path if path.starts_with(clients::PATH) => {
                clients::answer(now.limiter(), request, from).await
            }
            path => {
                let path = crate::service::quoted(path);
                let detail = format!("path: found {path}, wanted {ENDPOINTS}");
                encode::problem(StatusCode::NOT_FOUND, &detail)
            }
        }
    }
}

impl Handler for Admin {
    async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let mut response = match self.guard.admit(request.headers()) {
            Ok(()) => self.route(request, peer.address).await,
            Err(stranger) => stranger.response(),
        };
        // What is shown here changes all the time, and is for this operator alone.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Answers a path that can only be read.
fn reading(request: &Request<Incoming>, read: impl FnOnce() -> Response<Body>) -> Response<Body> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *request.method() {
        // hyper sends the head of the same answer to HEAD.
        Method::GET | Method::HEAD => read(),
        Method::OPTIONS => encode::options(ALLOWED),
        ref other => {
            let detail = format!("method: found {other}, wanted GET");
            encode::wrong_method(&detail, ALLOWED)
        }
    }
}

fn metrics(admin: &Admin, request: &Request<Incoming>) -> Response<Body> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let mut response = encode::plain(admin.service.metrics(format, &admin.keeper.standing()));
    let kind = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn schema(subject: Subject) -> Response<Body> {
    let mut response = Response::new(Body::from(subject.schema().to_json()));
    let kind = HeaderValue::from_static(Subject::MEDIA_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Whether only programs on this machine can reach an address.
pub(crate) fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
