//! The future of one request: checked, queued if needed, then forwarded or denied.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::Header;
use tower_service::Service;

use super::body::ResponseBody;
use super::decider::{BoxedCheck, CheckOutcome, CheckResult, Decider, QueueWait, RequestStart};
use super::in_flight::HeldSlots;
use super::local_response::{HeaderPolicy, add_headers_if_absent};

pin_project! {
    /// The response of the service, or a denial.
    ///
    /// Nothing is charged before the first poll. If the future is dropped while it waits in the queue of
    /// a leaky bucket, its charges are refunded, of that queue only the last slot. If it is dropped later,
    /// the charges stay, and only slots in flight are released.
    pub struct ResponseFuture<Svc: Service<Request<B>>, B, D> {
        inner: Svc,
        decider: Arc<D>,
        header_policy: HeaderPolicy,
        #[pin]
        state: ResponseState<B, Svc::Future>,
    }
}

pin_project! {
    #[project = ResponseStateProjection]
    enum ResponseState<B, Fut> {
        /// Not polled yet.
        New { request: Option<Request<B>> },
        /// The store has not replied yet.
        Checking { check: BoxedCheck, body: Option<B> },
        /// Admitted, and waiting in the queue of a leaky bucket.
        Queued { wait: QueueWait, request: Option<Request<B>>, headers: Vec<Header> },
        /// Forwarded to the service.
        Forwarded { #[pin] call: Fut, headers: Vec<Header>, slots: HeldSlots },
    }
}

impl<Svc: Service<Request<B>>, B, D> ResponseFuture<Svc, B, D> {
    pub(crate) fn new(
        inner: Svc,
        decider: Arc<D>,
        header_policy: HeaderPolicy,
        request: Request<B>,
    ) -> Self {
        Self { inner, decider, header_policy, state: ResponseState::New { request: Some(request) } }
    }
}

impl<Svc: Service<Request<B>>, B, D> fmt::Debug for ResponseFuture<Svc, B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<Svc, B, D, ResBody> Future for ResponseFuture<Svc, B, D>
where
    Svc: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body<Data = Bytes>,
    D: Decider,
{
    type Output = Result<Response<ResponseBody<ResBody>>, Svc::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (head, body, check) = match this.state.as_mut().project() {
                ResponseStateProjection::New { request } => {
                    let (head, body) = take(request).into_parts();
                    match this.decider.check_now(&head) {
                        Some(check) => (head, body, check),
                        None => {
                            let check = this.decider.check_async(head);
                            this.state.set(ResponseState::Checking { check, body: Some(body) });
                            continue;
                        }
                    }
                }
                ResponseStateProjection::Checking { check, body } => {
                    let (head, check) = ready!(check.as_mut().poll(cx));
                    (head, take(body), check)
                }
                ResponseStateProjection::Queued { wait, request, headers } => {
                    let slots = ready!(wait.as_mut().poll(cx));
                    let (request, headers) = (take(request), std::mem::take(headers));
                    let call = call_service(this.inner, request, &slots);
                    this.state.set(ResponseState::Forwarded { call, headers, slots });
                    continue;
                }
                ResponseStateProjection::Forwarded { call, headers, slots } => {
                    let result = ready!(call.poll(cx));
                    // Taken before the `?`, so that an error of the service releases the slots.
                    let slots = std::mem::take(slots);
                    let mut response = result?;
                    add_headers_if_absent(response.headers_mut(), std::mem::take(headers));
                    let status = response.status();
                    let body = |body| ResponseBody::service(body, status, slots);
                    return Poll::Ready(Ok(response.map(body)));
                }
            };
            match evaluate(&head, check, *this.header_policy) {
                Err(response) => return Poll::Ready(Ok(response.map(ResponseBody::local))),
                Ok((headers, RequestStart::AfterWait(wait))) => {
                    let request = Some(Request::from_parts(head, body));
                    this.state.set(ResponseState::Queued { wait, request, headers });
                }
                Ok((headers, RequestStart::Now(slots))) => {
                    let call = call_service(this.inner, Request::from_parts(head, body), &slots);
                    this.state.set(ResponseState::Forwarded { call, headers, slots });
                }
            }
        }
    }
}

/// Calls the service. The request has an [`InFlight`](super::InFlight) if it holds slots.
fn call_service<Svc, B>(inner: &mut Svc, mut request: Request<B>, slots: &HeldSlots) -> Svc::Future
where
    Svc: Service<Request<B>>,
{
    if let Some(in_flight) = slots.in_flight() {
        request.extensions_mut().insert(in_flight);
    }
    inner.call(request)
}

/// Returns the headers and the start of an allowed request, or the response to a denied one.
#[allow(
    clippy::result_large_err,
    reason = "the response is returned to the client at once, not propagated"
)]
fn evaluate(
    head: &Parts,
    check: CheckResult,
    header_policy: HeaderPolicy,
) -> Result<(Vec<Header>, RequestStart), Response<Bytes>> {
    let CheckOutcome { decision, at, start } = check.map_err(|error| error.response(head))?;
    match header_policy.denial(head, &decision, at) {
        Some(response) => Err(response),
        None => Ok((header_policy.service_headers(&decision, at), start)),
    }
}

fn take<T>(value: &mut Option<T>) -> T {
    value.take().expect("a future is not polled after it is done")
}
