//! The HTTP door: JSON in, JSON and rate-limit headers out.

mod authorize;
pub mod decode;
mod openapi;
mod rls_json;
mod slots;

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use tidegate_core::CallError;
use tidegate_net::http::body;
use tidegate_net::http::json::Json;
use tidegate_net::http::response::{self, Body};
use tidegate_net::http1::HttpHandler;
use tidegate_net::listener::Peer;
use tidegate_service::call::{Call, Protocol};
use tidegate_service::identity::{self, Identity};
use tidegate_service::service::Service;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::caller;

/// Longest body of one check in bytes.
const MAX_CHECK: usize = 64 * 1024;
/// Longest body of a batch in bytes.
const MAX_BATCH: usize = 1024 * 1024;
/// Bodies up to this many bytes are not counted against what all of them may take.
const SMALL: usize = 4 * 1024;
/// What all larger bodies together may take, in KiB.
const MAX_BODIES: usize = 128 * 1024;

const ENDPOINTS: &str = "POST /v1/check, POST /v1/check/batch, POST /v1/acquire, POST /v1/renew, \
                         POST /v1/release, POST /json, /v1/authorize, GET /openapi.json, \
                         GET /healthz, GET /readyz and GET /healthcheck";

/// Answers checks over HTTP.
#[derive(Debug)]
pub struct Door {
    service: Arc<Service>,
    identity: Arc<Identity>,
    /// Room for large bodies, in KiB.
    bodies: Semaphore,
}

impl Door {
    /// Returns the HTTP API of a service.
    pub fn new(service: Arc<Service>, identity: Arc<Identity>) -> Self {
        Self { service, identity, bodies: Semaphore::new(MAX_BODIES) }
    }
}

impl HttpHandler for Door {
    async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        match request.uri().path() {
            "/v1/check" => self.post(request, peer, Endpoint::Check).await,
            "/v1/check/batch" => self.post(request, peer, Endpoint::Batch).await,
            "/v1/acquire" => self.post(request, peer, Endpoint::Acquire).await,
            "/v1/renew" => self.post(request, peer, Endpoint::Renew).await,
            "/v1/release" => self.post(request, peer, Endpoint::Release).await,
            "/v1/authorize" => self.authorize(request, peer).await,
            "/openapi.json" => openapi::answer(request.method()),
            "/json" => self.post(request, peer, Endpoint::Rls).await,
            "/healthz" => probe(request.method(), None),
            // The rules were loaded before the door opened.
            "/readyz" => probe(request.method(), self.service.not_ready_reason()),
            "/healthcheck" => {
                healthcheck(request.method(), self.service.not_ready_reason().is_none())
            }
            "*" if request.method() == Method::OPTIONS => response::options("GET, POST, OPTIONS"),
            path => {
                let path = tidegate_core::quote(path);
                let detail = format!("path: found {path}, wanted {ENDPOINTS}");
                response::problem(StatusCode::NOT_FOUND, &detail)
            }
        }
    }
}

/// Reads a body in every way that the door does, and decides nothing: what is wrong with it, for fuzzers.
pub fn rehearse(body: &[u8]) -> Vec<CallError> {
    let checks = Json::read(body).and_then(decode::batch);
    let each = checks
        .and_then(|checks| checks.into_iter().try_for_each(|check| decode::check(check).map(drop)));
    let readings = [
        Json::read(body).and_then(decode::check).map(drop),
        each,
        Json::read(body).and_then(rls_json::decode).map(drop),
        Json::read(body).and_then(decode::slot).map(drop),
    ];
    readings.into_iter().filter_map(Result::err).collect()
}

#[derive(Clone, Copy)]
enum Endpoint {
    Check,
    Batch,
    Acquire,
    Renew,
    Release,
    /// A call of Envoy's rate limit service.
    Rls,
}

impl Door {
    async fn post(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        endpoint: Endpoint,
    ) -> Response<Body> {
        if let Some(refusal) = response::require_post(request.method()) {
            return refusal;
        }
        let most = match endpoint {
            Endpoint::Batch => MAX_BATCH,
            _ => MAX_CHECK,
        };
        let (body, _room) = match self.read(request, most).await {
            Ok(read) => read,
            Err(response) => return response,
        };
        match endpoint {
            Endpoint::Check => self.check(&body, peer).await,
            // Boxed, so that a check does not carry their room around.
            Endpoint::Batch => Box::pin(self.batch(&body, peer)).await,
            Endpoint::Acquire => Box::pin(self.acquire(&body, peer)).await,
            Endpoint::Renew => Box::pin(self.renew(&body)).await,
            Endpoint::Release => Box::pin(self.release(&body)).await,
            Endpoint::Rls => Box::pin(self.rls(&body)).await,
        }
    }

