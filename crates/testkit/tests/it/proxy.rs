//! The proxy: that each fault is what it is called.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking, wait_for};

/// A reply of 14 bytes, eight of them its value.
const GET: &[u8] = b"GET word\r\n";
const REPLY: &[u8] = b"$8\r\ntidegate\r\n";

fn behind_a_proxy() -> Option<(Redis, FaultProxy)> {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return None;
    }
    let redis = Redis::start();
    redis.query::<()>(&["SET", "word", "tidegate"]);
    let proxy = FaultProxy::to(redis.address());
    Some((redis, proxy))
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream) -> Vec<u8> {
    stream.write_all(GET).unwrap();
    let mut reply = vec![0; REPLY.len()];
    stream.read_exact(&mut reply).unwrap();
    reply
}

/// Reads until the connection ends; a reset counts as an end.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    error.kind() == ErrorKind::WouldBlock
}

#[test]
fn proxy_forwards_everything_by_default() {
    let Some((_redis, proxy)) = behind_a_proxy() else { return };
    let mut connection = redis::Client::open(proxy.url())
        .unwrap()
        .get_connection_with_timeout(WAIT_TIMEOUT)
        .unwrap();
    let long = "x".repeat(1_000_000);
    redis::cmd("SET").arg("long").arg(&long).exec(&mut connection).unwrap();
    let found: String = redis::cmd("GET").arg("long").query(&mut connection).unwrap();
    assert!(found == long);
    assert_eq!((proxy.connections(), proxy.open(), proxy.cut()), (1, 1, 0));
    drop(connection);
    wait_for("the connection is closed", || (proxy.open() == 0).then_some(()));
    assert_eq!((proxy.connections(), proxy.cut()), (1, 0));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a delay is a matter of real time")]
fn delay_applies_to_each_direction() {
    let Some((_redis, proxy)) = behind_a_proxy() else { return };
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream), REPLY);
    let delay = Duration::from_millis(30);
    for (set, at_least) in [
        (FaultProxy::delay as fn(&FaultProxy, Duration), 2 * delay),
        (FaultProxy::delay_replies, delay),
    ] {
        set(&proxy, delay);
        let asked = Instant::now();
        assert_eq!(ask(&mut stream), REPLY);
        assert!(asked.elapsed() >= at_least, "{:?}", asked.elapsed());
    }
}

#[test]
fn stall_delays_all_bytes_and_loses_none() {
    let Some((redis, proxy)) = behind_a_proxy() else { return };
    let mut open = connect(&proxy);
    assert_eq!(ask(&mut open), REPLY);
    proxy.stall();
    open.write_all(b"INCR count\r\n").unwrap();
    let mut newcomer = connect(&proxy);
    newcomer.write_all(b"INCR count\r\n").unwrap();
    assert!(is_silent(&mut open) && is_silent(&mut newcomer));
    assert_eq!(redis.query::<Option<u64>>(&["GET", "count"]), None);
    proxy.pass();
    open.read_exact(&mut [0; 4]).unwrap();
    newcomer.read_exact(&mut [0; 4]).unwrap();
    assert_eq!(redis.query::<u64>(&["GET", "count"]), 2);
}

#[test]
fn reply_is_cut_once_at_the_requested_byte() {
    let Some((redis, proxy)) = behind_a_proxy() else { return };
    for bytes in [0, 5, REPLY.len() - 1] {
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream), REPLY);
        proxy.cut_reply_after(bytes);
        stream.write_all(GET).unwrap();
        assert_eq!(rest(&mut stream), &REPLY[..bytes]);
    }
    assert_eq!(ask(&mut connect(&proxy)), REPLY);
    assert_eq!((proxy.connections(), proxy.cut()), (4, 3));

    // The server executed the command, although its reply was lost.
    let mut stream = connect(&proxy);
    proxy.cut_reply_after(0);
    stream.write_all(b"INCR count\r\n").unwrap();
    assert_eq!(rest(&mut stream), b"");
    assert_eq!(redis.query::<u64>(&["GET", "count"]), 1);
}

#[test]
fn cut_position_counts_across_partial_reads() {
    let Some((_redis, proxy)) = behind_a_proxy() else { return };
    let mut stream = connect(&proxy);
    proxy.cut_reply_after(REPLY.len() + 3);
    assert_eq!(ask(&mut stream), REPLY);
    stream.write_all(GET).unwrap();
    assert_eq!(rest(&mut stream), &REPLY[..3]);
}

#[test]
fn refuse_rejects_new_connections_and_drop_closes_existing_ones() {
    let Some((_redis, proxy)) = behind_a_proxy() else { return };
    let mut open = connect(&proxy);
    assert_eq!(ask(&mut open), REPLY);
    proxy.refuse();
    assert_eq!(rest(&mut connect(&proxy)), b"");
    assert_eq!(ask(&mut open), REPLY);
    assert_eq!((proxy.connections(), proxy.cut()), (2, 1));
    proxy.drop_connections();
    assert_eq!(rest(&mut open), b"");
    wait_for("the connection is gone", || (proxy.open() == 0).then_some(()));
    assert_eq!(proxy.cut(), 2);
    proxy.pass();
    assert_eq!(ask(&mut connect(&proxy)), REPLY);
}

#[tokio::test]
async fn proxy_and_server_work_inside_a_runtime() {
    let Some((redis, proxy)) = behind_a_proxy() else { return };
    let mut stream = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    let mut reply = vec![0; REPLY.len()];
    tokio::io::AsyncWriteExt::write_all(&mut stream, GET).await.unwrap();
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut reply).await.unwrap();
    assert_eq!(reply, REPLY);
    redis.kill();
}
