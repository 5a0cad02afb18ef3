//! Common requests are exchanged without hyper. The upstream and the client have to get the bytes that hyper would send.

use std::net::SocketAddr;

use proptest::prelude::*;
use tidegate_core::HeaderStyle;
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_net::listener::{ConnectionLimits, ConnectionTimeouts, Listener};
use tidegate_rules::RuleSet;
use tidegate_service::identity::IdentityConfig;
use tidegate_service::store::AnyStore;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::config::GatewayConfig;

const NO_LIMIT: &str = "rules: [{name: api, limit: 1000000 per hour}]";
const TWO_REQUESTS: &str = "rules: [{name: api, limit: 2 per hour}]";

/// The same gateway, with hyper for all connections.
struct OnlyHyper(Gateway);

impl ConnectionHandler for OnlyHyper {
    async fn serve(&self, stream: Stream, peer: Peer, activity: Arc<Activity>) {
        let (stream, context) = self.0.open(stream, peer, activity).await.unwrap();
        self.0.serve_hyper(stream, &context).await;
    }
}

/// The responses of the upstream, by the number at the start of the path.
const RESPONSES: [&str; 18] = [
    "HTTP/1.1 200 OK\r\nServer: a\r\nContent-Length: 2\r\nX-A: 1\r\nx-a: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n3;x\r\nyes\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 9\r\n\r\n",
    "HTTP/1.1 404 Gone Fishing\r\nConnection: close, x-b\r\nX-B: 1\r\nContent-Length: 1\r\n\r\nn",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.0 200 OK\r\nKeep-Alive: 5\r\n\r\nold",
    "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nh",
    "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTrailer: x-t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nt\r\n0\r\nx-t: 1\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nBad Header: 1\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "what?\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
    "HTTP/1.1 599 \r\nRateLimit: x\r\nContent-Length: 2\r\n\r\nok",
    "",
];

/// Responses that end the connection: hyper and the direct connection differ in the moment at which they notice.
const CLOSING_RESPONSES: std::ops::Range<usize> = 5..18;

/// An upstream that records the requests.
#[derive(Debug, Default)]
struct Recorder {
    requests: Mutex<Vec<String>>,
}

impl Recorder {
    async fn listen(self: Arc<Self>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&self).serve(stream));
            }
        });
        port
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let mut received = Vec::new();
        loop {
            while let Some(end) = request_end(&received) {
                let text: Vec<u8> = received.drain(..end).collect();
                let text = String::from_utf8_lossy(&text).into_owned();
                let number = text.split(['/', '?', ' ']).find_map(|part| part.parse().ok());
                let number = number.unwrap_or(0_usize) % RESPONSES.len();
                self.requests.lock().push(text);
                stream.write_all(RESPONSES[number].as_bytes()).await.unwrap();
                if CLOSING_RESPONSES.contains(&number) {
                    return;
                }
            }
            if stream.read_buf(&mut received).await.unwrap_or(0) == 0 {
                return;
            }
        }
    }
}

/// Returns the end of the first request. Its body has a length or is chunked.
fn request_end(received: &[u8]) -> Option<usize> {
    let find = |text: &[u8]| received.windows(text.len()).position(|found| found == text);
    let head = find(b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&received[..head]);
    if text.contains("\r\ntransfer-encoding: chunked\r\n") {
        return Some(find(b"0\r\n\r\n")? + 5);
    }
    let length = text.split_once("\r\ncontent-length: ");
    let length = length.map_or(0, |(_, rest)| rest.split_once("\r\n").unwrap().0.parse().unwrap());
    (head + length <= received.len()).then_some(head + length)
}

/// Two gateways with the same rules, each with its own upstream. The second uses only hyper.
struct TwoGateways {
    runtime: Runtime,
    gateways: [(SocketAddr, Arc<Recorder>); 2],
    _close: watch::Sender<bool>,
}

/// The responses that the client has read, and the requests that the upstream has received.
type Observed = (String, Vec<String>);

impl TwoGateways {
    fn start(rules: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let (close, closing) = watch::channel(false);
        let gateways = runtime.block_on(async {
            let own = Arc::<Recorder>::default();
            let direct = gateway(Arc::clone(&own).listen().await, rules);
            let own = (serve(direct, closing.clone()).await, own);
            let hyper = Arc::<Recorder>::default();
            let by_hyper = OnlyHyper(gateway(Arc::clone(&hyper).listen().await, rules));
            [own, (serve(by_hyper, closing).await, hyper)]
        });
        Self { runtime, gateways, _close: close }
    }

