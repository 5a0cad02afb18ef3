//! Clients on the block list, in front of a service.

use std::net::SocketAddr;

use http::{Request, StatusCode};
use tidegate::block::{BlockOrigin, Entry, Reason};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, ManualClock, Span};
use tower::{Layer, ServiceExt};

use super::{Answer, Hello, header, rules, text};

/// A limiter whose rules mention nothing of a client, and the name of one who is blocked.
fn blocking(time: &ManualClock, attribute: &str, value: &str) -> Limiter {
    let rules = rules("  - {name: all, limit: 100 per minute}");
    let limiter = Limiter::builder().rules(rules).clock(time.clock()).build();
    let (now, blocks) = (time.clock().now(), limiter.blocks());
    let subject = blocks.client(attribute, value).unwrap();
    let (reason, origin) = (Reason::default(), BlockOrigin::Operator);
    blocks
        .add(Entry { subject, until: now + Span::MINUTE, reason, origin, added: now }, now)
        .unwrap();
    limiter
}

#[tokio::test]
async fn a_blocked_address_is_refused_though_no_rule_mentions_addresses() {
    let time = ManualClock::default();
    let (hello, limiter) = (Hello::default(), blocking(&time, "ip", "192.0.2.0/24"));
    let service = RateLimitLayer::new(limiter).layer(hello.clone());
    let ask = async |peer: &str| -> Answer {
        let peer: SocketAddr = peer.parse().unwrap();
        let request = Request::get("/").extension(peer).body(()).unwrap();
        service.clone().oneshot(request).await.unwrap()
    };
    let refused = ask("192.0.2.7:5000").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&refused, "retry-after"), Some("60"));
    assert_eq!(header(&refused, "x-ratelimit-limit"), None);
    assert_eq!(
        text(refused).await,
        r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal usage detected","status":429,"detail":"blocked, try again in 60 seconds"}"#
    );
    assert_eq!(ask("[::ffff:192.0.2.7]:5000").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("192.0.3.7:5000").await.status(), StatusCode::OK);
    assert_eq!(hello.served(), 1);
    time.advance(Span::MINUTE);
    assert_eq!(ask("192.0.2.7:5000").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_client_is_blocked_by_what_only_the_application_knows() {
    let limiter = blocking(&ManualClock::default(), "user", "mallory");
    let layer = RateLimitLayer::new(limiter)
        .attribute("user", |head| Some((*head.extensions.get::<&'static str>()?).into()));
    let service = layer.layer(Hello::default());
    for (user, status) in [("mallory", 429), ("alice", 200)] {
        let request = Request::get("/").extension(user).body(()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn a_grpc_client_is_told_in_milliseconds() {
    let limiter = blocking(&ManualClock::default(), "api_key", "k1");
    let service = RateLimitLayer::new(limiter).layer(Hello::default());
    let request = Request::post("/a.B/C").header("content-type", "application/grpc");
    let request = request.header("x-api-key", "k1").body(()).unwrap();
    let refused = service.oneshot(request).await.unwrap();
    assert_eq!(header(&refused, "grpc-status"), Some("8"));
    assert_eq!(header(&refused, "grpc-retry-pushback-ms"), Some("60000"));
}
