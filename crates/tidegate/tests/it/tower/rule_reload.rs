//! Rules that are replaced behind a running service.

use http::{Request, StatusCode};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, LiveLimiter, ManualClock};
use tower::{Layer, ServiceExt};

use super::{HelloService, rules};

#[tokio::test]
async fn new_rules_read_attributes_that_the_old_rules_did_not_use() {
    let time = ManualClock::default();
    let first = rules("  - {name: all, limit: 100 per minute}");
    let limiter = Limiter::builder().rules(first).clock(time.clock()).build();
    let limiter = LiveLimiter::new(limiter);
    let layer = RateLimitLayer::new(limiter.clone())
        .attribute("user", |head| Some((*head.extensions.get::<&'static str>()?).into()));
    let service = layer.layer(HelloService::default());
    let send = async |user: &'static str, path: &str| {
        let request = Request::get(path).extension(user).body(()).unwrap();
        service.clone().oneshot(request).await.unwrap().status()
    };
    for _ in 0..2 {
        assert_eq!(send("mallory", "/a").await, StatusCode::OK);
    }
    limiter.replace(rules("  - {name: user, match: {path: /a}, per: [user], limit: 1 per minute}"));
    assert_eq!(send("mallory", "/a").await, StatusCode::OK);
    assert_eq!(send("mallory", "/a").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send("mallory", "/b").await, StatusCode::OK);
    assert_eq!(send("alice", "/a").await, StatusCode::OK);
    limiter.replace(rules("  - {name: all, limit: 100 per minute}"));
    assert_eq!(send("mallory", "/a").await, StatusCode::OK);
}