    async fn check(&self, body: &[u8], peer: &Peer) -> Response<Body> {
        let call = match Json::read(body).and_then(decode::check) {
            Ok(call) => identity::vouched(call, caller(peer)),
            Err(fault) => {
                return response::call_error(&self.service.count_rejected(Protocol::Http, fault));
            }
        };
        match self.service.check(Protocol::Http, call).await {
            Ok(reply) => response::reply(&reply),
            Err(fault) => response::call_error(&fault),
        }
    }

    async fn batch(&self, body: &[u8], peer: &Peer) -> Response<Body> {
        let items = match Json::read(body).and_then(decode::batch) {
            Ok(items) => items,
            Err(fault) => {
                return response::call_error(&self.service.count_rejected(Protocol::Http, fault));
            }
        };
        let vouched = |call| identity::vouched(call, caller(peer));
        let calls = items.into_iter().map(|item| decode::check(item).map(vouched)).collect();
        let answers = self.service.check_each(Protocol::Http, calls).await;
        let answers: Vec<_> = answers
            .into_iter()
            .enumerate()
            .map(|(index, answer)| {
                answer.map_err(|fault| fault.within(&format!("checks[{index}]")))
            })
            .collect();
        response::batch(&answers)
    }

    /// Whether a proxy may let pass what it holds. Every method asks the same: the one that counts
    /// is in a header.
    async fn authorize(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let (head, body) = request.into_parts();
        body::drain(body).await;
        let manner = authorize::Manner::of(&head.uri);
        let original = authorize::original(head);
        let by = self.service.active_rules();
        let described = match &original {
            Ok(head) => self.identity.describe(by.attribute_plan(), head, caller(peer)),
            Err(fault) => Err(fault.clone()),
        };
        let call = match described {
            Ok(request) => Call { request, ..Call::default() },
            Err(fault) => {
                return response::call_error(&self.service.count_rejected(Protocol::Http, fault));
            }
        };
        match self.service.check_by(&by, Protocol::Http, call).await {
            Ok(reply) => manner.tell(reply.status(), response::reply(&reply)),
            Err(fault) => response::call_error(&fault),
        }
    }

    async fn rls(&self, body: &[u8]) -> Response<Body> {
        let call = match Json::read(body).and_then(rls_json::decode) {
            Ok(call) => call,
            Err(fault) => {
                return response::call_error(&self.service.count_rejected(Protocol::Http, fault));
            }
        };
        match self.service.should_rate_limit(Protocol::Http, &call).await {
            Ok(reply) => rls_json::encode(&reply),
            Err(fault) => response::call_error(&fault),
        }
    }

    /// The whole body, and the room it takes; or the answer to one that can't be had.
    async fn read(
        &self,
        request: Request<Incoming>,
        most: usize,
    ) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Response<Body>> {
        let length = request.body().size_hint().exact();
        let length = length.map_or(most, |length| usize::try_from(length).unwrap_or(usize::MAX));
        // One that is too long will not be kept.
        let room = if length > SMALL && length <= most {
            let kib = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
            let taken = self.bodies.try_acquire_many(kib);
            Some(taken.map_err(|_| response::overloaded("too many long bodies at once"))?)
        } else {
            None
        };
        Ok((body::read(request, most).await?, room))
    }
}

/// Answers a probe as envoyproxy/ratelimit does.
fn healthcheck(method: &Method, ready: bool) -> Response<Body> {
    match probe(method, None) {
        fine if fine.status() != StatusCode::OK => fine,
        _ if ready => response::text(StatusCode::OK, "OK"),
        _ => response::text(StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

/// Answers a probe: fine, or why not.
fn probe(method: &Method, unready: Option<String>) -> Response<Body> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *method {
        // hyper sends the head of the same answer to HEAD.
        Method::GET | Method::HEAD => match unready {
            None => response::text(StatusCode::OK, "ok\n"),
            Some(reason) => {
                let text = format!("not ready: {reason}\n");
                response::text(StatusCode::SERVICE_UNAVAILABLE, text)
            }
        },
        Method::OPTIONS => response::options(ALLOWED),
        ref other => {
            let detail = format!("method: found {other}, wanted GET");
            response::wrong_method(&detail, ALLOWED)
        }
    }
}
