//! Clients on the block list, in front of a service.

use std::net::SocketAddr;

use http::{Request, StatusCode};
use tidegate::block::{BlockAction, BlockOrigin, Entry, Reason};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, ManualClock, Span};
use tower::{Layer, ServiceExt};

use super::{HelloService, LimitedResponse, header, read_body, rules};

/// Returns a limiter that blocks a client, with rules that use none of its attributes.
fn limiter_with_block(time: &ManualClock, attribute: &str, value: &str) -> Limiter {
    let rules = rules("  - {name: all, limit: 100 per minute}");
    let limiter = Limiter::builder().rules(rules).clock(time.clock()).build();
    let (now, blocks) = (time.clock().now(), limiter.blocks());
    let subject = blocks.client(attribute, value).unwrap();
    let (reason, origin) = (Reason::default(), BlockOrigin::Operator);
    blocks
        .add(
            Entry {
                subject,
                action: BlockAction::Block,
                until: now + Span::MINUTE,
                reason,
                origin,
                added: now,
            },
            now,
        )
        .unwrap();
    limiter
}

#[tokio::test]
async fn blocked_address_is_denied_without_a_rule_by_address() {
    let time = ManualClock::default();
    let (hello, limiter) =
        (HelloService::default(), limiter_with_block(&time, "ip", "192.0.2.0/24"));
    let service = RateLimitLayer::new(limiter).layer(hello.clone());
    let send = async |peer: &str| -> LimitedResponse {
        let peer: SocketAddr = peer.parse().unwrap();
        let request = Request::get("/").extension(peer).body(()).unwrap();
        service.clone().oneshot(request).await.unwrap()
    };
    let denied_response = send("192.0.2.7:5000").await;
    assert_eq!(denied_response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied_response, "retry-after"), Some("60"));
    assert_eq!(header(&denied_response, "x-ratelimit-limit"), None);
    assert_eq!(
        read_body(denied_response).await,
        r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal usage detected","status":429,"detail":"blocked, try again in 60 seconds"}"#
    );
    assert_eq!(send("[::ffff:192.0.2.7]:5000").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send("192.0.3.7:5000").await.status(), StatusCode::OK);
    assert_eq!(hello.served(), 1);
    time.advance(Span::MINUTE);
    assert_eq!(send("192.0.2.7:5000").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn block_applies_to_an_attribute_set_by_the_application() {
    let limiter = limiter_with_block(&ManualClock::default(), "user", "mallory");
    let layer = RateLimitLayer::new(limiter)
        .attribute("user", |head| Some((*head.extensions.get::<&'static str>()?).into()));
    let service = layer.layer(HelloService::default());
    for (user, status) in [("mallory", 429), ("alice", 200)] {
        let request = Request::get("/").extension(user).body(()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn blocked_grpc_client_gets_a_pushback_in_milliseconds() {
    let limiter = limiter_with_block(&ManualClock::default(), "api_key", "k1");
    let service = RateLimitLayer::new(limiter).layer(HelloService::default());
    let request = Request::post("/a.B/C").header("content-type", "application/grpc");
    let request = request.header("x-api-key", "k1").body(()).unwrap();
    let denied_response = service.oneshot(request).await.unwrap();
    assert_eq!(header(&denied_response, "grpc-status"), Some("8"));
    assert_eq!(header(&denied_response, "grpc-retry-pushback-ms"), Some("60000"));
}
