//! Many connections at one listener: it closes its own idle ones, and the other listeners go on.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_testkit::{Certificates, Tool, Upstream, lacking, wait_for};

use super::{PING, PREFACE, PROTOCOLS, SETTINGS};
use crate::kit::{Folder, Server, tidegate_with_open_files};

/// Longest wait for a response. A listener without a free descriptor never responds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

const RULES: &str = "rules: [{name: api, per: [ip], limit: 1000000 per second}]";

const REQUEST: &[u8] = b"GET /status/200 HTTP/1.1\r\nhost: t\r\n\r\n";

/// A request for `/status/200` in HTTP/2: headers with END_STREAM and END_HEADERS.
const HTTP2_REQUEST: &[u8] = &[
    0, 0, 18, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x04, 11, b'/', b's', b't', b'a', b't', b'u', b's',
    b'/', b'2', b'0', b'0', 0x41, 1, b't',
];

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).unwrap();
    stream
}

/// Sends a request, and returns the status line; empty if the connection was closed.
fn status_line(stream: &mut TcpStream, request: &[u8]) -> std::io::Result<String> {
    stream.write_all(request)?;
    let mut response = Vec::new();
    let mut part = [0; 1024];
    while !response.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => response.extend(&part[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let head = String::from_utf8_lossy(&response);
    Ok(head.lines().next().unwrap_or_default().to_owned())
}

/// Returns whether the server has closed a connection on which nothing more is sent.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut rest = [0; 4096];
    let closed = loop {
        match stream.read(&mut rest) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) => break error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    stream.set_nonblocking(false).unwrap();
    closed
}

/// Opens an HTTP/2 connection like that of Envoy: it is idle after the handshake.
fn connect_http2(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(&[PREFACE, SETTINGS].concat()).unwrap();
    // SETTINGS of the server, and its acknowledgement.
    let mut acknowledged = false;
    while !acknowledged {
        let (kind, flags) = read_frame(&mut stream).unwrap();
        acknowledged = kind == 4 && flags == 1;
    }
    stream
}

/// Reads one frame, and returns its type and flags; `None` at the end.
fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    stream.read_exact(&mut vec![0; length as usize]).ok()?;
    Some((head[3], head[4]))
}

fn assert_answers_ping(stream: &mut TcpStream) {
    stream.write_all(PING).unwrap();
    loop {
        let (kind, flags) = read_frame(stream).expect("the connection was closed");
        assert_ne!(kind, 7, "GOAWAY");
        if (kind, flags) == (6, 1) {
            return;
        }
    }
}

/// Returns the value of a metric with these labels.
fn metric(server: &Server, series: &str) -> u64 {
    let metrics = server.request_admin("GET", "/metrics", "").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(series));
    line.unwrap_or_else(|| panic!("no {series} in {metrics}")).trim().parse().unwrap()
}

/// Starts a server with few descriptors and a gateway.
fn server_with_gateway(open_files: u32, upstream: &Upstream, config: &str) -> (Server, Folder) {
    let folder = Folder::new();
    let mut command = tidegate_with_open_files(open_files);
    command.args(["serve", "--http", "127.0.0.1:0", "--gateway", "0.0.0.0:0"]);
    command.args(["--upstream", &upstream.url(), "--rules", &folder.file("rules.yaml", RULES)]);
    command.args(["--config", &folder.file("tidegate.yaml", config)]);
    (Server::launch_command(command), folder)
}

fn gateway_address(server: &Server) -> SocketAddr {
    ([127, 0, 0, 1], server.listener("gateway").port()).into()
}

#[test]
fn idle_gateway_connections_replace_each_other_and_leave_the_other_listeners_alone() {
    let upstream = Upstream::start();
    let (server, _folder) = server_with_gateway(512, &upstream, "");
    let gateway = gateway_address(&server);
    let share = metric(&server, "tidegate_connections_limit{listener=\"gateway\"}");
    assert!((20..250).contains(&share), "{share}");
    let mut envoy = connect_http2(server.listener("grpc"));
    let mut old_http2 = connect_http2(gateway);
    old_http2.write_all(HTTP2_REQUEST).unwrap();
    while read_frame(&mut old_http2).expect("no response").0 != 1 {}
    let mut idle = Vec::new();
    // More than all descriptors of the process.
    for number in 0..600 {
        let mut stream = connect(gateway);
        let status = status_line(&mut stream, REQUEST)
            .unwrap_or_else(|error| panic!("connection {number}: {error}"));
        assert_eq!(status, "HTTP/1.1 200 OK", "connection {number}");
        idle.push(stream);
    }
    for protocol in &PROTOCOLS {
        protocol.assert_answers(server.listener(protocol.listener));
    }
    assert_answers_ping(&mut envoy);
    // The oldest were closed, HTTP/2 with GOAWAY, and the newest are still open.
    let frames: Vec<_> = std::iter::from_fn(|| read_frame(&mut old_http2)).collect();
    assert!(frames.iter().any(|(kind, _)| *kind == 7), "{frames:?}");
    wait_for("the oldest connections are closed", || {
        idle[..100].iter_mut().all(is_closed).then_some(())
    });
    for stream in idle.iter_mut().rev().take(10) {
        assert_eq!(status_line(stream, REQUEST).unwrap(), "HTTP/1.1 200 OK");
    }
    let open = metric(&server, "tidegate_connections{listener=\"gateway\"}");
    assert!((10..=share + share / 8).contains(&open), "{open} of {share}");
    assert!(metric(&server, "tidegate_connections_evicted_total{listener=\"gateway\"}") > 300);
    assert_eq!(metric(&server, "tidegate_connections_evicted_total{listener=\"grpc\"}"), 0);
    let refused = "tidegate_connections_refused_total{listener=\"gateway\",reason=\"files\"}";
    assert_eq!(metric(&server, refused), 0);
}

