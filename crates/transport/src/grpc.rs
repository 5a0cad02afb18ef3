//! The gRPC door: Envoy's rate limit service, our own, health and reflection.
//!
//! The calls have one message each way, so they are read and written here, without a service object,
//! a boxed future and a boxed body for each of them. What streams goes through tonic.

mod body;
mod check;
mod connection;
mod health;
mod inline;
mod message;
mod reflection;
mod rls;
mod slots;

use std::sync::Arc;

use crate::caller;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
use tidegate_core::{CallError, Span};
use tidegate_limiter::Clock;
use tidegate_net::listener::{Activity, ConnectionHandler, ConnectionTimeouts, Peer, Stream};
use tidegate_service::service::Service;
use tokio::sync::{SemaphorePermit, watch};
use tonic::{Code, Status};

use self::body::{Body, no_call};
use self::message::Room;
use self::reflection::Reflection;

/// What all long messages together may take, in KiB.
const MAX_MESSAGES: usize = 128 * 1024;
/// How long a message may take from its head to its end: less than a connection may be busy with it.
const MESSAGE: Span = Span::from_secs(20);
/// How long a connection may be silent. Callers keep theirs open, Envoy for an hour; whether they are
/// still there is found out by asking.
const IDLE: Span = Span::from_secs(3_900);

/// How long connections of this door may take.
pub fn timeouts() -> ConnectionTimeouts {
    ConnectionTimeouts { idle: IDLE, ..ConnectionTimeouts::default() }
}

/// What is spoken on the door.
pub struct Grpc(Arc<Shared>);

struct Shared {
    service: Arc<Service>,
    reflection: Reflection,
    room: Room,
    clock: Clock,
    closing: watch::Receiver<bool>,
}

impl Grpc {
    /// `closing` turns true when the door closes, for those who watch.
    pub fn new(service: Arc<Service>, clock: Clock, closing: watch::Receiver<bool>) -> Self {
        let (reflection, room) = (Reflection::new(), Room::new(MAX_MESSAGES));
        Self(Arc::new(Shared { service, reflection, room, clock, closing }))
    }
}

impl ConnectionHandler for Grpc {
    async fn serve(&self, stream: Stream, peer: Peer, activity: Arc<Activity>) {
        let answer = |request| answer(Arc::clone(&self.0), peer.clone(), request);
        connection::serve(stream, activity, answer).await;
    }
}

async fn answer(shared: Arc<Shared>, peer: Peer, request: Request<Incoming>) -> Response<Body> {
    let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    if request.method() != Method::POST {
        return no_call(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !kind.is_some_and(|kind| kind.starts_with(body::GRPC.as_bytes())) {
        return no_call(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    shared.answer(&peer, request).await.unwrap_or_else(Status::into_http)
}

impl Shared {
    async fn answer(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        match request.uri().path() {
            rls::SHOULD_RATE_LIMIT => {
                let (asked, _room) = self.read(request).await?;
                rls::answer(&self.service, &asked).await.map(|answer| body::message(&answer))
            }
            check::CHECK => {
                let (asked, _room) = self.read(request).await?;
                check::check(&self.service, caller(peer), &asked)
                    .await
                    .map(|answer| body::message(&answer))
            }
            check::PEEK => {
                let (asked, _room) = self.read(request).await?;
                check::peek(&self.service, caller(peer), asked)
                    .await
                    .map(|answer| body::message(&answer))
            }
            check::CHECK_BATCH => {
                let (asked, _room) = self.read(request).await?;
                check::batch(&self.service, caller(peer), &asked)
                    .await
                    .map(|answer| body::message(&answer))
            }
            slots::ACQUIRE => {
                let (asked, _room) = self.read(request).await?;
                slots::acquire(&self.service, caller(peer), &asked).await
            }
            slots::RENEW => {
                let (asked, _room) = self.read(request).await?;
                slots::renew(&self.service, &asked).await.map(|answer| body::message(&answer))
            }
            slots::RELEASE => {
                let (asked, _room) = self.read(request).await?;
                slots::release(&self.service, &asked).await.map(|answer| body::message(&answer))
            }
            health::CHECK => {
                let (asked, _room) = self.read(request).await?;
                health::check(&self.service, &asked).map(|answer| body::message(&answer))
            }
            health::WATCH => {
                let (asked, _room) = self.read(request).await?;
                let (service, closing) = (Arc::clone(&self.service), self.closing.clone());
                let messages = health::watch(service, &asked, self.clock.clone(), closing);
                Ok(body::stream(messages))
            }
            path if Reflection::serves(path) => Ok(self.reflection.answer(request).await),
            path => {
                let path = tidegate_core::quote(path);
                Err(Status::unimplemented(format!(
                    "path: found {path}, wanted a method that is listed by grpc.reflection.v1.ServerReflection"
                )))
            }
        }
    }

    /// The message of a call, and the room it takes.
    async fn read<M: Message + Default>(
        &self,
        request: Request<Incoming>,
    ) -> Result<(M, Option<SemaphorePermit<'_>>), Status> {
        let too_slow = async { self.clock.sleep_until(self.clock.now() + MESSAGE).await };
        let (bytes, room) = tokio::select! {
            // In this order: most messages are there already, and need no timer.
            biased;
            read = message::read(request.into_body(), &self.room) => read?,
            () = too_slow => return Err(Status::deadline_exceeded("message: it took too long")),
        };
        let message = M::decode(bytes).map_err(|error| {
            Status::invalid_argument(format!("message: found bytes that are none ({error})"))
        })?;
        Ok((message, room))
    }
}

/// Returns the gRPC status of a call that can't be decided.
fn error_status(error: CallError) -> Status {
    Status::new(Code::from(error.status.grpc()), error.to_string())
}

#[cfg(test)]
mod tests;
