//! Rules that change behind a service.

use http::{Request, StatusCode};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, LiveLimiter, ManualClock};
use tower::{Layer, ServiceExt};

use super::{Hello, rules};

#[tokio::test]
async fn new_rules_see_attributes_that_the_old_ones_did_not_mention() {
    let time = ManualClock::default();
    let first = rules("  - {name: all, limit: 100 per minute}");
    let limiter = Limiter::builder().rules(first).clock(time.clock()).build();
    let limiter = LiveLimiter::new(limiter);
    let layer = RateLimitLayer::new(limiter.clone())
        .attribute("user", |head| Some((*head.extensions.get::<&'static str>()?).into()));
    let service = layer.layer(Hello::default());
    let ask = async |user: &'static str, path: &str| {
        let request = Request::get(path).extension(user).body(()).unwrap();
        service.clone().oneshot(request).await.unwrap().status()
    };
    for _ in 0..2 {
        assert_eq!(ask("mallory", "/a").await, StatusCode::OK);
    }
    limiter.replace(rules("  - {name: user, match: {path: /a}, per: [user], limit: 1 per minute}"));
    assert_eq!(ask("mallory", "/a").await, StatusCode::OK);
    assert_eq!(ask("mallory", "/a").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("mallory", "/b").await, StatusCode::OK);
    assert_eq!(ask("alice", "/a").await, StatusCode::OK);
    limiter.replace(rules("  - {name: all, limit: 100 per minute}"));
    assert_eq!(ask("mallory", "/a").await, StatusCode::OK);
}
