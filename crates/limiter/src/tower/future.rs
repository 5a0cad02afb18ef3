//! One request on its way: checked, perhaps held until its turn, then passed on or refused.

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
use super::gate::{Check, Decider, Entry, Later, Queue, Way};
use super::in_flight::Slots;
use super::refusal::{Answers, tell};

pin_project! {
    /// The response of the service, or a refusal.
    ///
    /// Nothing is charged before the first poll. Dropped while it waits for a leaky bucket's slot,
    /// it gives back what was charged; dropped later, the charge stands, and only slots in flight are
    /// released.
    pub struct ResponseFuture<Svc: Service<Request<B>>, B, G> {
        inner: Svc,
        gate: Arc<G>,
        answers: Answers,
        #[pin]
        state: State<B, Svc::Future>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<B, Fut> {
        /// Nothing done yet.
        New { request: Option<Request<B>> },
        /// A store was asked that takes its time.
        Asked { later: Later, body: Option<B> },
        /// Admitted, at a later instant.
        Queued { queue: Queue, request: Option<Request<B>>, told: Vec<Header> },
        /// Passed on.
        Passed { #[pin] call: Fut, told: Vec<Header>, slots: Slots },
    }
}

impl<Svc: Service<Request<B>>, B, G> ResponseFuture<Svc, B, G> {
    pub(crate) fn new(inner: Svc, gate: Arc<G>, answers: Answers, request: Request<B>) -> Self {
        Self { inner, gate, answers, state: State::New { request: Some(request) } }
    }
}

impl<Svc: Service<Request<B>>, B, G> fmt::Debug for ResponseFuture<Svc, B, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<Svc, B, G, ResBody> Future for ResponseFuture<Svc, B, G>
where
    Svc: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body<Data = Bytes>,
    G: Decider,
{
    type Output = Result<Response<ResponseBody<ResBody>>, Svc::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (head, body, check) = match this.state.as_mut().project() {
                StateProjection::New { request } => {
                    let (head, body) = taken(request).into_parts();
                    match this.gate.check_now(&head) {
                        Some(check) => (head, body, check),
                        None => {
                            let later = this.gate.check_later(head);
                            this.state.set(State::Asked { later, body: Some(body) });
                            continue;
                        }
                    }
                }
                StateProjection::Asked { later, body } => {
                    let (head, check) = ready!(later.as_mut().poll(cx));
                    (head, taken(body), check)
                }
                StateProjection::Queued { queue, request, told } => {
                    let slots = ready!(queue.as_mut().poll(cx));
                    let (request, told) = (taken(request), std::mem::take(told));
                    let call = pass(this.inner, request, &slots);
                    this.state.set(State::Passed { call, told, slots });
                    continue;
                }
                StateProjection::Passed { call, told, slots } => {
                    let answer = ready!(call.poll(cx));
                    // Taken out first: a service that failed is done with them.
                    let slots = std::mem::take(slots);
                    let mut response = answer?;
                    tell(response.headers_mut(), std::mem::take(told));
                    let status = response.status();
                    let body = |body| ResponseBody::service(body, status, slots);
                    return Poll::Ready(Ok(response.map(body)));
                }
            };
            match enter(&head, check, *this.answers) {
                Err(refusal) => return Poll::Ready(Ok(refusal.map(ResponseBody::refusal))),
                Ok((told, Way::Queue(queue))) => {
                    let request = Some(Request::from_parts(head, body));
                    this.state.set(State::Queued { queue, request, told });
                }
                Ok((told, Way::Open(slots))) => {
                    let call = pass(this.inner, Request::from_parts(head, body), &slots);
                    this.state.set(State::Passed { call, told, slots });
                }
            }
        }
    }
}

/// Calls the service, which may keep what the request holds.
fn pass<Svc, B>(inner: &mut Svc, mut request: Request<B>, slots: &Slots) -> Svc::Future
where
    Svc: Service<Request<B>>,
{
    if let Some(in_flight) = slots.in_flight() {
        request.extensions_mut().insert(in_flight);
    }
    inner.call(request)
}

/// What to tell the client and how it gets in, or what to refuse it with.
#[allow(clippy::result_large_err, reason = "a refusal is an answer, handed on at once")]
fn enter(
    head: &Parts,
    check: Check,
    answers: Answers,
) -> Result<(Vec<Header>, Way), Response<Bytes>> {
    let Entry { decision, at, way } = check.map_err(|unreadable| unreadable.response(head))?;
    match answers.denied(head, &decision, at) {
        Some(refusal) => Err(refusal),
        None => Ok((answers.allowed(&decision, at), way)),
    }
}

fn taken<T>(place: &mut Option<T>) -> T {
    place.take().expect("a future is not polled after it is done")
}
