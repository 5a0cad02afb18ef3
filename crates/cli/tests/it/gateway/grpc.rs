//! gRPC through the gateway, with a second Tidegate as the upstream service.

use tidegate_testkit::wait_for;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use super::GatewayServer;
use crate::grpc_caller::{GrpcCaller, user};
use crate::kit::Server;

const SERVICE_RULES: &str = "rules: [{name: api, per: [user], limit: 5 per 10 days}]";

#[test]
fn grpc_calls_streams_and_errors_pass_through() {
    let service = Server::with_rules(SERVICE_RULES);
    let gateway = GatewayServer::forward_to(&format!("h2c://{}", service.listener("grpc")));
    let caller = GrpcCaller::connect_to(gateway.address());
    for remaining in [Some(4), Some(3)] {
        assert_eq!(caller.remaining("any", user("alice")), remaining);
    }
    // A gRPC error is a status in the trailers.
    let unknown = HealthCheckRequest { service: "no.such.Service".to_owned() };
    let mut health = HealthClient::new(caller.channel.clone());
    let status = caller.runtime.block_on(health.check(unknown)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    // The first message of a server stream arrives while the stream is open.
    let request = HealthCheckRequest { service: String::new() };
    let mut watched = caller.runtime.block_on(health.watch(request)).unwrap().into_inner();
    let message = caller.runtime.block_on(watched.message()).unwrap().unwrap();
    assert_eq!(message.status(), ServingStatus::Serving);
    // A bidirectional stream carries messages in both directions.
    let (requests, receiver) = tokio::sync::mpsc::channel(1);
    let request_stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|message| (message, receiver))
    });
    let mut client = ServerReflectionClient::new(caller.channel.clone());
    let list = || {
        let message_request = Some(MessageRequest::ListServices(String::new()));
        ServerReflectionRequest { host: String::new(), message_request }
    };
    caller.runtime.block_on(async {
        requests.send(list()).await.unwrap();
        let mut answers = client.server_reflection_info(request_stream).await.unwrap().into_inner();
        assert!(answers.message().await.unwrap().is_some());
        requests.send(list()).await.unwrap();
        assert!(answers.message().await.unwrap().is_some());
        drop(requests);
        assert!(answers.message().await.unwrap().is_none());
    });
}

#[test]
fn denied_call_is_resource_exhausted_with_retry_pushback() {
    let service = Server::with_rules(SERVICE_RULES);
    let rules = "rules: [{name: api, per: [ip], limit: 1 per 10 days}]";
    let gateway = GatewayServer::with_rules(&format!("h2c://{}", service.listener("grpc")), rules);
    let caller = GrpcCaller::connect_to(gateway.address());
    assert_eq!(caller.remaining("any", user("alice")), Some(4));
    let mut health = HealthClient::new(caller.channel.clone());
    let request = HealthCheckRequest { service: String::new() };
    let status = caller.runtime.block_on(health.check(request)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    // Same as the tower layer: the message is the detail, and the pushback gives retry policies the delay.
    assert!(status.message().starts_with("over the limit of \"api\", try again in"), "{status:?}");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap();
    assert!(pushback.parse::<u64>().unwrap() > 1_000, "{status:?}");
    assert!(status.metadata().contains_key("retry-after"), "{status:?}");
}

#[test]
fn stopped_service_ends_its_streams() {
    let mut service = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\ndrain: {{delay: 0s}}\nrules: {{inline: {}}}\n",
        &SERVICE_RULES[7..]
    ));
    let gateway = GatewayServer::forward_to(&format!("h2c://{}", service.listener("grpc")));
    let caller = GrpcCaller::connect_to(gateway.address());
    let mut health = HealthClient::new(caller.channel.clone());
    let request = HealthCheckRequest { service: String::new() };
    let mut watched = caller.runtime.block_on(health.watch(request.clone())).unwrap().into_inner();
    assert!(caller.runtime.block_on(watched.message()).unwrap().is_some());
    service.signal("TERM");
    service.wait();
    while let Ok(Some(_)) = caller.runtime.block_on(watched.message()) {}
    wait_for("calls fail without the service", || {
        caller.runtime.block_on(health.check(request.clone())).is_err().then_some(())
    });
}
