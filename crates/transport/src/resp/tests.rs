//! Tests of the RESP listener over TCP, on a manual clock.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tidegate_core::HeaderStyle;
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_net::auth_failures::AuthFailures;
use tidegate_net::listener::{ConnectionLimits, Listener, SWEEP_INTERVAL, advance_past};
use tidegate_rules::RuleSet;
use tidegate_service::service::internal_rules;
use tidegate_service::store::AnyStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;

const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
    head: Span::from_secs(10),
    request: Span::from_secs(30),
    idle: Span::from_secs(90),
    drain: Span::from_secs(25),
    idle_grace: None,
};

struct RespServer {
    address: SocketAddr,
    time: ManualClock,
    close: watch::Sender<bool>,
    serving: JoinHandle<usize>,
}

impl RespServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let time = ManualClock::default();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = RuleSet::default().with_internal(internal_rules().unwrap()).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
        let (close, closing) = watch::channel(false);
        let (timeouts, clock) = (TIMEOUTS, time.clock());
        let listener = Listener {
            listener,
            tls: None,
            timeouts,
            clock,
            closing,
            limits: Arc::new(ConnectionLimits::new("resp", 8, None)),
            shared: false,
        };
        let failures = AuthFailures::new("resp", time.clock(), Arc::default());
        let api = RespApi::new(service, RespAuth::default(), failures);
        let serving = listener.serve(Arc::new(api));
        Self { address, time, close, serving: tokio::spawn(serving) }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

async fn exchange(stream: &mut TcpStream, sent: &[u8], wanted: &[u8]) {
    stream.write_all(sent).await.unwrap();
    let mut found = vec![0; wanted.len()];
    stream.read_exact(&mut found).await.unwrap();
    assert_eq!(found.escape_ascii().to_string(), wanted.escape_ascii().to_string());
}

async fn ping(stream: &mut TcpStream) {
    exchange(stream, b"PING\r\n", b"+PONG\r\n").await;
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset also ends the connection.
    let _ = stream.read_to_end(&mut rest).await;
    rest
}

#[tokio::test]
async fn slow_command_is_closed_and_other_connections_stay_open() {
    let server = RespServer::start().await;
    let (mut silent, mut slow) = (server.connect().await, server.connect().await);
    // After the reply, the rest of the same write has been read too.
    exchange(&mut slow, b"PING\r\n*1\r\n$4\r\nPI", b"+PONG\r\n").await;
    let mut good = server.connect().await;
    ping(&mut good).await;
    advance_past(&server.time, TIMEOUTS.head).await;
    assert_eq!(read_to_end(&mut slow).await, b"");
    ping(&mut good).await;
    // Connection pools open connections before they need them.
    ping(&mut silent).await;
}

#[tokio::test]
async fn head_timeout_starts_with_the_first_byte_of_a_command() {
    let server = RespServer::start().await;
    let mut slow = server.connect().await;
    exchange(&mut slow, b"PING\r\n*1", b"+PONG\r\n").await;
    let mut wrote = true;
    // Steady traffic does not extend the timeout of an incomplete command.
    for byte in b"\r\n$9999\r\n".iter().chain(&[b'x'; 9_999]) {
        wrote &= slow.write_all(&[*byte]).await.is_ok();
        server.time.advance(SWEEP_INTERVAL);
        tokio::task::yield_now().await;
        if !wrote {
            break;
        }
    }
    assert!(!wrote, "never closed");
}

