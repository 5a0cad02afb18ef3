//! The gRPC API: Envoy's rate limit service, Tidegate's own service, health and reflection.
//!
//! Unary calls are decoded and encoded here. That avoids tonic's service object, boxed future and boxed
//! body for each call. Reflection, which streams, goes through tonic.

mod body;
mod check;
mod connection;
mod health;
mod inline;
mod message;
mod reflection;
pub(crate) mod rls;
pub(crate) mod rls_message;
mod slots;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
use tidegate_core::{CallError, InvalidReason, Span};
use tidegate_limiter::Clock;
use tidegate_net::listener::{Activity, ConnectionHandler, ConnectionTimeouts, Peer, Stream};
use tidegate_service::call::Protocol;
use tidegate_service::service::Service;
use tokio::sync::{SemaphorePermit, watch};
use tonic::{Code, Status};

use self::body::{GrpcBody, http_error};
use self::message::MessageBudget;
use self::reflection::ReflectionService;
use crate::caller;

/// Memory that all large messages together may use, in KiB.
const MAX_LARGE_MESSAGES_KIB: usize = 128 * 1024;
/// Longest time from the head of a call to the end of its message. It is shorter than the request
/// timeout of a connection, so a slow message does not close the connection.
const MESSAGE_TIMEOUT: Span = Span::from_secs(20);
/// Longest time without traffic on a connection. Callers keep connections open, Envoy for an hour;
/// HTTP/2 pings detect dead ones.
const IDLE_TIMEOUT: Span = Span::from_secs(3_900);

/// Returns the timeouts of gRPC connections.
pub fn timeouts() -> ConnectionTimeouts {
    ConnectionTimeouts { idle: IDLE_TIMEOUT, ..ConnectionTimeouts::default() }
}

/// The gRPC API of a [`Service`].
pub struct GrpcApi(Arc<GrpcContext>);

/// State that all calls use.
struct GrpcContext {
    service: Arc<Service>,
    reflection: ReflectionService,
    budget: MessageBudget,
    clock: Clock,
    closing: watch::Receiver<bool>,
}

impl GrpcApi {
    /// Returns the gRPC API of a service. Health watches end when `closing` turns true.
    pub fn new(service: Arc<Service>, clock: Clock, closing: watch::Receiver<bool>) -> Self {
        let (reflection, budget) =
            (ReflectionService::new(), MessageBudget::new(MAX_LARGE_MESSAGES_KIB));
        Self(Arc::new(GrpcContext { service, reflection, budget, clock, closing }))
    }
}

impl ConnectionHandler for GrpcApi {
    async fn serve(&self, stream: Stream, peer: Peer, activity: Arc<Activity>) {
        let handle = |request| handle(Arc::clone(&self.0), peer.clone(), request);
        connection::serve(stream, activity, handle).await;
    }
}

