//! Paths through a listener: the server runs under callgrind, and one connection sends operations one after the other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_testkit::Process;

use crate::HotPath;
use crate::callgrind::CountFile;

const RULES: &str = "rules: [{name: api, per: [user], limit: 1000000 per second}]";
const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Number of clients, used in rotation. It is below the number of rows in the server's client ranking. The ranking counts
/// the first 1,000 checks of each second and a sample of the others, so replaced rows would make the instruction count
/// depend on the speed of the machine.
const CLIENTS: u64 = 64;
/// Commands in one write.
const PIPELINE: u64 = 16;

pub(crate) fn count(path: HotPath, operations: u64, attempt: usize) -> u64 {
    let (file, rules) = (CountFile::new(path.name(), attempt), rules_file());
    let listener = match path {
        HotPath::Rls => "grpc",
        other => other.name(),
    };
    let mut command = file.command(sibling_binary("tidegate"));
    command.args(["serve", "--rules", rules.to_str().unwrap(), "--admin", "off"]);
    for name in ["http", "grpc", "resp"] {
        let address = if name == listener { "127.0.0.1:0" } else { "off" };
        command.args([&format!("--{name}"), address]);
    }
    let process = Process::spawn(command);
    let line = process.stdout().next().unwrap_or_else(|| panic!("{}", process.log_tail()));
    let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    let port = port.unwrap_or_else(|| panic!("no address in {line:?}"));
    match path {
        HotPath::Http => send_http(port, operations),
        HotPath::Resp => send_resp(port, operations),
        _ => send_rls(port, operations),
    }
    process.signal("TERM");
    process.wait();
    let _ = std::fs::remove_file(rules);
    file.read()
}

fn send_http(port: u16, operations: u64) {
    let mut stream = BufReader::new(connect(port));
    let mut line = String::new();
    for number in 0..operations {
        let body = format!(r#"{{"rule":"api","client":"user_{:04}"}}"#, number % CLIENTS);
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut first, mut length) = (true, 0);
        loop {
            line.clear();
            stream.read_line(&mut line).unwrap();
            assert!(!first || line.starts_with("HTTP/1.1 200 "), "{line}");
            first = false;
            let header = line.trim_end().to_ascii_lowercase();
            if let Some(found) = header.strip_prefix("content-length: ") {
                length = found.parse().unwrap();
            }
            if header.is_empty() {
                break;
            }
        }
        stream.read_exact(&mut vec![0; length]).unwrap();
    }
}

fn send_resp(port: u16, operations: u64) {
    let mut stream = BufReader::new(connect(port));
    let mut line = String::new();
    for batch in 0..operations / PIPELINE {
        let mut commands = String::new();
        for number in 0..PIPELINE {
            let user = (batch * PIPELINE + number) % CLIENTS;
            let user = format!("user_{user:04}");
            commands.push_str("*3\r\n$8\r\nTG.CHECK\r\n$3\r\napi\r\n$9\r\n");
            commands.push_str(&user);
            commands.push_str("\r\n");
        }
        stream.get_mut().write_all(commands.as_bytes()).unwrap();
        for _ in 0..PIPELINE {
            line.clear();
            stream.read_line(&mut line).unwrap();
            let members: u64 = line.trim_end().strip_prefix('*').unwrap().parse().unwrap();
            for member in 0..members {
                line.clear();
                stream.read_line(&mut line).unwrap();
                // The first member is 0 for a request that is allowed.
                assert!(member > 0 || line == ":0\r\n", "{line}");
            }
        }
    }
}

fn send_rls(port: u16, operations: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = connect(port);
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        for number in 0..operations {
            let call = Request::post(format!("http://localhost{RLS}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(rate_limit_call(&format!("user_{:04}", number % CLIENTS))))
                .unwrap();
            let response = sender.send_request(call).await.unwrap();
            let body = response.into_body().collect().await.unwrap();
            let status = body.trailers().and_then(|trailers| trailers.get("grpc-status")).unwrap();
            assert_eq!(status, "0");
        }
    });
}

/// `RateLimitRequest` of domain bench with one descriptor `user=…`, as one message of a gRPC call.
fn rate_limit_call(user: &str) -> Bytes {
    let entry = [field(1, b"user"), field(2, user.as_bytes())].concat();
    let message = [field(1, b"bench"), field(2, &field(1, &entry))].concat();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), &message].concat().into()
}

/// Encodes a bytes field in protobuf format.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[(tag << 3) | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// Connects to the server with TCP_NODELAY. Otherwise a call of two writes would wait 40 ms for an acknowledgement.
fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Returns the path of a program in the folder of this one.
fn sibling_binary(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
    assert!(path.exists(), "no {}; make instructions builds it", path.display());
    path
}

fn rules_file() -> PathBuf {
    let name = format!("tidegate-instructions-{}.yaml", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, RULES).unwrap();
    path
}
