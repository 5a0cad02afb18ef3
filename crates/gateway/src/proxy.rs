//! The path of one request: route, rules, queue, upstream, response.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Uri, Version};
use parking_lot::Mutex;
use tidegate_core::{Reply, Span};
use tidegate_net::http::response;
use tidegate_net::listener::Peer;
use tidegate_service::call::Protocol;
use tidegate_service::identity::{Caller, Identity};
use tidegate_service::service::{AdmittedRequest, Service};

use crate::client_stream::DisconnectWatch;
use crate::config::ForwardPath;
use crate::exchange::{ExchangeParties, InFlightPlaces};
use crate::forward::{RequestForwarder, UpstreamError, UpstreamInFlight, UpstreamResponse};
use crate::head::{self, CleanedRequest, ClientHeaderPolicy, ForwardedClient, HeadError};
use crate::local_response::{self, ResponseFormat};
use crate::pace::{PaceLimit, ResponseProgress};
use crate::proxied_requests::{ProxiedRequest, ProxiedRequests};
use crate::request_body::RequestBody;
use crate::response_body::ResponseBody;
use crate::route::{Route, RouteTable};
use crate::tunnel::UpgradeTunnel;
use crate::upstream::RequestOutcome;

/// Interval at which a queued request checks that its client is still connected, if its body is too long to be
/// buffered.
const DISCONNECT_CHECK_INTERVAL: Span = Span::SECOND;

/// The `Connection` header of the last HTTP/1 response of a connection.
const CONNECTION_CLOSE: HeaderValue = HeaderValue::from_static("close");

/// Checks requests against the rules and forwards those that are admitted.
#[derive(Debug)]
pub(crate) struct RequestProxy {
    pub(crate) service: Arc<Service>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) routes: Arc<RouteTable>,
    pub(crate) forwarder: RequestForwarder,
    /// Longest time that a request may wait in a queue.
    pub(crate) max_wait: Span,
    /// Adds the rate-limit headers of the decision to the request that the upstream gets.
    pub(crate) upstream_headers: bool,
    pub(crate) pace_limit: Arc<PaceLimit>,
}

/// State that the requests of one client connection share.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) peer: Peer,
    pub(crate) client: ForwardedClient,
    pub(crate) header_policy: ClientHeaderPolicy,
    pub(crate) http2: bool,
    pub(crate) requests: Arc<ProxiedRequests>,
    pub(crate) disconnect: Arc<DisconnectWatch>,
    /// The tunnel to run after HTTP has ended on this connection. Set by an upgrade.
    pub(crate) tunnel: Mutex<Option<UpgradeTunnel<RequestGuards>>>,
}

/// A request of a client, in any version of HTTP.
pub(crate) struct ReceivedRequest {
    pub(crate) head: Parts,
    pub(crate) body: RequestBody,
    /// Set if hyper has not read the request, so that its response may have no trailers.
    pub(crate) is_direct: bool,
}

/// Resources that a request holds until its response ends. Dropping them releases them, so every kind of end is the
/// same.
#[derive(Debug)]
pub(crate) struct RequestGuards {
    _in_flight: UpstreamInFlight,
    _request: ProxiedRequest,
}

/// The decision of the rules, or the response to a request that they can't be checked for.
type CheckResult = Result<(Reply, AdmittedRequest), Response<Full<Bytes>>>;

