use std::future::pending;
use std::net::SocketAddr;

use http_body_util::BodyExt;
use tidegate_core::HeaderStyle;
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_net::listener::{Listener, advance_past};
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

/// What an HTTP/2 client says first, and settings that are all as usual.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// An open door without rules, whose time is ours.
struct Door {
    address: SocketAddr,
    time: ManualClock,
    _close: watch::Sender<bool>,
}

impl Door {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let time = ManualClock::default();
        let (clock, (close, closing)) = (time.clock(), watch::channel(false));
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(clock.clone()))));
        let limiter = Limiter::builder().clock(clock.clone()).store(store).build();
        let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
        let grpc = Arc::new(Grpc::new(service, clock.clone(), closing.clone()));
        let (timeouts, connections) = (timeouts(), Arc::default());
        let doorway =
            Listener { listener, tls: None, timeouts, clock, closing, connections, shared: false };
        tokio::spawn(doorway.serve(grpc));
        Self { address, time, _close: close }
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }
}

async fn answered(channel: &Channel) {
    let asked = HealthCheckRequest::default();
    HealthClient::new(channel.clone()).check(asked).await.unwrap();
}

/// Reads until this was among what was sent.
async fn until(stream: &mut TcpStream, wanted: &[u8]) {
    let mut read = Vec::new();
    while !read.windows(wanted.len()).any(|found| found == wanted) {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "closed");
    }
}

#[tokio::test]
async fn who_never_greets_is_cut_off_and_who_has_may_be_silent() {
    let door = Door::open().await;
    let mut silent = TcpStream::connect(door.address).await.unwrap();
    let mut greeted = TcpStream::connect(door.address).await.unwrap();
    greeted.write_all(GREETING).await.unwrap();
    // That its settings were read.
    until(&mut greeted, b"\0\0\0\x04\x01\0\0\0\0").await;
    // Accepted last: once it is answered, all of them are watched.
    let channel = door.channel().await;
    answered(&channel).await;
    advance_past(&door.time, timeouts().head).await;
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = silent.read_to_end(&mut rest).await;
    answered(&channel).await;
    // A ping, and its answer.
    greeted.write_all(b"\0\0\x08\x06\0\0\0\0\0tidegate").await.unwrap();
    until(&mut greeted, b"\0\0\x08\x06\x01\0\0\0\0tidegate").await;
}

#[tokio::test]
async fn a_message_that_never_ends_is_given_up_and_its_connection_kept() {
    let door = Door::open().await;
    let channel = door.channel().await;
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let waiting = tokio::spawn(async move {
        let never = futures_util::stream::once(pending::<HealthCheckRequest>());
        let path = PathAndQuery::from_static(health::CHECK);
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        client.client_streaming(tonic::Request::new(never), path, codec).await
    });
    tokio::task::yield_now().await;
    // The head of that call was sent before this one.
    answered(&channel).await;
    door.time.advance(MESSAGE);
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    answered(&channel).await;
}

#[tokio::test]
async fn an_answer_that_never_leaves_takes_its_slot_along() {
    let rules = "rules: [{name: exports, limit: 1 in flight, hold: 1h}]";
    let store = AnyStore::Memory(Arc::new(MemoryStore::new(ManualClock::default().clock())));
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::new(store)).build();
    let service = Service::new(limiter, HeaderStyle::default());
    let caller = Caller { address: [127, 0, 0, 1].into(), service: None, way: None };
    let asked = CheckRequest { rule: "exports".to_owned(), ..CheckRequest::default() };
    let free = async || check::peek(&service, caller, asked.clone()).await.unwrap().remaining;
    for leaves in [false, false, true] {
        let mut answer = slots::acquire(&service, caller, &asked).await.unwrap();
        assert_eq!(free().await, Some(0));
        if leaves {
            answer.body_mut().frame().await.unwrap().unwrap();
        }
        drop(answer);
        assert_eq!(free().await, Some(u64::from(!leaves)));
    }
}
