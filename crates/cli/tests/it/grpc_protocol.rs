//! The gRPC listener itself: health, reflection, TLS, invalid input and shutdown.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use prost::Message;
use tidegate_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code as RlsCode;
use tidegate_proto::tidegate::v1::{CheckRequest, CheckResponse};
use tidegate_testkit::{Certificates, Port, Tool, lacking};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::grpc_caller::{GrpcCaller, descriptor, user};
use crate::kit::{Folder, Server, exit_code_and_output};

const RULES: &str = "rules: [{name: api, per: [user], limit: 5 per 10 days}]";
const RLS: &str = "envoy.service.ratelimit.v3.RateLimitService";

fn health(caller: &GrpcCaller, service: &str) -> Result<ServingStatus, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let response =
        caller.runtime.block_on(HealthClient::new(caller.channel.clone()).check(request));
    response.map(|response| response.into_inner().status())
}

#[test]
fn health_is_reported_for_each_service() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    for service in ["", RLS, "tidegate.v1.RateLimiter", "ratelimit"] {
        assert_eq!(health(&caller, service).unwrap(), ServingStatus::Serving, "{service}");
    }
    let unknown = health(&caller, "no.such.Service").unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[test]
fn node_that_cannot_reach_its_store_is_not_serving() {
    let port = Port::free();
    let redis = format!("redis://127.0.0.1:{}", port.number());
    let server = Server::with_arguments(&["--http", "127.0.0.1:0", "--redis", &redis]);
    assert_eq!(health(&GrpcCaller::connect(&server), RLS).unwrap(), ServingStatus::NotServing);
}

#[test]
fn health_watch_reports_shutdown_and_does_not_delay_it() {
    let config = format!(
        "listen: {{http: 127.0.0.1:0}}\ndrain: {{delay: 0s}}\nrules: {{inline: {}}}\n",
        &RULES[7..]
    );
    let mut server = Server::with_config(&config);
    let caller = GrpcCaller::connect(&server);
    let mut client = HealthClient::new(caller.channel.clone());
    let request = HealthCheckRequest { service: String::new() };
    let mut watched = caller.runtime.block_on(client.watch(request)).unwrap().into_inner();
    let mut next =
        || -> Option<HealthCheckResponse> { caller.runtime.block_on(watched.message()).unwrap() };
    assert_eq!(next().unwrap().status(), ServingStatus::Serving);
    server.signal("TERM");
    assert_eq!(next().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(next(), None);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn call_in_flight_is_answered_before_shutdown() {
    let config = format!(
        "listen: {{http: 127.0.0.1:0}}\ndrain: {{delay: 0s}}\nrules: {{inline: {}}}\n",
        &RULES[7..]
    );
    let mut server = Server::with_config(&config);
    let caller = GrpcCaller::connect(&server);
    let (release, released) = tokio::sync::oneshot::channel::<Vec<u8>>();
    let channel = caller.channel.clone();
    let in_flight = caller.runtime.spawn(async move {
        let mut client = tonic::client::Grpc::<Channel>::new(channel);
        client.ready().await.unwrap();
        let message = futures_util::stream::once(async { released.await.unwrap() });
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        client.client_streaming(Request::new(message), path, bytes_codec::BytesCodec).await
    });
    // This call is sent after the head of the first call, so the server has the head when this one is answered.
    assert_eq!(health(&caller, "").unwrap(), ServingStatus::Serving);
    server.signal("TERM");
    server.wait_for_log("stop signal");
    release.send(Vec::new()).unwrap();
    let response = caller.runtime.block_on(in_flight).unwrap().unwrap().into_inner();
    // An encoded response with the status NOT_SERVING.
    assert_eq!(response, [0x08, 2]);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn alpn_selects_http2() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let file = |path: &Path| path.to_str().unwrap().to_owned();
    let server = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\ntls: {{certificate: {}, key: {}, listeners: [grpc]}}\n",
        file(&certificates.certificate),
        file(&certificates.key)
    ));
    let url = format!("https://{}/grpc.health.v1.Health/Check", server.listener("grpc"));
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "30", "--output", "/dev/null"]);
    curl.args(["--write-out", "%{http_code} %{http_version}", "--http2"]);
    curl.args(["--cacert", &file(&certificates.ca), "-H", "content-type: application/grpc"]);
    // An empty gRPC message: flag "not compressed" and length 0.
    curl.args(["--data-binary", &format!("@{}", folder.file("message", "\0\0\0\0\0")), &url]);
    let (code, response, errors) = exit_code_and_output(curl.output().unwrap());
    assert_eq!((code, response.as_str()), (0, "200 2"), "{errors}");
}

#[test]
fn client_certificate_sets_the_service_attribute() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let file = |path: &Path| path.to_str().unwrap().to_owned();
    let server = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}
tls: {{certificate: {}, key: {}, client_ca: {}, listeners: [grpc]}}
rules: {{inline: [{{name: a, per: [service], limit: 1 per 10 days}}]}}",
        file(&certificates.certificate),
        file(&certificates.key),
        file(&certificates.ca)
    ));
    let url = format!("https://{}/tidegate.v1.RateLimiter/Check", server.listener("grpc"));
    let attributes = [("path".to_owned(), "/orders".to_owned())].into();
    let request = CheckRequest { attributes, ..CheckRequest::default() }.encode_to_vec();
    let length = u32::try_from(request.len()).unwrap().to_be_bytes();
    let message = Path::new(folder.path()).join("message");
    std::fs::write(&message, [&[0][..], &length, &request].concat()).unwrap();
    let allowed = |name: &str| {
        let (certificate, key) = certificates.client(name, &format!("URI:spiffe://shop/{name}"));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--http2"]);
        curl.args(["--cacert", &file(&certificates.ca), "--cert", &file(&certificate)]);
        curl.args(["--key", &file(&key), "-H", "content-type: application/grpc"]);
        let output =
            curl.arg("--data-binary").arg(format!("@{}", file(&message))).arg(&url).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        CheckResponse::decode(output.stdout.get(5..).expect(&errors)).unwrap().allowed
    };
    assert_eq!(["orders", "orders", "billing"].map(allowed), [true, false, true]);
}