    /// Sends the parts of a stream one after another, and compares what client and upstream get. Returns it.
    fn exchange(&self, parts: &[&[u8]]) -> Observed {
        let [own, hyper] = self.gateways.each_ref().map(|(address, upstream)| {
            upstream.requests.lock().clear();
            let responses = self.runtime.block_on(exchange(*address, parts));
            (responses, std::mem::take(&mut *upstream.requests.lock()))
        });
        assert_eq!(own, hyper, "{:?}", String::from_utf8_lossy(&parts.concat()));
        own
    }
}

fn gateway(upstream: u16, rules: &str) -> Gateway {
    let clock = ManualClock::default().clock();
    let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(clock.clone()))));
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let limiter = Limiter::builder().rules(rules).clock(clock.clone()).store(store).build();
    let blocks = Arc::clone(limiter.blocks());
    let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
    let identity = Identity::new(IdentityConfig::default(), blocks, service.clock().clone());
    let url = format!("http://127.0.0.1:{upstream}").parse().unwrap();
    let upstreams = GatewayConfig::single_upstream(vec![url]);
    let upstreams = UpstreamSet::new(upstreams, clock.clone()).unwrap();
    let sockets = UpstreamSockets::unlimited();
    Gateway::new(&upstreams, service, Arc::new(identity.unwrap()), sockets, clock)
}

async fn serve<H: ConnectionHandler>(handler: H, closing: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let clock = ManualClock::default().clock();
    let limits = Arc::new(ConnectionLimits::new("gateway", 8, None));
    let (timeouts, tls, shared) = (ConnectionTimeouts::default(), None, false);
    let listener = Listener { listener, tls, limits, timeouts, clock, closing, shared };
    tokio::spawn(listener.serve(Arc::new(handler)));
    address
}

/// Time without a response after which the client closes its side.
const STALL: Duration = Duration::from_millis(500);

