//! The HTTP API: JSON requests, JSON responses with rate-limit headers.

mod authorize;
mod check_body;
#[cfg(test)]
mod hyper_comparison;
mod openapi;
mod rls_json;
mod slots;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use tidegate_core::{
    CallError, Decision, HeaderStyle, InvalidReason, Reply, RequestError, RuleOutcomes,
    escape_text, truncate,
};
use tidegate_net::http::json::{Json, fields, text, text_pairs, whole_number};
use tidegate_net::http::page_guard::PageGuard;
use tidegate_net::http::response::{self, Body, ResponseBuffer};
use tidegate_net::http1::{HttpHandler, drain_body, read_body};
use tidegate_net::listener::Peer;
use tidegate_service::call::{Call, NamedClient, Protocol};
use tidegate_service::identity::{self, Identity};
use tidegate_service::service::rls::RlsReply;
use tidegate_service::service::{OnInvalidCall, Service};
use tokio::sync::{Semaphore, SemaphorePermit};

use self::authorize::DescriptionError;
use crate::caller;

/// Longest body of one check, in bytes.
const MAX_CHECK_BYTES: usize = 64 * 1024;
/// Longest body of a batch, in bytes.
const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// Bodies up to this many bytes are not counted in [`MAX_LARGE_BODIES_KIB`].
const MAX_UNCOUNTED_BODY_BYTES: usize = 4 * 1024;
/// Memory that all larger bodies together may use, in KiB.
const MAX_LARGE_BODIES_KIB: usize = 128 * 1024;

/// Largest number of checks in one batch.
const MAX_CHECKS: usize = 1_000;

const CHECK_FIELDS: &str = "rule, client, attributes or cost";
const ENDPOINTS: &str = "POST /v1/check, POST /v1/check/batch, POST /v1/acquire, POST /v1/renew, \
                         POST /v1/release, POST /json, /v1/authorize, GET /openapi.json, \
                         GET /healthz, GET /readyz and GET /healthcheck";

/// The HTTP API of a [`Service`].
#[derive(Debug)]
pub struct HttpApi {
    service: Arc<Service>,
    identity: Arc<Identity>,
    page_guard: PageGuard,
    /// Free memory for large bodies. One permit is one KiB.
    large_bodies: Semaphore,
}

impl HttpApi {
    /// Returns the HTTP API of a service.
    pub fn new(service: Arc<Service>, identity: Arc<Identity>, page_guard: PageGuard) -> Self {
        let large_bodies = Semaphore::new(MAX_LARGE_BODIES_KIB);
        Self { service, identity, page_guard, large_bodies }
    }
}

impl HttpHandler for HttpApi {
    const COMMON_PATH: &'static str = "/v1/check";

    async fn handle_common(&self, body: &[u8], peer: &Peer, responses: &mut ResponseBuffer) {
        match self.decide(body, peer).await {
            Ok(reply) => responses.push_reply(&reply),
            Err(error) => {
                responses.push(&mut response::call_error(&error), self.service.clock().now());
            }
        }
    }

