//! Limits in front of any tower service that speaks HTTP: axum, tonic, hyper.
//!
//! [`RateLimitLayer::new`] decides by rules, [`RateLimitLayer::per_key`] by one limit for each key. A
//! request that may not pass never reaches the service behind: it is answered with 429, or for gRPC
//! with `RESOURCE_EXHAUSTED`, and told when to come back.
//!
//! # Shaping
//!
//! A `leaky_bucket` rule with a `queue` holds requests back, so that what is behind is reached at an
//! even pace. A request waits at most [`max_wait`](RateLimitLayer::max_wait); one that would have to
//! wait longer is refused at once and takes no place. A request that is dropped while it waits gives
//! back what it was charged, of the queue only the last place.
//!
//! # Requests in flight
//!
//! A rule with `limit: 20 in flight` counts requests while they last: from the decision, through the
//! wait for a leaky bucket if there is one, until the body of the response has ended, has failed or is
//! dropped. When the service fails or panics, or the caller goes away, the slot is free at once.
//!
//! After `101 Switching Protocols` the layer sees the response and not the connection: servers drop the
//! response once its head is sent, and the slot is free then. The same goes for tunnels by `CONNECT`, and
//! for work that a handler starts and leaves behind. Who goes on can keep the slot by
//! [`InFlight::keep`].
//!
//! Both with axum:
//!
//! ```
//! use axum::Router;
//! use axum::body::Body;
//! use axum::http::{Request, StatusCode};
//! use axum::routing::get;
//! use tidegate::tower::RateLimitLayer;
//! use tidegate::{Limiter, RuleSet, Span};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = RuleSet::parse("rules.yaml", "
//! rules:
//!   - name: gentle             # one every 10 ms to all of us, the others wait
//!     algorithm: leaky_bucket
//!     limit: 100 per second
//!     queue: 500
//!   - name: exports            # each client, at any instant
//!     match: {path: /export}
//!     per: [api_key]
//!     limit: 2 in flight
//! ")?;
//! let limits = RateLimitLayer::new(Limiter::builder().rules(rules).build())
//!     .max_wait(Span::from_secs(2));
//! let app = Router::new().route("/export", get(|| async { "a,b\n1,2\n" })).layer(limits);
//!
//! let export = || Request::get("/export").header("x-api-key", "k1").body(Body::empty());
//! let first = app.clone().oneshot(export()?).await?;
//! let second = app.clone().oneshot(export()?).await?;
//! let third = app.clone().oneshot(export()?).await?;
//! assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
//! axum::body::to_bytes(first.into_body(), usize::MAX).await?;
//! assert_eq!(app.oneshot(export()?).await?.status(), StatusCode::OK);
//! # drop(second);
//! # Ok(()) }
//! ```

mod attributes;
mod body;
mod future;
mod gate;
pub mod grpc;
mod in_flight;
mod lookup;
mod refusal;
mod source;
mod target;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tidegate_core::{HeaderStyle, Span};
use tower_layer::Layer;
use tower_service::Service;

pub use self::attributes::used_attributes;
pub use self::body::ResponseBody;
pub use self::future::ResponseFuture;
pub use self::gate::{Decider, KeyDecider, RulesDecider};
pub use self::in_flight::{InFlight, KeptSlots};
pub use self::lookup::Lookup;
use self::refusal::Answers;
pub use self::source::attributes;
pub use self::target::request_target;
use crate::live::LiveLimiter;
use crate::per_key::PerKey;
use crate::store::Store;

/// Puts a limit in front of a service.
///
/// - A client over its share gets 429 with a problem body, or gRPC's `RESOURCE_EXHAUSTED`.
/// - A rule that can't be decided and denies then gives 503, or gRPC's `UNAVAILABLE`.
/// - A request that a leaky bucket tells to wait is held until its slot, if that begins within
///   [`max_wait`](Self::max_wait). One that is dropped meanwhile gives its slot back if it is the last.
/// - Slots in flight are held until the response's body is over, however that ends.
/// - Every other response gains the rate-limit headers, unless it already has some.
///
/// The service must be `Clone`, as those of axum, tonic and hyper are: a request that waits keeps the
/// one that was ready for it.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use tidegate::tower::RateLimitLayer;
/// use tidegate::{Limiter, RuleSet};
/// use tower::{Layer, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = RuleSet::parse("rules.yaml", "
/// rules:
///   - name: api
///     match: {path: '/v1/**'}
///     per: [api_key]
///     limit: 2 per minute
/// ")?;
/// let layer = RateLimitLayer::new(Limiter::builder().rules(rules).build());
///
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new("hello".to_owned()))
/// }));
/// let request = || Request::get("/v1/orders").header("x-api-key", "k1").body(String::new());
/// for left in ["1", "0"] {
///     let response = service.clone().oneshot(request()?).await?;
///     assert_eq!(response.headers()["x-ratelimit-remaining"], left);
/// }
/// let response = service.oneshot(request()?).await?;
/// assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert_eq!(response.headers()["retry-after"], "30");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer<G = RulesDecider> {
    gate: G,
    answers: Answers,
}