/// Opens a connection after another, more than the process has descriptors, and sends a PING on each of them. Checks that
/// the listener closed the oldest ones, and that the newest still work.
fn assert_idle_resp_connections_replace_each_other<S: Read + Write>(
    server: &Server,
    mut open: impl FnMut(TcpStream) -> S,
    socket: impl Fn(&mut S) -> &mut TcpStream,
) {
    let address = server.listener("resp");
    let share = metric(server, "tidegate_connections_limit{listener=\"resp\"}");
    assert!((4..150).contains(&share), "{share}");
    let ping = |stream: &mut S| -> std::io::Result<[u8; 7]> {
        stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).map(|()| reply)
    };
    let mut connections = Vec::new();
    for number in 0..300 {
        let mut stream = open(connect(address));
        let reply = ping(&mut stream).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(&reply, b"+PONG\r\n", "connection {number}");
        connections.push(stream);
    }
    wait_for("the oldest connections are closed", || {
        connections[..100].iter_mut().all(|stream| is_closed(socket(stream))).then_some(())
    });
    assert_eq!(&ping(connections.last_mut().unwrap()).unwrap(), b"+PONG\r\n");
    for listener in ["http", "grpc"] {
        let protocol = PROTOCOLS.iter().find(|protocol| protocol.listener == listener).unwrap();
        protocol.assert_answers(server.listener(listener));
    }
    let open = metric(server, "tidegate_connections{listener=\"resp\"}");
    assert!((1..=share + share / 8 + 1).contains(&open), "{open} of {share}");
    let evicted = metric(server, "tidegate_connections_evicted_total{listener=\"resp\"}");
    assert!(evicted >= 300 - open, "{evicted} evicted, {open} open");
    for reason in ["full", "files"] {
        let refused =
            format!("tidegate_connections_refused_total{{listener=\"resp\",reason=\"{reason}\"}}");
        assert_eq!(metric(server, &refused), 0);
    }
}

/// Starts a server with fewer descriptors than the test opens connections.
fn server_with_few_files(config: &str) -> (Server, Folder) {
    let folder = Folder::new();
    let mut command = tidegate_with_open_files(256);
    command.args(["serve", "--http", "127.0.0.1:0"]);
    command.args(["--config", &folder.file("tidegate.yaml", config)]);
    (Server::launch_command(command), folder)
}

#[test]
fn idle_resp_connections_replace_each_other() {
    let (server, _folder) = server_with_few_files("");
    assert_idle_resp_connections_replace_each_other(&server, |stream| stream, |stream| stream);
}

#[test]
fn idle_resp_connections_with_tls_replace_each_other() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let files = Certificates::create(Path::new(folder.path()));
    let [certificate, key] = [&files.certificate, &files.key].map(|file| file.display());
    let config = format!("tls: {{certificate: {certificate}, key: {key}, listeners: [resp]}}");
    let (server, _folder) = server_with_few_files(&config);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = Arc::new(client.unwrap().with_root_certificates(roots).with_no_client_auth());
    let handshake = |stream| {
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::clone(&client), name).unwrap(), stream)
    };
    assert_idle_resp_connections_replace_each_other(&server, handshake, |stream| &mut stream.sock);
}