/// A request that ends the connection.
const LAST_REQUEST: &[u8] = b"GET /0/last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Returns the responses, without dates: hyper reads the clock of the machine.
async fn exchange(address: SocketAddr, parts: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for part in parts {
        // A gateway that has closed the connection resets it.
        if stream.write_all(part).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut responses = Vec::new();
    loop {
        match timeout(STALL, stream.read_buf(&mut responses)).await {
            Ok(Ok(read)) if read > 0 => {}
            Ok(_) => break,
            // The gateway waits for the rest of a request.
            Err(_) => stream.shutdown().await.unwrap(),
        }
    }
    let text = String::from_utf8_lossy(&responses).into_owned();
    let lines = text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
    lines.collect()
}

/// A request for one of the responses.
fn request(method: &str, number: usize, headers: &str, body: &str) -> String {
    format!("{method} /{number}/a?b=c HTTP/1.1\r\nHost: shop.example\r\n{headers}\r\n{body}")
}

#[test]
fn each_response_of_an_upstream_is_that_of_hyper() {
    for (number, response) in RESPONSES.iter().enumerate() {
        for method in ["GET", "HEAD", "POST"] {
            // The upstream sends a body for HEAD too, so that only its head is a valid response.
            if method == "HEAD" && !response.ends_with("\r\n\r\n") {
                continue;
            }
            let gateways = TwoGateways::start(NO_LIMIT);
            let stream = request(method, number, "", "");
            let (responses, requests) = gateways.exchange(&[stream.as_bytes(), LAST_REQUEST]);
            assert!(!requests.is_empty(), "{method} {number}: {responses}");
        }
    }
}

#[test]
fn each_request_reaches_the_upstream_as_that_of_hyper() {
    let gateways = TwoGateways::start(NO_LIMIT);
    for (method, headers, body) in [
        ("GET", "Accept: */*\r\nX-A: 1\r\nx-a: 2\r\n", ""),
        ("GET", "Connection: keep-alive\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\n", ""),
        (
            "GET",
            "Cookie: a=1\r\ncookie: b=2\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=x\r\n",
            "",
        ),
        ("GET", "X_Forwarded_For: 1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n", ""),
        ("GET", "Proxy-Authorization: x\r\nX-Empty:\r\nX-Text: \u{e9}\r\n", ""),
        ("GET", "Content-Length: 5\r\n", "hello"),
        ("POST", "Content-Length: 0\r\n", ""),
        ("POST", "", ""),
        ("POST", "Content-Length: 5\r\nContent-Type: text/plain\r\n", "hello"),
        ("DELETE", "Content-Length: 5\r\n", "hello"),
        ("post", "Content-Length: 5\r\n", "hello"),
        ("X-CUSTOM", "", ""),
        // Not common.
        ("POST", "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        ("POST", "Expect: x\r\nContent-Length: 5\r\n", "hello"),
        ("GET", "TE: trailers\r\nConnection: TE\r\n", ""),
        ("GET", "Connection: x-a\r\nX-A: 1\r\n", ""),
        ("GET", "Host: other\r\n", ""),
        ("GET", "Upgrade: h2c\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: x\r\n", ""),
        ("POST", "Content-Length: 5\r\nContent-Length: 5\r\n", "hello"),
        ("POST", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("GET", "X: a\r\n b\r\n", ""),
        ("GET", "X: a\0\r\n", ""),
    ] {
        let one = request(method, 0, headers, body);
        let stream = [one.as_bytes(), LAST_REQUEST].concat();
        gateways.exchange(&[&stream]);
        // One after another, each in two parts.
        let (head, tail) = one.as_bytes().split_at(one.len() / 2);
        gateways.exchange(&[head, tail, LAST_REQUEST]);
    }
    for target in
        ["//0/x", "/%30/./x", "/0/%zz", "/a%2Fb", "/0?", "/0?a#b", "*", "http://b/0", "/0/\u{e9}"]
    {
        let stream = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        gateways.exchange(&[stream.as_bytes(), LAST_REQUEST]);
    }
    for line in [
        "GET /0 HTTP/1.0",
        "GET /0 HTTP/1.2",
        "GET /0",
        "CONNECT a:1 HTTP/1.1",
        "\r\nGET /0 HTTP/1.1",
    ] {
        let stream = format!("{line}\r\nHost: a\r\nConnection: close\r\n\r\n");
        gateways.exchange(&[stream.as_bytes()]);
    }
}

#[test]
fn each_denial_is_that_of_hyper() {
    let gateways = TwoGateways::start(TWO_REQUESTS);
    for headers in ["", "Content-Type: application/grpc\r\n"] {
        let stream = ["GET", "HEAD", "POST"].map(|method| request(method, 2, headers, "")).concat();
        let (responses, requests) = gateways.exchange(&[stream.as_bytes(), LAST_REQUEST]);
        assert!(requests.len() <= 2, "{requests:?}");
        assert!(responses.contains("\r\nretry-after: "), "{responses}");
    }
}

#[test]
fn changed_bytes_have_the_same_meaning_as_with_hyper() {
    let gateways = TwoGateways::start(NO_LIMIT);
    let stream = [
        request("GET", 0, "Accept: */*\r\nConnection: keep-alive\r\n", ""),
        request("POST", 1, "Content-Length: 5\r\nCookie: a=b\r\n", "hello"),
        request("GET", 3, "X-Forwarded-For: 1.2.3.4\r\n", ""),
        request("PUT", 2, "Content-Length: 0\r\n", ""),
    ]
    .concat();
    let inserted = prop_oneof![
        4 => any::<u8>().prop_map(|byte| vec![byte]),
        2 => prop::sample::select(vec![
            "\r\n", "\n", "\r", " ", "\t", "0", ",", ":", "\r\n ", "\r\n\r\n",
            "\r\nconnection: close", "\r\nconnection: upgrade", "\r\nconnection: x-a, host",
            "\r\ncontent-length: 5", "\r\ncontent-length: 0", "\r\ntransfer-encoding: chunked",
            "\r\nhost: b", "\r\nexpect: 100-continue", "\r\nte: trailers", "\r\nupgrade: h2c",
            "\r\ntrailer: x", "GET /0 HTTP/1.1\r\nHost: a\r\n\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
    ];
    let removed = prop_oneof![Just(0_usize), Just(1), Just(3)];
    let changes = proptest::collection::vec((0..stream.len(), removed, inserted), 0..3);
    // In one part: what hyper does with the rest of a connection that it closes depends on when it arrives.
    proptest!(|(changes in changes)| {
        let mut bytes = stream.clone().into_bytes();
        for (at, removed, inserted) in changes {
            let at = at.min(bytes.len());
            let end = (at + removed).min(bytes.len());
            bytes.splice(at..end, inserted);
        }
        bytes.extend_from_slice(LAST_REQUEST);
        gateways.exchange(&[&bytes]);
    });
}