impl RequestProxy {
    /// Returns the response to one request from hyper. `progress` gets the progress of its body.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        context: &ConnectionContext,
        progress: Arc<ResponseProgress>,
    ) -> Response<ResponseBody<RequestGuards>> {
        let (head, body) = request.into_parts();
        let body = RequestBody::new(body, &self.pace_limit);
        let request = ReceivedRequest { head, body, is_direct: false };
        self.respond(request, context, progress).await
    }

    /// Returns the response to one request. `progress` gets the progress of its body.
    pub(crate) async fn respond(
        &self,
        request: ReceivedRequest,
        context: &ConnectionContext,
        progress: Arc<ResponseProgress>,
    ) -> Response<ResponseBody<RequestGuards>> {
        let tracked = context.requests.begin();
        let format = ResponseFormat::of(&request.head);
        let mut response = match self.proxy(request, context, tracked, progress, &format).await {
            Ok(response) => response,
            Err(local) => format.convert(local).map(ResponseBody::Local),
        };
        let is_last =
            context.requests.activity.is_closing() || self.service.readiness().is_draining();
        if is_last && !context.http2 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, CONNECTION_CLOSE);
        }
        response
    }

    /// Checks and forwards a request, and returns the upstream's response or a denial.
    ///
    /// # Errors
    /// A response of the gateway: the request is invalid, matches no route, or got no response from the upstream.
    async fn proxy(
        &self,
        request: ReceivedRequest,
        context: &ConnectionContext,
        mut tracked: ProxiedRequest,
        progress: Arc<ResponseProgress>,
        format: &ResponseFormat,
    ) -> Result<Response<ResponseBody<RequestGuards>>, Response<Full<Bytes>>> {
        let ReceivedRequest { mut head, mut body, is_direct } = request;
        let invalid_head = |error: HeadError| {
            self.service.count_malformed(Protocol::Gateway, error.detail);
            local_response::invalid_head(error)
        };
        let original_target = head::normalize_request(&mut head).map_err(invalid_head)?;
        let client_upgrade = head.extensions.remove::<OnUpgrade>();
        let cleaned = head::clean_request(&mut head, context.header_policy, |headers| {
            self.identity.warn_if_ignored(context.peer.address.ip(), headers);
        });
        let route = self.routes.find(&head).ok_or_else(local_response::no_route)?;
        head::check_encoded_slashes(&head, route.encoded_slashes).map_err(invalid_head)?;
        let (reply, mut admitted) = match self.check_now(&head, cleaned, route, context) {
            Some(result) => result?,
            // Boxed: a request that is decided at once does not carry the size of this future.
            None => Box::pin(self.check(&head, cleaned, route, context)).await?,
        };
        if !reply.decision.is_allowed() {
            return Ok(format.denial(&reply).map(ResponseBody::Local));
        }
        if admitted.waits() {
            Box::pin(self.wait_in_queue(&admitted, &mut body, &context.disconnect)).await?;
        }
        // Returning before `serve` refunds the request: a full upstream is not the client's fault.
        let permit = route.upstream.acquire_permit(route.priority).ok_or_else(|| {
            route.upstream.count_outcome(RequestOutcome::Shed);
            local_response::upstream_full()
        })?;
        admitted.serve();
        if let (ForwardPath::Original, Some(target)) = (route.forward_path, original_target) {
            head.uri = Uri::from(target);
        }
        head::prepare_for_upstream(&mut head, &context.client);
        if self.upstream_headers {
            local_response::set_headers(&mut head.headers, reply.headers());
        }
        let (client, upstream) = (&*context.requests, &*route.upstream);
        let parties = ExchangeParties { client, upstream, is_direct };
        let places = InFlightPlaces { admitted, permit };
        let sent = self.forwarder.send(Request::from_parts(head, body), places, parties).await;
        let UpstreamResponse { mut response, pooled, in_flight } = sent.map_err(|error| {
            route.upstream.count_outcome(match error {
                UpstreamError::NoSocket => RequestOutcome::Shed,
                _ => RequestOutcome::Failed,
            });
            let mut local = local_response::upstream_error(error);
            local_response::add_headers_if_absent(local.headers_mut(), &reply);
            local
        })?;
        tracked.on_response();
        route.upstream.count_outcome(RequestOutcome::of(response.status()));
        // The version on the upstream connection does not apply to the client connection.
        *response.version_mut() = Version::HTTP_11;
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let server_upgrade = switched.then(|| hyper::upgrade::on(&mut response));
        head::clean_response(response.headers_mut(), switched);
        local_response::add_headers_if_absent(response.headers_mut(), &reply);
        let guards = RequestGuards { _in_flight: in_flight, _request: tracked };
        if let Some(server) = server_upgrade {
            let (Some(client), true) = (client_upgrade, cleaned.has_upgrade) else {
                let detail = "the upstream switched protocols without a request for it";
                return Err(response::problem(StatusCode::BAD_GATEWAY, detail));
            };
            *context.tunnel.lock() = Some(UpgradeTunnel { client, server, guards });
            return Ok(response.map(|_| ResponseBody::Local(Full::default())));
        }
        Ok(response.map(|body| ResponseBody::from_upstream(body, pooled, guards, progress)))
    }

    /// Waits until an admitted request may be sent. The body is buffered meanwhile, so that hyper notices a client
    /// that disconnects, and drops this future.
    ///
    /// # Errors
    /// The response to a body that ended early: the client has disconnected.
    async fn wait_in_queue(
        &self,
        admitted: &AdmittedRequest,
        body: &mut RequestBody,
        disconnect: &DisconnectWatch,
    ) -> Result<(), Response<Full<Bytes>>> {
        let disconnected = || local_response::upstream_error(UpstreamError::BadBody);
        let mut waiting = pin!(admitted.wait());
        let is_complete = tokio::select! {
            biased;
            () = &mut waiting => return Ok(()),
            is_complete = body.buffer() => is_complete.map_err(|_| disconnected())?,
        };
        if is_complete {
            waiting.await;
            return Ok(());
        }
        let clock = &self.forwarder.clock;
        loop {
            tokio::select! {
                biased;
                () = &mut waiting => break,
                () = clock.sleep_until(clock.now() + DISCONNECT_CHECK_INTERVAL) => {
                    if disconnect.is_disconnected() {
                        return Err(disconnected());
                    }
                }
            }
        }
        disconnect.disable();
        Ok(())
    }

    /// Checks the rules if that needs no waiting; `None` otherwise.
    fn check_now(
        &self,
        head: &Parts,
        cleaned: CleanedRequest,
        route: &Route,
        context: &ConnectionContext,
    ) -> Option<CheckResult> {
        if !self.service.is_synchronous() {
            return None;
        }
        let check = pin!(self.check(head, cleaned, route, context));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Checks the rules that match a request.
    ///
    /// # Errors
    /// The response to a request that lacks a valid identity.
    async fn check(
        &self,
        head: &Parts,
        cleaned: CleanedRequest,
        route: &Route,
        context: &ConnectionContext,
    ) -> CheckResult {
        let rules = self.service.active_rules();
        let plan = rules.attribute_plan();
        let caller = Caller {
            route: Some((&route.name, &route.upstream.name)),
            ..Caller::new(context.peer.address.ip(), context.peer.service.as_deref())
        };
        let request = self
            .identity
            .reject_other_spellings(plan, head, cleaned.has_underscores)
            .and_then(|()| self.identity.describe(plan, head, caller))
            .map_err(|error| {
                response::call_error(&self.service.count_rejected(Protocol::Gateway, error))
            })?;
        Ok(self.service.admit(&rules, Protocol::Gateway, &request, self.max_wait).await)
    }
}