    async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        match request.uri().path() {
            "/v1/check" => self.post(request, peer, PostEndpoint::Check).await,
            "/v1/check/batch" => self.post(request, peer, PostEndpoint::Batch).await,
            "/v1/acquire" => self.post(request, peer, PostEndpoint::Acquire).await,
            "/v1/renew" => self.post(request, peer, PostEndpoint::Renew).await,
            "/v1/release" => self.post(request, peer, PostEndpoint::Release).await,
            "/v1/authorize" => self.authorize(request, peer).await,
            "/openapi.json" => openapi::handle(request.method()),
            "/json" => self.post(request, peer, PostEndpoint::Rls).await,
            "/healthz" => probe(request.method(), None),
            // The rules were loaded before the listener accepted connections.
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

/// Parses a body with every decoder of this API and returns their errors. For fuzzers: no decision is made.
pub fn parse_only(body: &[u8]) -> Vec<CallError> {
    let checks = Json::read(body).and_then(decode_batch);
    let items = checks
        .and_then(|checks| checks.into_iter().try_for_each(|check| decode_check(check).map(drop)));
    let results = [
        Json::read(body).and_then(decode_check).map(drop),
        items,
        Json::read(body).and_then(rls_json::decode).map(drop),
        Json::read(body).and_then(decode_slot).map(drop),
    ];
    results.into_iter().filter_map(Result::err).collect()
}

/// An endpoint that takes a JSON body by POST.
#[derive(Clone, Copy)]
enum PostEndpoint {
    Check,
    Batch,
    Acquire,
    Renew,
    Release,
    /// Envoy's rate limit service, as JSON.
    Rls,
}

impl HttpApi {
    /// Reads the body of a POST and passes it to its endpoint.
    async fn post(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        endpoint: PostEndpoint,
    ) -> Response<Body> {
        if let Some(refusal) = response::require_post(request.method()) {
            return refusal;
        }
        if let Err(error) = self.page_guard.check(request.headers()) {
            let _ = self.service.count_rejected(Protocol::Http, error.call_error());
            return error.response();
        }
        let max_bytes = match endpoint {
            PostEndpoint::Batch => MAX_BATCH_BYTES,
            _ => MAX_CHECK_BYTES,
        };
        let (body, _permit) = match self.read(request, max_bytes).await {
            Ok(read) => read,
            Err(refusal) => return self.refuse_body(endpoint, max_bytes, refusal),
        };
        match endpoint {
            PostEndpoint::Check => self.check(&body, peer).await,
            // Boxed: the future of a check must not grow to the size of these.
            PostEndpoint::Batch => Box::pin(self.batch(&body, peer)).await,
            PostEndpoint::Acquire => Box::pin(self.acquire(&body, peer)).await,
            PostEndpoint::Renew => Box::pin(self.renew(&body)).await,
            PostEndpoint::Release => Box::pin(self.release(&body)).await,
            PostEndpoint::Rls => Box::pin(self.rls(&body)).await,
        }
    }

    /// Counts a call without a usable body, and returns its response.
    fn refuse_body(
        &self,
        endpoint: PostEndpoint,
        max_bytes: usize,
        refusal: Response<Body>,
    ) -> Response<Body> {
        let (reason, wanted) = match refusal.status() {
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::SERVICE_UNAVAILABLE => {
                (InvalidReason::TooLarge, format!("at most {max_bytes} bytes"))
            }
            _ => (InvalidReason::Undecodable, "a plain and complete body".to_owned()),
        };
        let error = CallError::invalid("body", "another one", wanted).because(reason);
        let _ = self.service.count_rejected(Protocol::Http, error);
        match endpoint {
            PostEndpoint::Rls => self.invalid_rls_reply(refusal),
            _ => refusal,
        }
    }

    async fn check(&self, body: &[u8], peer: &Peer) -> Response<Body> {
        match self.decide(body, peer).await {
            Ok(reply) => response::reply(&reply),
            Err(error) => response::call_error(&error),
        }
    }

    /// Decodes the body of one check, and answers it.
    async fn decide(&self, body: &[u8], peer: &Peer) -> Result<Reply, CallError> {
        let call = match check_body::decode(body) {
            Some(call) => call,
            None => Json::read(body)
                .and_then(decode_check)
                .map_err(|error| self.service.count_rejected(Protocol::Http, error))?,
        };
        let call = identity::with_peer_identity(call, caller(peer));
        self.service.check(Protocol::Http, call).await
    }

    async fn batch(&self, body: &[u8], peer: &Peer) -> Response<Body> {
        let items = match Json::read(body).and_then(decode_batch) {
            Ok(items) => items,
            Err(error) => {
                return response::call_error(&self.service.count_rejected(Protocol::Http, error));
            }
        };
        let with_peer = |call| identity::with_peer_identity(call, caller(peer));
        let calls = items.into_iter().map(|item| decode_check(item).map(with_peer)).collect();
        let replies = self.service.check_each(Protocol::Http, calls).await;
        let replies: Vec<_> = replies
            .into_iter()
            .enumerate()
            .map(|(index, reply)| reply.map_err(|error| error.within(&format!("checks[{index}]"))))
            .collect();
        response::batch(&replies)
    }

    /// Decides a request that a proxy describes in the headers of this one.
    ///
    /// The method of this call is ignored: the method of the described request is in a header.
    async fn authorize(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let (head, body) = request.into_parts();
        drain_body(body).await;
        let format = authorize::DenialFormat::from_query(&head.uri);
        let original = match authorize::original_request(head) {
            Ok(head) => Ok(head),
            Err(DescriptionError::NotCanonical(error)) => {
                self.service.count_malformed(Protocol::Http, error.detail());
                return format.not_canonical(error);
            }
            Err(DescriptionError::Headers(error)) => Err(error),
        };
        let rules = self.service.active_rules();
        let described = match &original {
            Ok(head) => self
                .identity
                .reject_other_spellings(rules.attribute_plan(), head, true)
                .and_then(|()| self.identity.describe(rules.attribute_plan(), head, caller(peer))),
            Err(error) => Err(error.clone()),
        };
        let call = match described {
            Ok(request) => Call { request, ..Call::default() },
            Err(error) => {
                let error = self.service.count_rejected(Protocol::Http, error);
                let refusal = response::call_error(&error);
                return match self.service.on_invalid_call() {
                    OnInvalidCall::Deny => format.apply(error.status, refusal),
                    OnInvalidCall::Allow => {
                        let decision = Decision::of(RuleOutcomes::new());
                        let (at, style) = (self.service.clock().now(), HeaderStyle::default());
                        let reply = Reply { decision, at, style };
                        format.apply(reply.status(), response::reply(&reply))
                    }
                    OnInvalidCall::Error => refusal,
                };
            }
        };
        match self.service.check_with_rules(&rules, Protocol::Http, call).await {
            Ok(reply) => format.apply(reply.status(), response::reply(&reply)),
            Err(error) => response::call_error(&error),
        }
    }

    async fn rls(&self, body: &[u8]) -> Response<Body> {
        let call = match Json::read(body).and_then(rls_json::decode) {
            Ok(call) => call,
            Err(error) => {
                let error = self.service.count_rejected(Protocol::Http, error);
                return self.invalid_rls_reply(response::call_error(&error));
            }
        };
        match self.service.should_rate_limit(Protocol::Http, &call).await {
            Ok(reply) => rls_json::encode(&reply),
            Err(error) => self.invalid_rls_reply(response::call_error(&error)),
        }
    }

    /// Returns the response to an invalid call of Envoy's rate limit service: the one of `on_invalid_call`, or the error.
    fn invalid_rls_reply(&self, error: Response<Body>) -> Response<Body> {
        let reply = RlsReply::to_invalid_call(self.service.on_invalid_call());
        reply.map_or(error, |reply| rls_json::encode(&reply))
    }

    /// Reads the whole body. The permit holds its memory; small bodies need none.
    ///
    /// # Errors
    /// The response to send: the body is too long or incomplete, or too many large bodies are in memory.
    async fn read(
        &self,
        request: Request<Incoming>,
        max_bytes: usize,
    ) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Response<Body>> {
        let length = request.body().size_hint().exact();
        let length =
            length.map_or(max_bytes, |length| usize::try_from(length).unwrap_or(usize::MAX));
        // A body that is too long is rejected below and needs no memory.
        let permit = if length > MAX_UNCOUNTED_BODY_BYTES && length <= max_bytes {
            let kib = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
            let permit = self.large_bodies.try_acquire_many(kib);
            Some(permit.map_err(|_| response::overloaded("too many long bodies at once"))?)
        } else {
            None
        };
        Ok((read_body(request, max_bytes).await?, permit))
    }
}

/// Parses `{"rule": …, "client": …, "cost": …}` or `{"attributes": {…}, "cost": …}`.
pub(crate) fn decode_check(json: Json<'_>) -> Result<Call<'_>, CallError> {
    let [rule, client, attributes, cost] =
        fields(json, ["rule", "client", "attributes", "cost"], CHECK_FIELDS)?;
    if rule.is_none() && attributes.is_none() {
        return Err(CallError::invalid("body", "neither rule nor attributes", "one of them"));
    }
    let mut request = tidegate_core::Request::new();
    if let Some(attributes) = attributes {
        for (name, value) in text_pairs("attributes", attributes)? {
            if request.get(&name).is_some() {
                let path = format!("attributes.{}", truncate(&name));
                return Err(CallError::invalid(path, "it twice", "it once"));
            }
            request.insert(name, escape_text(value)).map_err(|error| match &error {
                RequestError::Value { name, .. } => {
                    CallError::rejected_attribute(&format!("attributes.{}", truncate(name)), &error)
                }
                _ => CallError::rejected_attribute("attributes", &error),
            })?;
        }
    }
    Ok(Call {
        rule: rule.map(|json| text("rule", json)).transpose()?,
        client: client.map(NamedClient::from_json).transpose()?.map(NamedClient::escaped),
        request: match cost {
            Some(json) => request.cost(whole_number("cost", &json)?),
            None => request,
        },
    })
}

/// Parses `{"checks": […]}` into its items, which are not decoded yet.
fn decode_batch(json: Json<'_>) -> Result<Vec<Json<'_>>, CallError> {
    let [checks] = fields(json, ["checks"], "checks")?;
    let wanted = || format!("a list of at most {MAX_CHECKS} checks");
    match checks {
        Some(Json::List(items)) if items.len() <= MAX_CHECKS => Ok(items),
        Some(Json::List(items)) => {
            Err(CallError::invalid("checks", format!("{} checks", items.len()), wanted())
                .because(InvalidReason::TooLarge))
        }
        Some(other) => Err(CallError::invalid("checks", other.shown(), wanted())),
        None => Err(CallError::invalid("checks", "nothing", wanted())),
    }
}

/// Parses `{"slot": …}`.
pub(crate) fn decode_slot(json: Json<'_>) -> Result<Cow<'_, str>, CallError> {
    let [slot] = fields(json, ["slot"], "slot")?;
    let slot =
        slot.ok_or_else(|| CallError::invalid("slot", "nothing", "the slot of an acquire"))?;
    text("slot", slot)
}

/// Returns the response to `/healthcheck`, the same as envoyproxy/ratelimit sends.
fn healthcheck(method: &Method, ready: bool) -> Response<Body> {
    match probe(method, None) {
        response if response.status() != StatusCode::OK => response,
        _ if ready => response::text(StatusCode::OK, "OK"),
        _ => response::text(StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

/// Returns the response to a probe: 200, or 503 with the reason.
fn probe(method: &Method, not_ready_reason: Option<String>) -> Response<Body> {
    const ALLOWED: &str = "GET, HEAD, OPTIONS";
    match *method {
        // For HEAD, hyper sends the head of this response without the body.
        Method::GET | Method::HEAD => match not_ready_reason {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates bodies that resemble calls.
    fn call_like_body() -> impl Strategy<Value = Vec<u8>> {
        let words = [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"rule\"",
            "\"client\"",
            "\"attributes\"",
            "\"cost\"",
            "\"checks\"",
            "\"slot\"",
            "\"\"",
            "\"\\ud800\"",
            "\"é\"",
            "0",
            "-1",
            "1e999",
            "18446744073709551616",
            "null",
            "true",
            " ",
        ];
        let word = prop_oneof![
            20 => proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..4),
        ];
        proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn any_body_is_decoded_or_rejected_with_a_short_error(body in call_like_body()) {
            let results = [
                Json::read(&body).and_then(decode_check).map(drop),
                Json::read(&body).and_then(decode_batch).map(drop),
                Json::read(&body).and_then(decode_slot).map(drop),
            ];
            for error in results.into_iter().filter_map(Result::err) {
                prop_assert!(error.to_string().len() < 1_000, "{}", error);
                prop_assert!(!error.path.is_empty());
            }
        }
    }
}
