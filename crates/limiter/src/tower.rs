//! A layer that limits any HTTP service of tower: axum, tonic, hyper.
//!
//! [`RateLimitLayer::new`] decides by rules, [`RateLimitLayer::per_key`] by one limit for each key. A
//! denied request never reaches the service. The response is 429, or `RESOURCE_EXHAUSTED` for gRPC, with
//! the time after which to retry.
//!
//! # Shaping
//!
//! A `leaky_bucket` rule with a `queue` delays requests, so that the service receives them at an even
//! rate. A request waits at most [`max_wait`](RateLimitLayer::max_wait). One that would wait longer is
//! denied at once and takes no place in the queue. If a request is dropped while it waits, its charges
//! are refunded; its place in the queue is freed only if it is the last.
//!
//! # Requests in flight
//!
//! A rule with `limit: 20 in flight` counts a request from the decision until the body of the response
//! has ended, has failed or is dropped. A wait for a leaky bucket is included. If the service fails or
//! panics, or the client disconnects, the slot is released at once.
//!
//! After `101 Switching Protocols` the layer has no access to the connection. Servers drop the response
//! after its head is sent, and the slot is released then. The same applies to `CONNECT` tunnels, and to
//! tasks that a handler starts and does not await. Such a handler can hold the slot longer by
//! [`InFlight::keep`].
//!
//! An example of both with axum:
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
//!   - name: gentle             # one request every 10 ms for all clients, others wait
//!     algorithm: leaky_bucket
//!     limit: 100 per second
//!     queue: 500
//!   - name: exports            # per client, at the same time
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
mod canonical;
mod decider;
mod future;
pub mod grpc;
mod in_flight;
mod local_response;
mod lookup;
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
use tidegate_core::{EncodedSlashes, HeaderStyle, Span};
use tower_layer::Layer;
use tower_service::Service;

pub use self::attributes::used_attributes;
pub use self::body::ResponseBody;
pub use self::canonical::{canonicalize, canonicalize_path};
pub use self::decider::{Decider, KeyDecider, RulesDecider};
pub use self::future::ResponseFuture;
pub use self::in_flight::{InFlight, KeptSlots};
use self::local_response::HeaderPolicy;
pub use self::lookup::Lookup;
pub use self::source::{AmbiguousValue, attributes};
use self::source::{AttributeSource, ReadAttribute};
pub use self::target::request_target;
use crate::live::LiveLimiter;
use crate::per_key::PerKey;
use crate::store::Store;

/// A layer that adds a rate limit to a service.
///
/// - A client over its limit gets 429 with a problem body, or gRPC's `RESOURCE_EXHAUSTED`.
/// - If the store fails and a rule then denies, the status is 503, or gRPC's `UNAVAILABLE`.
/// - A request in the queue of a leaky bucket waits for its turn, for at most
///   [`max_wait`](Self::max_wait). If it is dropped meanwhile, its place in the queue is freed if it is
///   the last.
/// - Slots in flight are held until the response body has ended, has failed or is dropped.
/// - Responses of the service get the rate-limit headers, unless they already have some.
///
/// The service must be `Clone`, as those of axum, tonic and hyper are: a request that waits owns the
/// instance that was ready for it.
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
pub struct RateLimitLayer<D = RulesDecider> {
    decider: D,
    header_policy: HeaderPolicy,
}

impl<S: Store> RateLimitLayer<RulesDecider<S>> {
    /// Makes a layer that decides by the rules of a limiter.
    ///
    /// Rules can use `method`, `host`, `path`, `query.*`, `header.*`, `cookie.*`, `api_key` (the
    /// `X-API-Key` header), `ip`, and attributes from [`attribute`](Self::attribute). `ip` is the
    /// [`SocketAddr`](std::net::SocketAddr) in the extensions of the request, unless [`ip`](Self::ip)
    /// sets it. If a rule uses `ip` and a request has no address, the response is 500 and the service is not
    /// called: otherwise all clients would share one bucket. Only attributes that a rule or the block list uses are read. `X-Forwarded-For` is an
    /// ordinary header: a client can send any value in it.
    ///
    /// Rules see the [canonical](tidegate_core::canonical) path, host and method; the service sees the request as it is.
    /// If an attribute that a rule uses has no canonical form, the response is 400, and the service is not called.
    ///
    /// With a [`LiveLimiter`] the rules can change while the service runs.
    #[must_use]
    pub fn new(limiter: impl Into<LiveLimiter<S>>) -> Self {
        Self { decider: RulesDecider::new(limiter.into()), header_policy: HeaderPolicy::default() }
    }

