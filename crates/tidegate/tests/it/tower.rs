//! The tower layer as services and clients see it.

mod blocked;
mod changing;
mod endings;
mod examples;
mod grpc;
mod http;
mod in_flight;
mod stores;
mod waiting;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tidegate::RuleSet;
use tidegate::tower::ResponseBody;
use tower::Service;

/// The body that the services of these tests answer with.
type Text = Full<bytes::Bytes>;
type Answer = Response<ResponseBody<Text>>;

/// A service that answers "hello", and counts how often it did.
#[derive(Clone, Default)]
struct Hello {
    served: Arc<AtomicUsize>,
}

impl Hello {
    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }
}

impl<B> Service<Request<B>> for Hello {
    type Response = Response<Text>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Text>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        self.served.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::new(Text::from("hello"))))
    }
}

fn rules(yaml: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", &format!("rules:\n{yaml}")).unwrap()
}

/// A request to `/` by the client with this key.
fn by(key: &str) -> Request<()> {
    Request::get("/").header("x-api-key", key).body(()).unwrap()
}

fn header<'r>(response: &'r Answer, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

async fn text(response: Answer) -> String {
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}