/// Returns an address of this machine that is not loopback, if it has one. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[test]
fn client_address_has_a_maximum_of_connections_and_loopback_and_trusted_proxies_have_none() {
    let Some(own) = own_address() else {
        eprintln!("skipped: this machine has only loopback addresses");
        return;
    };
    let upstream = Upstream::start();
    let limited = "connections: {per_client: 3}\n";
    let (server, _folder) = server_with_gateway(512, &upstream, limited);
    let port = server.listener("gateway").port();
    let mut open: Vec<_> = (0..3).map(|_| connect((own, port).into())).collect();
    for stream in &mut open {
        assert_eq!(status_line(stream, REQUEST).unwrap(), "HTTP/1.1 200 OK");
    }
    // The server may close the connection before it has read the request.
    let refused = status_line(&mut connect((own, port).into()), REQUEST);
    assert!(refused.as_ref().map_or(true, String::is_empty), "{refused:?}");
    let series = "tidegate_connections_refused_total{listener=\"gateway\",reason=\"client\"}";
    assert_eq!(metric(&server, series), 1);
    let mut loopback: Vec<_> = (0..6).map(|_| connect(gateway_address(&server))).collect();
    for stream in loopback.iter_mut().chain(&mut open) {
        assert_eq!(status_line(stream, REQUEST).unwrap(), "HTTP/1.1 200 OK");
    }
    drop(open);
    wait_for("a new connection is accepted after the others have closed", || {
        let status = status_line(&mut connect((own, port).into()), REQUEST).ok()?;
        (status == "HTTP/1.1 200 OK").then_some(())
    });
    let trusted = format!("{limited}identity: {{trusted_proxies: ['{own}']}}\n");
    let (server, _folder) = server_with_gateway(512, &upstream, &trusted);
    let port = server.listener("gateway").port();
    let mut open: Vec<_> = (0..6).map(|_| connect((own, port).into())).collect();
    for stream in &mut open {
        assert_eq!(status_line(stream, REQUEST).unwrap(), "HTTP/1.1 200 OK");
    }
}

#[test]
fn clients_without_the_token_do_not_lock_operators_out_of_the_admin_listener() {
    let config = "admin: {token: 0123456789abcdef}\nlisten: {http: '127.0.0.1:0'}\n";
    let server = Server::with_config(config);
    let admin = server.listener("admin");
    let operator = || {
        let request =
            b"GET /metrics HTTP/1.1\r\nhost: t\r\nauthorization: Bearer 0123456789abcdef\r\n\r\n";
        status_line(&mut connect(admin), request).unwrap_or_default()
    };
    let mut rejected: Vec<_> = (0..64).map(|_| connect(admin)).collect();
    for stream in &mut rejected {
        let status = status_line(stream, b"GET /metrics HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
        assert_eq!(status, "HTTP/1.1 401 Unauthorized");
    }
    wait_for("connections with status 401 are closed", || {
        rejected.iter_mut().all(is_closed).then_some(())
    });
    assert_eq!(operator(), "HTTP/1.1 200 OK");
    // The dashboard needs no token, and its connections stay open.
    let mut pages: Vec<_> = (0..64).map(|_| connect(admin)).collect();
    for stream in &mut pages {
        let status = status_line(stream, b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
        assert_eq!(status, "HTTP/1.1 200 OK");
    }
    assert_eq!(operator(), "HTTP/1.1 200 OK");
    // Clients that send nothing are replaced after a second.
    let _silent: Vec<_> = (0..64).map(|_| connect(admin)).collect();
    wait_for("the operator is served", || (operator() == "HTTP/1.1 200 OK").then_some(()));
}

/// Waits until every thread of a process sleeps. No listener tries to accept a connection then: Linux rejects such an attempt
/// without a free descriptor, even if no connection waits.
fn wait_until_threads_sleep(process: u32) {
    wait_for("all threads sleep", || {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let states =
            threads.map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        let mut sleeping =
            states.map(|state| state?.rsplit_once(") ")?.1.starts_with('S').then_some(()));
        sleeping.all(|sleeps| sleeps.is_some()).then_some(())
    });
}

#[test]
fn listener_without_a_free_descriptor_serves_its_clients_once_there_is_one() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let process = Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    let limit = |current| Rlimit { current: Some(current), maximum: Some(1_024) };
    let mut open = connect(server.address);
    assert_eq!(status_line(&mut open, REQUEST).unwrap(), "HTTP/1.1 404 Not Found");
    wait_until_threads_sleep(server.id());
    prlimit(Some(process), Resource::Nofile, limit(8)).unwrap();
    let mut waiting = connect(server.listener("resp"));
    waiting.write_all(b"PING\r\n").unwrap();
    server.wait_for_log("cannot accept a connection, retrying");
    // Open connections are served meanwhile.
    assert_eq!(status_line(&mut open, REQUEST).unwrap(), "HTTP/1.1 404 Not Found");
    prlimit(Some(process), Resource::Nofile, limit(1_024)).unwrap();
    let mut reply = [0; 7];
    waiting.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
    let series = "tidegate_connections_refused_total{listener=\"resp\",reason=\"files\"}";
    assert!((1..10_000).contains(&metric(&server, series)), "a busy loop");
}