#[test]
fn reflection_lists_and_describes_the_services() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let reflect = |request: MessageRequest| -> MessageResponse {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        let mut client = ServerReflectionClient::new(caller.channel.clone());
        let response: ServerReflectionResponse = caller
            .runtime
            .block_on(async {
                let request = single_message_stream(request);
                client.server_reflection_info(request).await.unwrap().into_inner().message().await
            })
            .unwrap()
            .unwrap();
        response.message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) =
        reflect(MessageRequest::ListServices(String::new()))
    else {
        panic!("no list")
    };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            RLS,
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "tidegate.v1.RateLimiter"
        ]
    );
    for symbol in [RLS, "tidegate.v1.CheckRequest", "google.protobuf.Struct"] {
        let found = reflect(MessageRequest::FileContainingSymbol(symbol.to_owned()));
        assert!(matches!(found, MessageResponse::FileDescriptorResponse(_)), "{symbol}");
    }
}

/// Returns a stream of one message.
fn single_message_stream<T: Send + 'static>(
    message: T,
) -> impl futures_util::Stream<Item = T> + Send {
    futures_util::stream::iter([message])
}

/// Sends a message without encoding it, to any path.
fn send_raw(caller: &GrpcCaller, path: &'static str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::<Channel>::new(caller.channel.clone());
    caller.runtime.block_on(async {
        client.ready().await.unwrap();
        let path = PathAndQuery::from_static(path);
        let codec = bytes_codec::BytesCodec;
        client.unary(Request::new(message), path, codec).await.map(tonic::Response::into_inner)
    })
}

/// A codec that neither encodes nor decodes messages.
mod bytes_codec {
    use bytes::{Buf, BufMut};
    use tonic::Status;
    use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

    pub(crate) struct BytesCodec;

    impl Codec for BytesCodec {
        type Encode = Vec<u8>;
        type Decode = Vec<u8>;
        type Encoder = Self;
        type Decoder = Self;

        fn encoder(&mut self) -> Self {
            Self
        }

        fn decoder(&mut self) -> Self {
            Self
        }
    }

    impl Encoder for BytesCodec {
        type Item = Vec<u8>;
        type Error = Status;

        fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
            buffer.put_slice(&item);
            Ok(())
        }
    }

    impl Decoder for BytesCodec {
        type Item = Vec<u8>;
        type Error = Status;

        fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
            Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
        }
    }
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[test]
fn invalid_or_oversized_message_is_rejected_and_the_connection_stays_open() {
    const CHECK: &str = "/tidegate.v1.RateLimiter/Check";
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    for message in [vec![0xff; 64], vec![0; 2 * 1024 * 1024]] {
        let response = send_raw(&caller, SHOULD_RATE_LIMIT, message).unwrap();
        let response = RateLimitResponse::decode(response.as_slice()).unwrap();
        assert_eq!(response.overall_code(), RlsCode::OverLimit);
    }
    let status = send_raw(&caller, CHECK, vec![0xff; 64]).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let status = send_raw(&caller, CHECK, vec![0; 2 * 1024 * 1024]).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for (reason, count) in [("undecodable", 2), ("too_large", 2)] {
        let line = format!("{{listener=\"grpc\",reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let status = send_raw(&caller, "/no.such.Service/Method", Vec::new()).unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    // A long message within the limit arrives in several frames.
    let long = "x".repeat(900 * 1024);
    assert_eq!(caller.remaining("edge", descriptor(&[("user", &long)])), Some(4));
    assert_eq!(caller.remaining("edge", descriptor(&[("user", &long)])), Some(3));
    assert_eq!(caller.remaining("edge", user("alice")), Some(4));
}

#[test]
fn invalid_http2_connection_is_closed_and_others_are_served() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let oversized = [preface, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &[0; 4_096]].concat();
    let garbage: [&[u8]; 4] = [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &[0xff; 4_096],
        &[preface, &[0x41; 4_096]].concat(),
        &oversized,
    ];
    for bytes in garbage {
        let mut stream = TcpStream::connect(server.listener("grpc")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server may close the connection during the write.
        let _ = stream.write_all(bytes);
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        assert!(caller.rate_limit_one("edge", user("someone")).current_limit.is_some());
    }
}

#[test]
fn concurrent_calls_on_one_connection_are_all_answered() {
    let server = Server::with_rules(
        "rules: [{name: api, per: [user], limit: 100 per 10 days, algorithm: fixed_window}]",
    );
    let caller = GrpcCaller::connect(&server);
    let calls = (0..500).map(|_| {
        let mut client = tidegate_proto::tidegate::v1::rate_limiter_client::RateLimiterClient::new(
            caller.channel.clone(),
        );
        async move {
            let request = CheckRequest {
                attributes: [("user".to_owned(), "alice".to_owned())].into(),
                ..Default::default()
            };
            client.check(request).await.unwrap().into_inner().allowed
        }
    });
    let answers = caller.runtime.block_on(futures_util::future::join_all(calls));
    assert_eq!(answers.iter().filter(|allowed| **allowed).count(), 100);
}
