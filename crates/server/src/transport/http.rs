//! The HTTP door: JSON in, JSON and rate-limit headers out.

mod authorize;
pub(crate) mod body;
mod decode;
pub(crate) mod encode;
pub(crate) mod json;

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use tidegate::Clock;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use self::encode::Body;
use self::json::Json;
use super::connection::{self, Handler, Patience};
use crate::service::Service;

/// Longest body of one check in bytes.
const MAX_CHECK: usize = 64 * 1024;
/// Longest body of a batch in bytes.
const MAX_BATCH: usize = 1024 * 1024;
/// Bodies up to this many bytes are not counted against what all of them may take.
const SMALL: usize = 4 * 1024;
/// What all larger bodies together may take, in KiB.
const MAX_BODIES: usize = 128 * 1024;

const ENDPOINTS: &str = "POST /v1/check, POST /v1/check/batch, GET /healthz and GET /readyz";

/// Serves the door until `closing` says so; how many connections were cut off in the end.
pub(crate) async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    patience: Patience,
    clock: Clock,
    closing: watch::Receiver<bool>,
) -> usize {
    let door = Door { service, bodies: Semaphore::new(MAX_BODIES) };
    connection::serve(listener, Arc::new(door), patience, clock, closing).await
}

struct Door {
    service: Arc<Service>,
    /// Room for large bodies, in KiB.
    bodies: Semaphore,
}

impl Handler for Door {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/v1/check" => self.post(request, Endpoint::Check).await,
            "/v1/check/batch" => self.post(request, Endpoint::Batch).await,
            "/healthz" => probe(request.method(), None),
            // The rules were loaded before the door opened. Once it closes, nobody is let in to ask.
            "/readyz" => probe(request.method(), self.service.waits_for()),
            "*" if request.method() == Method::OPTIONS => encode::options("GET, POST, OPTIONS"),
            path => {
                let path = crate::service::quoted(path);
                let detail = format!("path: found {path}, wanted {ENDPOINTS}");
                encode::problem(StatusCode::NOT_FOUND, &detail)
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Endpoint {
    Check,
    Batch,
}

impl Door {
    async fn post(&self, request: Request<Incoming>, endpoint: Endpoint) -> Response<Body> {
        const ALLOWED: &str = "POST, OPTIONS";
        match *request.method() {
            Method::POST => {}
            Method::OPTIONS => return encode::options(ALLOWED),
            ref other => {
                let detail = format!("method: found {other}, wanted POST");
                return encode::wrong_method(&detail, ALLOWED);
            }
        }
        let most = match endpoint {
            Endpoint::Check => MAX_CHECK,
            Endpoint::Batch => MAX_BATCH,
        };
        let (body, _room) = match self.read(request, most).await {
            Ok(read) => read,
            Err(response) => return response,
        };
        match endpoint {
            Endpoint::Check => self.check(&body).await,
            Endpoint::Batch => self.batch(&body).await,
        }
    }

    async fn check(&self, body: &[u8]) -> Response<Body> {
        let call = match Json::read(body).and_then(decode::check) {
            Ok(call) => call,
            Err(fault) => return encode::fault(&fault),
        };
        match self.service.check(call).await {
            Ok(reply) => encode::reply(&reply),
            Err(fault) => encode::fault(&fault),
        }
    }

    async fn batch(&self, body: &[u8]) -> Response<Body> {
        let items = match Json::read(body).and_then(decode::batch) {
            Ok(items) => items,
            Err(fault) => return encode::fault(&fault),
        };
        let mut answers = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let answer = match decode::check(item) {
                Ok(call) => self.service.check(call).await,
                Err(fault) => Err(fault),
            };
            answers.push(answer.map_err(|fault| fault.within(&format!("checks[{index}]"))));
        }
        encode::batch(&answers)
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
            Some(taken.map_err(|_| encode::overloaded("too many long bodies at once"))?)
        } else {
            None
        };
        Ok((body::read(request, most).await?, room))
    }
}

/// Answers a probe: fine, or what is still missing.
fn probe(method: &Method, missing: Option<String>) -> Response<Body> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *method {
        // hyper sends the head of the same answer to HEAD.
        Method::GET | Method::HEAD => match missing {
            None => encode::word(StatusCode::OK, "ok\n"),
            Some(missing) => {
                let text = format!("not ready: waiting for {missing}\n");
                encode::word(StatusCode::SERVICE_UNAVAILABLE, text)
            }
        },
        Method::OPTIONS => encode::options(ALLOWED),
        ref other => {
            let detail = format!("method: found {other}, wanted GET");
            encode::wrong_method(&detail, ALLOWED)
        }
    }
}
