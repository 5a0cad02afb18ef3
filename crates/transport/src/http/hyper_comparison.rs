//! Common requests are answered without hyper. The bytes have to be those that hyper sends for the same bytes.

use std::net::SocketAddr;

use proptest::prelude::*;
use tidegate_core::HeaderStyle;
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_net::http1::Http1;
use tidegate_net::listener::{ConnectionHandler, ConnectionLimits, ConnectionTimeouts, Listener};
use tidegate_rules::RuleSet;
use tidegate_service::identity::IdentityConfig;
use tidegate_service::store::AnyStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::*;

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 1000000 per hour}
  - {name: login, per: [ip], match: {path: /login}, limit: 2 per hour}
";

/// The same API, with hyper for all requests.
struct OnlyHyper(HttpApi);

impl HttpHandler for OnlyHyper {
    async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        self.0.handle(request, peer).await
    }
}

/// Two servers with the same rules: one answers common requests itself, one passes all of them to hyper.
struct TwoServers {
    runtime: Runtime,
    addresses: [SocketAddr; 2],
    _close: watch::Sender<bool>,
}

impl TwoServers {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let (close, closing) = watch::channel(false);
        let addresses = runtime.block_on(async {
            [
                serve(Http1(api()), closing.clone()).await,
                serve(Http1(OnlyHyper(api())), closing).await,
            ]
        });
        Self { runtime, addresses, _close: close }
    }

    /// Sends the parts of a stream one after another, closes it, and compares the replies, which it returns.
    fn exchange(&self, parts: &[&[u8]]) -> Vec<u8> {
        let [own, hyper] =
            self.addresses.map(|address| self.runtime.block_on(exchange(address, parts)));
        let sent = String::from_utf8_lossy(&parts.concat()).into_owned();
        assert_eq!(String::from_utf8_lossy(&own), String::from_utf8_lossy(&hyper), "{sent}");
        own
    }
}

fn api() -> HttpApi {
    let clock = ManualClock::default().clock();
    let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(clock.clone()))));
    let rules = RuleSet::parse("rules.yaml", RULES).unwrap();
    let limiter = Limiter::builder().rules(rules).clock(clock).store(store).build();
    let blocks = Arc::clone(limiter.blocks());
    let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
    let identity = Identity::new(IdentityConfig::default(), blocks, service.clock().clone());
    HttpApi::new(service, Arc::new(identity.unwrap()), PageGuard::new("127.0.0.1:8080"))
}

async fn serve<H: ConnectionHandler>(handler: H, closing: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let clock = ManualClock::default().clock();
    let limits = Arc::new(ConnectionLimits::new("http", 8, None));
    let (timeouts, tls, shared) = (ConnectionTimeouts::default(), None, false);
    let listener = Listener { listener, tls, limits, timeouts, clock, closing, shared };
    tokio::spawn(listener.serve(Arc::new(handler)));
    address
}

/// Returns the replies, without the dates: hyper reads the clock of the machine.
async fn exchange(address: SocketAddr, parts: &[&[u8]]) -> Vec<u8> {
    const DATE: &[u8] = b"\r\ndate: ";
    const DATE_BYTES: usize = DATE.len() + "Sun, 06 Nov 1994 08:49:37 GMT".len();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for part in parts {
        stream.write_all(part).await.unwrap();
        tokio::task::yield_now().await;
    }
    stream.shutdown().await.unwrap();
    let mut replies = Vec::new();
    stream.read_to_end(&mut replies).await.unwrap();
    while let Some(at) = replies.windows(DATE.len()).position(|found| found == DATE) {
        replies.drain(at..at + DATE_BYTES);
    }
    replies
}

fn post(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn replies_without_hyper_are_the_bytes_of_hyper() {
    let servers = TwoServers::start();
    let login = post(r#"{"attributes":{"path":"/login","ip":"10.0.0.1"}}"#);
    let api = post(r#"{"rule":"api","client":"alice"}"#);
    let denied = [login.as_str(); 3].concat();
    let replies = servers.exchange(&[denied.as_bytes()]);
    assert!(replies.starts_with(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"));
    let replies = String::from_utf8(replies).unwrap();
    assert_eq!(replies.matches("HTTP/1.1 429 Too Many Requests\r\n").count(), 1, "{replies}");
    for body in [
        "",
        "{}",
        "[",
        "null",
        r#"{"rule":"other","client":"a"}"#,
        r#"{"rule":"api"}"#,
        r#"{"rule":"api","client":"alice","cost":0}"#,
        r#"{"rule":"api","client":"alice","cost":2000000}"#,
        r#"{"rule":"api","client":"alice","cost":-1}"#,
        r#"{"attributes":{}}"#,
        "{\"rule\":\"api\",\"client\":\"\u{1}\"}",
    ] {
        servers.exchange(&[post(body).as_bytes()]);
    }
    for other in [
        "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /v1/check HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST /v1/check HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/check HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/check HTTP/1.1\r\norigin: http://evil.example\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/check HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        "not HTTP\r\n\r\n",
    ] {
        let stream = [&api, other, &api].concat();
        servers.exchange(&[stream.as_bytes()]);
        // The head in two parts, and the body in two parts.
        let (one, two) = stream.split_at(stream.len() / 2);
        servers.exchange(&[one.as_bytes(), two.as_bytes()]);
    }
    let (head, body) = api.split_at(api.len() - 10);
    servers.exchange(&[head.as_bytes(), body.as_bytes(), api.as_bytes()]);
    servers.exchange(&[head.as_bytes()]);
}

#[test]
fn changed_bytes_have_the_same_meaning_with_and_without_hyper() {
    let servers = TwoServers::start();
    let stream = [
        post(r#"{"rule":"api","client":"alice"}"#),
        post(r#"{"attributes":{"path":"/login","ip":"10.0.0.1"},"cost":1}"#),
        post(r#"{"rule":"api","client":{"user":"bob"}}"#),
    ]
    .concat();
    let change = (
        0..stream.len(),
        prop_oneof![Just(0..0usize), Just(0..1), Just(0..3)],
        prop_oneof![
            4 => any::<u8>().prop_map(|byte| vec![byte]),
            1 => Just(b"\r\n".to_vec()),
            1 => Just(b"\r\nconnection: close".to_vec()),
            1 => Just(b"\r\ncontent-length: 5".to_vec()),
            1 => Just(b"0".to_vec()),
        ],
    );
    let changes = proptest::collection::vec(change, 0..3);
    // In one part: if a handler does not read a body, hyper continues only if the body has already arrived.
    proptest!(|(changes in changes)| {
        let mut bytes = stream.clone().into_bytes();
        for (at, removed, inserted) in changes {
            let at = at.min(bytes.len());
            let end = (at + removed.end).min(bytes.len());
            bytes.splice(at..end, inserted);
        }
        servers.exchange(&[&bytes]);
    });
}
