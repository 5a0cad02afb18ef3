use std::future::pending;
use std::net::SocketAddr;

use http_body_util::BodyExt;
use tidegate_core::HeaderStyle;
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_net::listener::{ConnectionLimits, Listener, advance_past};
use tidegate_proto::tidegate::v1::CheckRequest;
use tidegate_rules::RuleSet;
use tidegate_service::identity::Caller;
use tidegate_service::store::AnyStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;

use super::*;

/// The HTTP/2 client preface and an empty SETTINGS frame.
const PREFACE_AND_SETTINGS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A gRPC server without rules, on a manual clock.
struct GrpcServer {
    address: SocketAddr,
    time: ManualClock,
    _close: watch::Sender<bool>,
}

impl GrpcServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let time = ManualClock::default();
        let (clock, (close, closing)) = (time.clock(), watch::channel(false));
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(clock.clone()))));
        let limiter = Limiter::builder().clock(clock.clone()).store(store).build();
        let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
        let grpc = Arc::new(GrpcApi::new(service, clock.clone(), closing.clone()));
        let (timeouts, limits) = (timeouts(), Arc::new(ConnectionLimits::new("grpc", 8, None)));
        let listener =
            Listener { listener, tls: None, timeouts, clock, closing, limits, shared: false };
        tokio::spawn(listener.serve(grpc));
        Self { address, time, _close: close }
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }
}

async fn check_health(channel: &Channel) {
    let request = HealthCheckRequest::default();
    HealthClient::new(channel.clone()).check(request).await.unwrap();
}

/// Reads until the stream has sent these bytes.
async fn read_until(stream: &mut TcpStream, wanted: &[u8]) {
    let mut read = Vec::new();
    while !read.windows(wanted.len()).any(|found| found == wanted) {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "closed");
    }
}

#[tokio::test]
async fn connection_without_preface_is_closed_and_one_with_preface_may_be_idle() {
    let server = GrpcServer::start().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut ready = TcpStream::connect(server.address).await.unwrap();
    ready.write_all(PREFACE_AND_SETTINGS).await.unwrap();
    // The acknowledgement of its settings.
    read_until(&mut ready, b"\0\0\0\x04\x01\0\0\0\0").await;
    // Accepted last: after its reply, the timeouts of all connections are active.
    let channel = server.channel().await;
    check_health(&channel).await;
    advance_past(&server.time, timeouts().head).await;
    let mut rest = Vec::new();
    // A reset also ends the connection.
    let _ = silent.read_to_end(&mut rest).await;
    check_health(&channel).await;
    // A ping and its acknowledgement.
    ready.write_all(b"\0\0\x08\x06\0\0\0\0\0tidegate").await.unwrap();
    read_until(&mut ready, b"\0\0\x08\x06\x01\0\0\0\0tidegate").await;
}

#[tokio::test]
async fn incomplete_message_times_out_and_the_connection_stays_open() {
    let server = GrpcServer::start().await;
    let channel = server.channel().await;
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let waiting = tokio::spawn(async move {
        let never = futures_util::stream::once(pending::<HealthCheckRequest>());
        let path = PathAndQuery::from_static(health::CHECK);
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        client.client_streaming(tonic::Request::new(never), path, codec).await
    });
    tokio::task::yield_now().await;
    // The head of the streaming call was sent before this call.
    check_health(&channel).await;
    server.time.advance(MESSAGE_TIMEOUT);
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    check_health(&channel).await;
}

#[tokio::test]
async fn unsent_acquire_response_releases_its_slot() {
    let rules = "rules: [{name: exports, limit: 1 in flight, hold: 1h}]";
    let store = AnyStore::Memory(Arc::new(MemoryStore::new(ManualClock::default().clock())));
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::new(store)).build();
    let service = Service::new(limiter, HeaderStyle::default());
    let caller = Caller { address: [127, 0, 0, 1].into(), service: None, route: None };
    let message = CheckRequest { rule: "exports".to_owned(), ..CheckRequest::default() };
    let free = async || check::peek(&service, caller, message.clone()).await.unwrap().remaining;
    for sent in [false, false, true] {
        let mut response = slots::acquire(&service, caller, &message).await.unwrap();
        assert_eq!(free().await, Some(0));
        if sent {
            response.body_mut().frame().await.unwrap().unwrap();
        }
        drop(response);
        assert_eq!(free().await, Some(u64::from(!sent)));
    }
}