/// Handles one HTTP/2 request. A request that is not a gRPC call gets an HTTP error.
async fn handle(
    context: Arc<GrpcContext>,
    peer: Peer,
    request: Request<Incoming>,
) -> Response<GrpcBody> {
    let content_type = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
    if request.method() != Method::POST {
        return http_error(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !content_type.is_some_and(|value| value.starts_with(body::GRPC_CONTENT_TYPE.as_bytes())) {
        return http_error(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    context.handle(&peer, request).await.unwrap_or_else(Status::into_http)
}

impl GrpcContext {
    /// Passes a call to the method that its path names.
    async fn handle(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Result<Response<GrpcBody>, Status> {
        if request.uri().path() != rls::SHOULD_RATE_LIMIT {
            // Boxed, so that the future of an RLS call stays small. The connection moves it several times.
            return Box::pin(self.handle_other(peer, request)).await;
        }
        let reply = match self.read(request.into_body()).await {
            Ok((message, _permit)) => rls::should_rate_limit(&self.service, &message).await,
            Err(error) => rls::invalid_call_reply(&self.service, error),
        };
        reply.map(|reply| body::message_response(&reply))
    }

    /// Passes a call to any other method than [`rls::SHOULD_RATE_LIMIT`].
    async fn handle_other(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Result<Response<GrpcBody>, Status> {
        match request.uri().path() {
            check::CHECK => {
                let (message, _permit) = self.read(request.into_body()).await?;
                check::check(&self.service, caller(peer), &message)
                    .await
                    .map(|reply| body::message_response(&reply))
            }
            check::PEEK => {
                let (message, _permit) = self.read(request.into_body()).await?;
                check::peek(&self.service, caller(peer), message)
                    .await
                    .map(|reply| body::message_response(&reply))
            }
            check::CHECK_BATCH => {
                let (message, _permit) = self.read(request.into_body()).await?;
                check::batch(&self.service, caller(peer), &message)
                    .await
                    .map(|reply| body::message_response(&reply))
            }
            slots::ACQUIRE => {
                let (message, _permit) = self.read(request.into_body()).await?;
                slots::acquire(&self.service, caller(peer), &message).await
            }
            slots::RENEW => {
                let (message, _permit) = self.read(request.into_body()).await?;
                slots::renew(&self.service, &message)
                    .await
                    .map(|reply| body::message_response(&reply))
            }
            slots::RELEASE => {
                let (message, _permit) = self.read(request.into_body()).await?;
                slots::release(&self.service, &message)
                    .await
                    .map(|reply| body::message_response(&reply))
            }
            health::CHECK => {
                let (message, _permit) = self.read(request.into_body()).await?;
                health::check(&self.service, &message).map(|reply| body::message_response(&reply))
            }
            health::WATCH => {
                let (message, _permit) = self.read(request.into_body()).await?;
                let (service, closing) = (Arc::clone(&self.service), self.closing.clone());
                let messages = health::watch(service, &message, self.clock.clone(), closing);
                Ok(body::stream_response(messages))
            }
            path if ReflectionService::serves(path) => Ok(self.reflection.handle(request).await),
            path => {
                let path = tidegate_core::quote(path);
                Err(Status::unimplemented(format!(
                    "path: found {path}, wanted a method that is listed by grpc.reflection.v1.ServerReflection"
                )))
            }
        }
    }

    /// Reads and decodes the message of a call. The permit holds its memory; small messages need none.
    ///
    /// # Errors
    /// The message is invalid, too long, too slow, or too many large messages are in memory. The call is counted.
    async fn read<M: Message + Default>(
        &self,
        body: Incoming,
    ) -> Result<(M, Option<SemaphorePermit<'_>>), Status> {
        let timeout = async { self.clock.sleep_until(self.clock.now() + MESSAGE_TIMEOUT).await };
        let read = tokio::select! {
            // In this order: most messages have arrived already and need no timer.
            biased;
            read = message::read(body, &self.budget) => read,
            () = timeout => Err(Status::deadline_exceeded("message: it took too long")),
        };
        let decoded = read.and_then(|(bytes, permit)| match M::decode(bytes) {
            Ok(message) => Ok((message, permit)),
            Err(error) => Err(Status::invalid_argument(format!(
                "message: found bytes that are none ({error})"
            ))),
        });
        decoded.inspect_err(|error| self.count_unreadable(error))
    }

    /// Counts a call with a message that could not be read.
    fn count_unreadable(&self, error: &Status) {
        let (reason, wanted) = match error.code() {
            Code::ResourceExhausted => {
                (InvalidReason::TooLarge, format!("at most {} bytes", message::MAX_MESSAGE_BYTES))
            }
            _ => (InvalidReason::Undecodable, "a complete message".to_owned()),
        };
        let error = CallError::invalid("message", "another one", wanted).because(reason);
        let _ = self.service.count_rejected(Protocol::Grpc, error);
    }
}

/// Returns the gRPC status of a call that failed.
fn error_status(error: CallError) -> Status {
    Status::new(Code::from(error.status.grpc()), error.to_string())
}

#[cfg(test)]
mod tests;
