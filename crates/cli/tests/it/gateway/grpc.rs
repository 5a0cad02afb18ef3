//! gRPC through the gateway: a second Tidegate is the service behind it.

use tidegate_testkit::wait_for;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use super::Gateway;
use crate::grpc_caller::{Caller, user};
use crate::kit::Server;

const SERVICE_RULES: &str = "rules: [{name: api, per: [user], limit: 5 per 10 days}]";

#[test]
fn calls_streams_and_errors_pass() {
    let service = Server::with_rules(SERVICE_RULES);
    let gateway = Gateway::before(&format!("h2c://{}", service.listener("grpc")));
    let caller = Caller::at(gateway.address());
    for left in [Some(4), Some(3)] {
        assert_eq!(caller.left("any", user("alice")), left);
    }
    // An error is a status in the trailers.
    let unknown = HealthCheckRequest { service: "no.such.Service".to_owned() };
    let mut health = HealthClient::new(caller.channel.clone());
    let status = caller.runtime.block_on(health.check(unknown)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    // The first message of a stream comes long before its end.
    let asked = HealthCheckRequest { service: String::new() };
    let mut watched = caller.runtime.block_on(health.watch(asked)).unwrap().into_inner();
    let message = caller.runtime.block_on(watched.message()).unwrap().unwrap();
    assert_eq!(message.status(), ServingStatus::Serving);
    // Messages both ways, on a call that both sides keep open.
    let (ask, asked) = tokio::sync::mpsc::channel(1);
    let asked = futures_util::stream::unfold(asked, |mut asked| async {
        asked.recv().await.map(|message| (message, asked))
    });
    let mut client = ServerReflectionClient::new(caller.channel.clone());
    let list = || {
        let message_request = Some(MessageRequest::ListServices(String::new()));
        ServerReflectionRequest { host: String::new(), message_request }
    };
    caller.runtime.block_on(async {
        ask.send(list()).await.unwrap();
        let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
        assert!(answers.message().await.unwrap().is_some());
        ask.send(list()).await.unwrap();
        assert!(answers.message().await.unwrap().is_some());
        drop(ask);
        assert!(answers.message().await.unwrap().is_none());
    });
}

#[test]
fn a_denied_call_is_an_error_that_grpc_understands() {
    let service = Server::with_rules(SERVICE_RULES);
    let rules = "rules: [{name: api, per: [ip], limit: 1 per 10 days}]";
    let gateway = Gateway::with_rules(&format!("h2c://{}", service.listener("grpc")), rules);
    let caller = Caller::at(gateway.address());
    assert_eq!(caller.left("any", user("alice")), Some(4));
    let mut health = HealthClient::new(caller.channel.clone());
    let asked = HealthCheckRequest { service: String::new() };
    let status = caller.runtime.block_on(health.check(asked)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    // As the tower layer denies: the detail is the message, and retry policies learn when to try again.
    assert!(status.message().starts_with("over the limit of \"api\", try again in"), "{status:?}");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap();
    assert!(pushback.parse::<u64>().unwrap() > 1_000, "{status:?}");
    assert!(status.metadata().contains_key("retry-after"), "{status:?}");
}

#[test]
fn a_service_that_leaves_ends_its_streams() {
    let mut service = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\ndrain: {{delay: 0s}}\nrules: {{inline: {}}}\n",
        &SERVICE_RULES[7..]
    ));
    let gateway = Gateway::before(&format!("h2c://{}", service.listener("grpc")));
    let caller = Caller::at(gateway.address());
    let mut health = HealthClient::new(caller.channel.clone());
    let asked = HealthCheckRequest { service: String::new() };
    let mut watched = caller.runtime.block_on(health.watch(asked.clone())).unwrap().into_inner();
    assert!(caller.runtime.block_on(watched.message()).unwrap().is_some());
    service.signal("TERM");
    service.wait();
    while let Ok(Some(_)) = caller.runtime.block_on(watched.message()) {}
    wait_for("the service to be missed", || {
        caller.runtime.block_on(health.check(asked.clone())).is_err().then_some(())
    });
}
