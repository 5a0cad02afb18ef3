//! The door as clients meet it, on a clock that the test moves.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tidegate_core::HeaderStyle;
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_net::listener::{Listener, SWEEP_INTERVAL, advance_past};
use tidegate_rules::RuleSet;
use tidegate_service::service::internal_rules;
use tidegate_service::store::AnyStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;

const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
    connections: 8,
    head: Span::from_secs(10),
    request: Span::from_secs(30),
    idle: Span::from_secs(90),
    drain: Span::from_secs(25),
    idle_grace: None,
};

struct Door {
    address: SocketAddr,
    time: ManualClock,
    close: watch::Sender<bool>,
    serving: JoinHandle<usize>,
}

impl Door {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let time = ManualClock::default();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = RuleSet::default().with_internal(internal_rules().unwrap()).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
        let (close, closing) = watch::channel(false);
        let (timeouts, clock) = (TIMEOUTS, time.clock());
        let doorway = Listener {
            listener,
            tls: None,
            timeouts,
            clock,
            closing,
            connections: Arc::default(),
            shared: false,
        };
        let serving = doorway.serve(Arc::new(Resp::new(service, Gate::default())));
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

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut rest).await;
    rest
}

#[tokio::test]
async fn a_command_that_comes_too_slowly_is_cut_off_without_hurting_others() {
    let door = Door::open().await;
    let (mut silent, mut slow) = (door.connect().await, door.connect().await);
    // Answered, so what follows it in the same write has been read.
    exchange(&mut slow, b"PING\r\n*1\r\n$4\r\nPI", b"+PONG\r\n").await;
    let mut good = door.connect().await;
    ping(&mut good).await;
    advance_past(&door.time, TIMEOUTS.head).await;
    assert_eq!(rest(&mut slow).await, b"");
    ping(&mut good).await;
    // Pools open connections before they need them.
    ping(&mut silent).await;
}

#[tokio::test]
async fn a_command_is_due_from_its_first_byte_on() {
    let door = Door::open().await;
    let mut slow = door.connect().await;
    exchange(&mut slow, b"PING\r\n*1", b"+PONG\r\n").await;
    let mut wrote = true;
    // However steadily it sends, it is cut off before the command is there.
    for byte in b"\r\n$9999\r\n".iter().chain(&[b'x'; 9_999]) {
        wrote &= slow.write_all(&[*byte]).await.is_ok();
        door.time.advance(SWEEP_INTERVAL);
        tokio::task::yield_now().await;
        if !wrote {
            break;
        }
    }
    assert!(!wrote, "never cut off");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from_and_cut_off() {
    let door = Door::open().await;
    let deaf = door.connect().await;
    let command = [&b"*2\r\n$4\r\nECHO\r\n$16000\r\n"[..], &[b'x'; 16_000], b"\r\n"].concat();
    let mut other = door.connect().await;
    // Sends whenever it can, and never reads: in the end neither side can write, until time is up.
    let ended = loop {
        match deaf.try_write(&command) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                door.time.advance(SWEEP_INTERVAL);
                tokio::task::yield_now().await;
            }
            Err(error) => break error.kind(),
        }
    };
    assert!(matches!(ended, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{ended}");
    ping(&mut other).await;
}

#[tokio::test]
async fn an_idle_connection_is_kept_for_a_while() {
    let door = Door::open().await;
    let mut idle = door.connect().await;
    ping(&mut idle).await;
    advance_past(&door.time, TIMEOUTS.request).await;
    ping(&mut idle).await;
    advance_past(&door.time, TIMEOUTS.idle).await;
    assert_eq!(rest(&mut idle).await, b"");
}

#[tokio::test]
async fn who_sends_no_more_is_still_answered_all_of_it() {
    let door = Door::open().await;
    let mut client = door.connect().await;
    client.write_all(&b"PING\r\n".repeat(10_000)).await.unwrap();
    client.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut client).await, b"+PONG\r\n".repeat(10_000));
}

#[tokio::test]
async fn closing_ends_idle_connections_and_answers_a_command_that_has_begun() {
    let door = Door::open().await;
    let (mut idle, mut busy) = (door.connect().await, door.connect().await);
    ping(&mut idle).await;
    exchange(&mut busy, b"PING\r\n*1\r\n$4\r\nPI", b"+PONG\r\n").await;
    door.close.send(true).unwrap();
    assert_eq!(rest(&mut idle).await, b"");
    busy.write_all(b"NG\r\n").await.unwrap();
    assert_eq!(rest(&mut busy).await, b"+PONG\r\n");
    assert_eq!(door.serving.await.unwrap(), 0);
}

#[tokio::test]
async fn what_breaks_the_protocol_is_told_so_and_left() {
    let door = Door::open().await;
    for (sent, wanted) in [
        (
            &b"PING\r\n*1\r\n:4\r\n"[..],
            &b"+PONG\r\n-ERR ConnectionHandler error: expected '$', got ':'\r\n"[..],
        ),
        (
            b"*-9999999999999999999\r\n",
            b"-ERR ConnectionHandler error: invalid multibulk length, wanted at most 64\r\n",
        ),
        (b"PING 'x\r\n", b"-ERR ConnectionHandler error: unbalanced quotes in request\r\n"),
        // What a browser can be made to send is not answered.
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nPING\r\n", b""),
        (b"QUIT\r\nPING\r\n", b"+OK\r\n"),
    ] {
        let mut client = door.connect().await;
        client.write_all(sent).await.unwrap();
        // More than anybody reads at once, so that something is left unread.
        let _ = client.write_all(&[b'x'; 100_000]).await;
        client.shutdown().await.unwrap();
        assert_eq!(
            rest(&mut client).await.escape_ascii().to_string(),
            wanted.escape_ascii().to_string()
        );
    }
}

#[tokio::test]
async fn a_stretch_of_commands_is_answered_in_one_piece_or_more_with_the_same_bytes() {
    let door = Door::open().await;
    let commands =
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n2\r\n$1\r\n1\r\n$2\r\n60\r\nPING\r\n\
        cl.throttle k 2 1 60\r\n\r\nECHO \"a b\"\r\nCL.THROTTLE k 2 1 60 2\r\nNOPE 'x y'\r\n";
    let wanted =
        b"*5\r\n:0\r\n:3\r\n:2\r\n:-1\r\n:60\r\n+PONG\r\n*5\r\n:0\r\n:3\r\n:1\r\n:-1\r\n:120\r\n\
        $3\r\na b\r\n*5\r\n:1\r\n:3\r\n:1\r\n:60\r\n:120\r\n\
        -ERR unknown command 'NOPE', with args beginning with: 'x y' \r\n";
    exchange(&mut door.connect().await, commands, wanted).await;
    door.time.advance(Span::HOUR);
    let mut client = door.connect().await;
    client.set_nodelay(true).unwrap();
    for byte in commands {
        client.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    exchange(&mut client, b"", wanted).await;
}
