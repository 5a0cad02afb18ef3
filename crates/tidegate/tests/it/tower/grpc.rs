//! The layer in a tonic server, called by a real gRPC client.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::tower::{Decider, RateLimitLayer};
use tidegate::{Limiter, ManualClock};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::rules;
use super::test_stores::UnavailableStore;

/// Starts a health service behind the layer, and returns a client of it.
async fn start_health_service<G: Decider + Clone>(
    layer: RateLimitLayer<G>,
) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (_reporter, health) = tonic_health::server::health_reporter();
        let server = Server::builder().layer(layer).add_service(health);
        server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
    });
    connect_client(address).await
}

pub(crate) async fn connect_client(server: SocketAddr) -> HealthClient<Channel> {
    let server = Endpoint::from_shared(format!("http://{server}")).unwrap();
    HealthClient::new(server.connect().await.unwrap())
}

/// Calls the health service with this API key, and returns the response metadata or the status.
pub(crate) async fn call(
    health: &mut HealthClient<Channel>,
    key: &'static str,
) -> Result<tonic::metadata::MetadataMap, Status> {
    let mut request = Request::new(HealthCheckRequest { service: String::new() });
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    Ok(health.check(request).await?.metadata().clone())
}

#[tokio::test]
async fn client_over_its_limit_gets_resource_exhausted() {
    let rules = rules(
        "  - name: health
    match: {path: /grpc.health.v1.Health/Check, method: POST}
    per: [api_key]
    limit: 2 per minute",
    );
    let limiter = Limiter::builder().rules(rules).clock(ManualClock::default().clock()).build();
    let mut health = start_health_service(RateLimitLayer::new(limiter)).await;
    for left in ["1", "0"] {
        let metadata = call(&mut health, "alice").await.unwrap();
        assert_eq!(metadata.get("x-ratelimit-remaining").unwrap(), left);
    }
    let status = call(&mut health, "alice").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), r#"over the limit of "health", try again in 30 seconds"#);
    assert_eq!(status.metadata().get("retry-after").unwrap(), "30");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "30000");
    assert_eq!(status.metadata().get("ratelimit").unwrap(), r#""health";r=0;t=30"#);
    call(&mut health, "bob").await.unwrap();
}

#[tokio::test]
async fn store_failure_of_a_denying_rule_is_unavailable() {
    let rules = rules("  - {name: api, limit: 9 per minute, on_store_failure: deny}");
    let limiter = Limiter::builder().rules(rules).store(Arc::new(UnavailableStore)).build();
    let mut health = start_health_service(RateLimitLayer::new(limiter)).await;
    let status = call(&mut health, "alice").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get("retry-after").unwrap(), "1");
}

#[tokio::test]
async fn attribute_above_the_maximum_length_is_an_invalid_argument() {
    let rules = rules("  - {name: api, per: [header.user], limit: 9 per minute}");
    let limiter = Limiter::builder().rules(rules).build();
    let mut health = start_health_service(RateLimitLayer::new(limiter)).await;
    let mut request = Request::new(HealthCheckRequest { service: String::new() });
    request.metadata_mut().insert("user", "x".repeat(9000).parse().unwrap());
    let status = health.check(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}
