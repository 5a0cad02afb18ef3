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
use super::gate::{Check, Entry, Gate, Later, Turn};
use super::refusal::{Answers, tell};

pin_project! {
    /// The response of the service, or a refusal.
    ///
    /// Nothing is charged before the first poll. Dropped while it waits for a leaky bucket's slot,
    /// it gives back what was charged; dropped later, the charge stands.
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
        Held { turn: Turn, request: Option<Request<B>>, told: Vec<Header> },
        /// Passed on.
        Passed { #[pin] call: Fut, told: Vec<Header> },
    }
}

impl<Svc: Service<Request<B>>, B, G> ResponseFuture<Svc, B, G> {
    pub(super) fn new(inner: Svc, gate: Arc<G>, answers: Answers, request: Request<B>) -> Self {
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
    G: Gate,
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
                StateProjection::Held { turn, request, told } => {
                    ready!(turn.as_mut().poll(cx));
                    let (request, told) = (taken(request), std::mem::take(told));
                    let call = this.inner.call(request);
                    this.state.set(State::Passed { call, told });
                    continue;
                }
                StateProjection::Passed { call, told } => {
                    let mut response = ready!(call.poll(cx))?;
                    tell(response.headers_mut(), std::mem::take(told));
                    return Poll::Ready(Ok(response.map(ResponseBody::service)));
                }
            };
            match enter(&head, check, *this.answers) {
                Err(refusal) => return Poll::Ready(Ok(refusal.map(ResponseBody::refusal))),
                Ok((told, Some(turn))) => {
                    let request = Some(Request::from_parts(head, body));
                    this.state.set(State::Held { turn, request, told });
                }
                Ok((told, None)) => {
                    let call = this.inner.call(Request::from_parts(head, body));
                    this.state.set(State::Passed { call, told });
                }
            }
        }
    }
}

/// What to tell the client and how long to hold it, or what to refuse it with.
#[allow(clippy::result_large_err, reason = "a refusal is an answer, handed on at once")]
fn enter(
    head: &Parts,
    check: Check,
    answers: Answers,
) -> Result<(Vec<Header>, Option<Turn>), Response<Bytes>> {
    let Entry { decision, at, turn } = check.map_err(|unreadable| unreadable.response(head))?;
    match answers.denied(head, &decision, at) {
        Some(refusal) => Err(refusal),
        None => Ok((answers.allowed(&decision, at), turn)),
    }
}

fn taken<T>(place: &mut Option<T>) -> T {
    place.take().expect("a future is not polled after it is done")
}
