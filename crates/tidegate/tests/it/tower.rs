//! The tower layer, tested through services and clients.

mod blocked_clients;
mod examples;
mod grpc;
mod http;
mod in_flight;
mod queueing;
mod request_endings;
mod rule_reload;
mod test_stores;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tidegate::RuleSet;
use tidegate::tower::ResponseBody;
use tower::Service;

/// The response body of the services in these tests.
type TextBody = Full<bytes::Bytes>;
type LimitedResponse = Response<ResponseBody<TextBody>>;

/// A service that returns "hello" and counts its calls.
#[derive(Clone, Default)]
struct HelloService {
    served: Arc<AtomicUsize>,
}

impl HelloService {
    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }
}

impl<B> Service<Request<B>> for HelloService {
    type Response = Response<TextBody>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<TextBody>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        self.served.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::new(TextBody::from("hello"))))
    }
}

fn rules(yaml: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", &format!("rules:\n{yaml}")).unwrap()
}

/// Returns a request to `/` with this API key.
fn request_by(key: &str) -> Request<()> {
    Request::get("/").header("x-api-key", key).body(()).unwrap()
}

fn header<'r>(response: &'r LimitedResponse, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

async fn read_body(response: LimitedResponse) -> String {
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}