#[tokio::test]
async fn client_that_never_reads_is_closed_after_the_request_timeout() {
    let server = RespServer::start().await;
    let unread = server.connect().await;
    let command = [&b"*2\r\n$4\r\nECHO\r\n$16000\r\n"[..], &[b'x'; 16_000], b"\r\n"].concat();
    let mut other = server.connect().await;
    // The client sends and never reads: in the end neither side can write, until the timeout.
    let ended = loop {
        match unread.try_write(&command) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                server.time.advance(SWEEP_INTERVAL);
                tokio::task::yield_now().await;
            }
            Err(error) => break error.kind(),
        }
    };
    assert!(matches!(ended, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{ended}");
    ping(&mut other).await;
}

#[tokio::test]
async fn idle_connection_is_closed_after_the_idle_timeout() {
    let server = RespServer::start().await;
    let mut idle = server.connect().await;
    ping(&mut idle).await;
    advance_past(&server.time, TIMEOUTS.request).await;
    ping(&mut idle).await;
    advance_past(&server.time, TIMEOUTS.idle).await;
    assert_eq!(read_to_end(&mut idle).await, b"");
}

#[tokio::test]
async fn half_closed_connection_gets_all_replies() {
    let server = RespServer::start().await;
    let mut client = server.connect().await;
    client.write_all(&b"PING\r\n".repeat(10_000)).await.unwrap();
    client.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await, b"+PONG\r\n".repeat(10_000));
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_completes_started_commands() {
    let server = RespServer::start().await;
    let (mut idle, mut busy) = (server.connect().await, server.connect().await);
    ping(&mut idle).await;
    exchange(&mut busy, b"PING\r\n*1\r\n$4\r\nPI", b"+PONG\r\n").await;
    server.close.send(true).unwrap();
    assert_eq!(read_to_end(&mut idle).await, b"");
    busy.write_all(b"NG\r\n").await.unwrap();
    assert_eq!(read_to_end(&mut busy).await, b"+PONG\r\n");
    assert_eq!(server.serving.await.unwrap(), 0);
}

#[tokio::test]
async fn protocol_error_is_reported_and_closes_the_connection() {
    let server = RespServer::start().await;
    for (sent, wanted) in [
        (
            &b"PING\r\n*1\r\n:4\r\n"[..],
            &b"+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n"[..],
        ),
        (
            b"*-9999999999999999999\r\n",
            b"-ERR Protocol error: invalid multibulk length, wanted at most 64\r\n",
        ),
        (b"PING 'x\r\n", b"-ERR Protocol error: unbalanced quotes in request\r\n"),
        // An HTTP request, which a browser could send, gets no reply.
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nPING\r\n", b""),
        (b"QUIT\r\nPING\r\n", b"+OK\r\n"),
    ] {
        let mut client = server.connect().await;
        client.write_all(sent).await.unwrap();
        // More than one read of the server, so that some bytes stay unread.
        let _ = client.write_all(&[b'x'; 100_000]).await;
        client.shutdown().await.unwrap();
        assert_eq!(
            read_to_end(&mut client).await.escape_ascii().to_string(),
            wanted.escape_ascii().to_string()
        );
    }
}

#[tokio::test]
async fn pipelined_commands_get_the_same_replies_in_one_piece_or_many() {
    let server = RespServer::start().await;
    let commands =
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n2\r\n$1\r\n1\r\n$2\r\n60\r\nPING\r\n\
        cl.throttle k 2 1 60\r\n\r\nECHO \"a b\"\r\nCL.THROTTLE k 2 1 60 2\r\nNOPE 'x y'\r\n";
    let wanted =
        b"*5\r\n:0\r\n:3\r\n:2\r\n:-1\r\n:60\r\n+PONG\r\n*5\r\n:0\r\n:3\r\n:1\r\n:-1\r\n:120\r\n\
        $3\r\na b\r\n*5\r\n:1\r\n:3\r\n:1\r\n:60\r\n:120\r\n\
        -ERR unknown command 'NOPE', with args beginning with: 'x y' \r\n";
    exchange(&mut server.connect().await, commands, wanted).await;
    server.time.advance(Span::HOUR);
    let mut client = server.connect().await;
    client.set_nodelay(true).unwrap();
    for byte in commands {
        client.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    exchange(&mut client, b"", wanted).await;
}
