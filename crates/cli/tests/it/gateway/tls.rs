//! TLS between client and gateway, and between gateway and upstream.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tidegate_testkit::{Certificates, Tool, Upstream, lacking};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{GatewayServer, NO_LIMIT};
use crate::kit::Folder;

/// Sends a request over TLS with these ALPN protocols. Returns the selected protocol, and the head that the upstream got.
fn get_head(
    address: SocketAddr,
    certificates: &Certificates,
    alpn: &[&str],
) -> (Option<String>, Value) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let selected = stream.get_ref().1.alpn_protocol();
        let selected = selected.map(|name| String::from_utf8(name.to_vec()).unwrap());
        let stream = TokioIo::new(stream);
        let body = Empty::<Bytes>::new();
        let response = if selected.as_deref() == Some("h2") {
            let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
            let (mut send, connection) = made.unwrap();
            tokio::spawn(connection);
            let request = Request::get("https://localhost/head").body(body).unwrap();
            send.send_request(request).await.unwrap()
        } else {
            let (mut send, connection) =
                hyper::client::conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let request = Request::get("/head").header("host", "localhost").body(body).unwrap();
            send.send_request(request).await.unwrap()
        };
        let version =
            if selected.as_deref() == Some("h2") { Version::HTTP_2 } else { Version::HTTP_11 };
        assert_eq!((response.status().as_u16(), response.version()), (200, version));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (selected, serde_json::from_slice(&body).unwrap())
    })
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn alpn_selects_http2_or_http1() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let upstream = Upstream::start();
    let (certificate, key) = (path_text(&certificates.certificate), path_text(&certificates.key));
    let config = format!("tls: {{certificate: {certificate}, key: {key}, listeners: [gateway]}}");
    let gateway = GatewayServer::with_config(&upstream.url(), &config);
    for (alpn, expected) in [
        (&["h2"][..], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&["http/1.1", "h2"], Some("h2")),
        (&[], None),
    ] {
        let (selected, head) = get_head(gateway.address(), &certificates, alpn);
        assert_eq!(selected.as_deref(), expected, "{alpn:?}");
        let proto = serde_json::json!(["x-forwarded-proto", "https"]);
        assert!(head["headers"].as_array().unwrap().contains(&proto), "{head}");
    }
    // A request without TLS gets no response and is not forwarded.
    let mut plain = gateway.connect();
    plain.write("GET /head HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!String::from_utf8_lossy(&plain.read_to_end()).contains("200"));
    assert_eq!(upstream.seen("GET"), 4);
}

#[test]
fn upstream_certificate_is_verified() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let (folder, other) = (Folder::new(), Folder::new());
    let certificates = Certificates::create(Path::new(folder.path()));
    let other_certificates = Certificates::create(Path::new(other.path()));
    let upstream = Upstream::with_tls(&certificates);
    let start_gateway = |ca: &Path| {
        let (url, ca) = (upstream.url(), path_text(ca));
        let config =
            format!("gateway: {{upstreams: [{{name: shop, servers: ['{url}'], ca: {ca}}}]}}");
        GatewayServer::launch(&[], &config, NO_LIMIT)
    };
    let gateway = start_gateway(&certificates.ca);
    let mut client = gateway.connect();
    let head = client.get("/head").json();
    // The upstream prefers HTTP/2 in ALPN.
    assert_eq!(head["version"], "HTTP/2.0");
    assert_eq!(client.send("POST", "/echo", &[], "hello").text(), "hello");
    assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    let distrusting = start_gateway(&other_certificates.ca);
    distrusting.connect().get("/head").assert_problem(502);
    assert_eq!(upstream.seen("GET /head"), 1);
}