impl<S: Store> RateLimitLayer<RulesDecider<S>> {
    /// Decides by the limiter's rules.
    ///
    /// Of a request, rules see `method`, `host`, `path`, `query.*`, `header.*`, `cookie.*`, `api_key`
    /// (the `X-API-Key` header), `ip` where the server left a [`SocketAddr`](std::net::SocketAddr)
    /// among the request's extensions, and what [`ip`](Self::ip) and [`attribute`](Self::attribute)
    /// add. Only what some rule mentions, or somebody is blocked by, is read. `X-Forwarded-For` is a header as any other: whoever
    /// sends it may have made it up.
    ///
    /// A [`LiveLimiter`] lets the rules change while the service runs.
    #[must_use]
    pub fn new(limiter: impl Into<LiveLimiter<S>>) -> Self {
        Self { gate: RulesDecider::new(limiter.into()), answers: Answers::default() }
    }

    /// Tells rules an attribute that the layer can't find itself, or finds elsewhere: `user` from
    /// what an authentication layer left in the extensions, say.
    ///
    /// A request for which `read` answers `None`, or an empty text, does not have the attribute. If
    /// its rule counts by it, all such requests share one bucket.
    #[must_use]
    pub fn attribute<F>(mut self, name: &str, read: F) -> Self
    where
        F: for<'r> Fn(&'r Parts) -> Option<Cow<'r, str>> + Send + Sync + 'static,
    {
        self.gate.attribute(name, Arc::new(read));
        self
    }

    /// Tells rules the client's address as `ip`, for servers that keep it in a type of their own.
    ///
    /// With axum's `into_make_service_with_connect_info::<SocketAddr>()`:
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use axum::extract::ConnectInfo;
    /// # use tidegate::{Limiter, tower::RateLimitLayer};
    /// # let limiter = Limiter::builder().build();
    /// RateLimitLayer::new(limiter)
    ///     .ip(|request| Some(request.extensions.get::<ConnectInfo<SocketAddr>>()?.ip()));
    /// ```
    ///
    /// An IPv4 address is itself, also when it came mapped into IPv6. Of an IPv6 address only the
    /// first 64 bits are kept: who has one address of a network usually has all of them.
    #[must_use]
    pub fn ip<F>(self, read: F) -> Self
    where
        F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    {
        self.attribute("ip", move |head| read(head).map(source::network))
    }
}

impl RateLimitLayer<KeyDecider> {
    /// Limits each key on its own, without rules.
    ///
    /// Requests for which `key` answers `None`, or an empty text, share one bucket: a limit that a
    /// client escapes by leaving out its name is none.
    ///
    /// ```
    /// use tidegate::tower::RateLimitLayer;
    /// use tidegate::{Limiter, Quota};
    ///
    /// let api = Limiter::per_key(Quota::per_second(100).burst(200))?;
    /// let layer = RateLimitLayer::per_key(api, |request| {
    ///     Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    /// });
    /// # let _ = layer;
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn per_key<F>(handle: PerKey, key: F) -> Self
    where
        F: for<'r> Fn(&'r Parts) -> Option<Cow<'r, str>> + Send + Sync + 'static,
    {
        Self { gate: KeyDecider::new(handle, Arc::new(key)), answers: Answers::default() }
    }
}

impl<G> RateLimitLayer<G> {
    /// Which headers tell a client how it stands.
    #[must_use]
    pub fn headers(mut self, style: HeaderStyle) -> Self {
        self.answers.style = style;
        self
    }

    /// Leaves the responses of the service as they are; only refusals carry headers.
    #[must_use]
    pub fn headers_on_denial_only(mut self) -> Self {
        self.answers.on_allow = false;
        self
    }
}

impl<G: Decider> RateLimitLayer<G> {
    /// Refuses who would have to wait longer for its turn under a leaky bucket; 30 seconds unless this
    /// says otherwise. Refused requests are told when to come back, and take no place in the queue.
    ///
    /// Whoever waits keeps its connection, its request and a service that is ready for it: with
    /// [`Span::ZERO`] nobody does, and what comes too early is refused.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Span) -> Self {
        self.gate.wait_at_most(max_wait);
        self
    }
}

impl<G: Decider + Clone, Svc> Layer<Svc> for RateLimitLayer<G> {
    type Service = RateLimit<Svc, G>;

    fn layer(&self, inner: Svc) -> Self::Service {
        self.gate.warn_of_gaps();
        RateLimit { inner, gate: Arc::new(self.gate.clone()), answers: self.answers }
    }
}

/// A service behind a limit. Made by [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimit<Svc, G = RulesDecider> {
    inner: Svc,
    gate: Arc<G>,
    answers: Answers,
}

impl<Svc: Clone, G> Clone for RateLimit<Svc, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: Arc::clone(&self.gate), answers: self.answers }
    }
}

impl<Svc, G, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<Svc, G>
where
    Svc: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body<Data = Bytes>,
    G: Decider,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = Svc::Error;
    type Future = ResponseFuture<Svc, ReqBody, G>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The one that said it is ready goes with the request; a clone may not be.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        ResponseFuture::new(ready, Arc::clone(&self.gate), self.answers, request)
    }
}