    /// Sets an attribute by a function: a new one, or another source for an attribute of the layer. For
    /// example `user`, from the extensions that an authentication layer added.
    ///
    /// If `read` returns `None` or an empty string, the request does not have the attribute. All such
    /// requests share one bucket under a rule that counts by it.
    #[must_use]
    pub fn attribute<F>(mut self, name: &str, read: F) -> Self
    where
        F: for<'r> Fn(&'r Parts) -> Option<Cow<'r, str>> + Send + Sync + 'static,
    {
        self.decider.add_attribute(name, AttributeSource::Custom(Arc::new(read)));
        self
    }

    /// Sets the treatment of `%2F` and `%5C` in paths. The default rejects them: frameworks disagree whether they separate
    /// segments. Use [`EncodedSlashes::Keep`] if the service routes by the encoded path, as axum does.
    #[must_use]
    pub fn encoded_slashes(mut self, slashes: EncodedSlashes) -> Self {
        self.decider.set_encoded_slashes(slashes);
        self
    }

    /// Sets the function that reads the client's address, for servers that store it in their own type. If a rule
    /// uses `ip` and `read` returns `None`, the response is 500. For a server without addresses, such as one on a
    /// Unix socket, set the [`attribute`](Self::attribute) `ip` instead.
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
    /// An IPv4 address mapped into IPv6 counts as IPv4. Of an IPv6 address only the first 64 bits count: a
    /// client with one address of a /64 network usually has all of them.
    #[must_use]
    pub fn ip<F>(mut self, read: F) -> Self
    where
        F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    {
        let read: ReadAttribute = Arc::new(move |head| read(head).map(source::network));
        self.decider.add_attribute("ip", AttributeSource::Address(read));
        self
    }
}

impl RateLimitLayer<KeyDecider> {
    /// Makes a layer with one limit for each key, without rules.
    ///
    /// Requests for which `key` returns `None` or an empty string share one bucket. Otherwise a client
    /// could bypass the limit by omitting its key.
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
    /// # Ok::<(), tidegate::error::QuotaError>(())
    /// ```
    #[must_use]
    pub fn per_key<F>(handle: PerKey, key: F) -> Self
    where
        F: for<'r> Fn(&'r Parts) -> Option<Cow<'r, str>> + Send + Sync + 'static,
    {
        Self {
            decider: KeyDecider::new(handle, Arc::new(key)),
            header_policy: HeaderPolicy::default(),
        }
    }
}

impl<D> RateLimitLayer<D> {
    /// Sets the style of the rate-limit headers.
    #[must_use]
    pub fn headers(mut self, style: HeaderStyle) -> Self {
        self.header_policy.style = style;
        self
    }

    /// Adds the rate-limit headers to denials only, not to responses of the service.
    #[must_use]
    pub fn headers_on_denial_only(mut self) -> Self {
        self.header_policy.on_allow = false;
        self
    }
}

impl<D: Decider> RateLimitLayer<D> {
    /// Sets the longest wait in the queue of a leaky bucket. The default is 30 seconds. A request that
    /// would wait longer is denied with `Retry-After`, and takes no place in the queue.
    ///
    /// A waiting request occupies its connection and a service that is ready for it. With [`Span::ZERO`]
    /// no request waits: one that arrives before its turn is denied.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Span) -> Self {
        self.decider.set_max_wait(max_wait);
        self
    }
}

impl<D: Decider + Clone, Svc> Layer<Svc> for RateLimitLayer<D> {
    type Service = RateLimit<Svc, D>;

    fn layer(&self, inner: Svc) -> Self::Service {
        self.decider.warn_of_missing();
        RateLimit {
            inner,
            decider: Arc::new(self.decider.clone()),
            header_policy: self.header_policy,
        }
    }
}

/// A service with a rate limit. Made by [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimit<Svc, D = RulesDecider> {
    inner: Svc,
    decider: Arc<D>,
    header_policy: HeaderPolicy,
}

impl<Svc: Clone, D> Clone for RateLimit<Svc, D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            decider: Arc::clone(&self.decider),
            header_policy: self.header_policy,
        }
    }
}

impl<Svc, D, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<Svc, D>
where
    Svc: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body<Data = Bytes>,
    D: Decider,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = Svc::Error;
    type Future = ResponseFuture<Svc, ReqBody, D>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The request takes the instance that is ready; a new clone may not be.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        ResponseFuture::new(ready, Arc::clone(&self.decider), self.header_policy, request)
    }
}
