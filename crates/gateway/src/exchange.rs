//! One request on an upstream connection, which continues without its client.
//!
//! An upstream may work on a request that it has received, whether or not the client is still connected. A request that
//! counts toward a limit in flight therefore keeps its slots until the upstream has responded, has closed the connection,
//! or the response timeout has passed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tidegate_core::Span;
use tidegate_limiter::Clock;
use tidegate_service::service::AdmittedRequest;
use tokio::runtime::Handle;

use crate::pool::UpstreamConn;
use crate::proxied_requests::ProxiedRequests;
use crate::upstream::{CapacityPermit, RequestOutcome, ServerInFlight, Upstream};

/// The places of a request in limits in flight: those of its rules and that of its upstream.
#[derive(Debug)]
pub(crate) struct InFlightPlaces {
    pub(crate) admitted: AdmittedRequest,
    pub(crate) permit: CapacityPermit,
}

impl InFlightPlaces {
    /// Returns whether the request counts toward a limit.
    pub(crate) fn are_limited(&self) -> bool {
        self.permit.is_limited() || self.admitted.holds_slots()
    }
}

/// The origin and the target of a request, which count it if it is abandoned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeParties<'a> {
    pub(crate) client: &'a ProxiedRequests,
    pub(crate) upstream: &'a Upstream,
    /// Set if the request may be sent on a connection without hyper.
    pub(crate) is_direct: bool,
}

/// A request that was passed to an upstream connection, and the wait for its response.
///
/// If it is dropped before the end, the client has disconnected or has reset its stream. A request in a limit then
/// continues in a task of its own, which holds its places. Any other request is cancelled.
#[derive(Debug)]
pub(crate) struct Exchange<'a, F: SentRequest> {
    /// `None` once the request has ended.
    running: Option<RunningExchange<F>>,
    parties: ExchangeParties<'a>,
    clock: &'a Clock,
    timeout: Span,
}

/// The wait for the result of an attempt, with the connection that it used, unless the response has it.
pub(crate) trait SentRequest:
    Future<Output = (Self::Attempt, Option<UpstreamConn>)> + Send + 'static
{
    type Attempt: Send;
}

impl<A: Send, F: Future<Output = (A, Option<UpstreamConn>)> + Send + 'static> SentRequest for F {
    type Attempt = A;
}

/// A request under way, with the resources that it holds.
#[derive(Debug)]
pub(crate) struct RunningExchange<F> {
    pub(crate) sent: Pin<Box<F>>,
    pub(crate) places: InFlightPlaces,
    pub(crate) server: ServerInFlight,
}

impl<'a, F: SentRequest> Exchange<'a, F> {
    /// Starts to wait for a response. If its body ends early, the server has `timeout` to close the connection.
    pub(crate) fn new(
        running: RunningExchange<F>,
        parties: ExchangeParties<'a>,
        clock: &'a Clock,
        timeout: Span,
    ) -> Self {
        Self { running: Some(running), parties, clock, timeout }
    }
}

impl<F: SentRequest> Future for Exchange<'_, F> {
    type Output = (F::Output, InFlightPlaces, ServerInFlight);

    /// Must not be polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(running) = &mut self.running else { return Poll::Pending };
        let output = ready!(running.sent.as_mut().poll(context));
        match self.running.take() {
            Some(running) => Poll::Ready((output, running.places, running.server)),
            None => Poll::Pending,
        }
    }
}

impl<F: SentRequest> Drop for Exchange<'_, F> {
    fn drop(&mut self) {
        let Some(RunningExchange { sent, places, server }) = self.running.take() else { return };
        let ExchangeParties { client, upstream, .. } = self.parties;
        upstream.count_outcome(RequestOutcome::Abandoned);
        client.count_abandoned();
        let (clock, timeout) = (self.clock.clone(), self.timeout);
        hold(places, async move {
            let (attempt, conn) = sent.await;
            drop(attempt);
            if let Some(conn) = conn {
                conn.server_ended(&clock, timeout).await;
            }
            drop(server);
        });
    }
}

/// Holds the places of a request with a body that ended early until the server has responded or closed the connection.
pub(crate) fn hold_until_server_ended(
    conn: UpstreamConn,
    places: InFlightPlaces,
    clock: Clock,
    timeout: Span,
) {
    hold(places, async move { conn.server_ended(&clock, timeout).await });
}

/// Holds the places of a request in a task of its own until the upstream has ended it. Places without a limit are
/// released at once, and the request is cancelled.
fn hold(places: InFlightPlaces, ended: impl Future<Output = ()> + Send + 'static) {
    if !places.are_limited() {
        return;
    }
    // Without a runtime the process is ending.
    if let Ok(runtime) = Handle::try_current() {
        let abandoned = places.permit.count_abandoned();
        runtime.spawn(async move {
            ended.await;
            drop((places, abandoned));
        });
    }
}
