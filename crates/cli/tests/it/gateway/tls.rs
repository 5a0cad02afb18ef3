//! TLS on either side of the gateway.

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

use super::{Gateway, NO_LIMIT};
use crate::kit::Folder;

/// What was agreed upon with the gateway, and the head that its upstream was shown.
fn head(
    address: SocketAddr,
    certificates: &Certificates,
    offers: &[&str],
) -> (Option<String>, Value) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|name| name.as_bytes().to_vec()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let agreed = stream.get_ref().1.alpn_protocol();
        let agreed = agreed.map(|name| String::from_utf8(name.to_vec()).unwrap());
        let stream = TokioIo::new(stream);
        let body = Empty::<Bytes>::new();
        let answer = if agreed.as_deref() == Some("h2") {
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
        let spoken =
            if agreed.as_deref() == Some("h2") { Version::HTTP_2 } else { Version::HTTP_11 };
        assert_eq!((answer.status().as_u16(), answer.version()), (200, spoken));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (agreed, serde_json::from_slice(&body).unwrap())
    })
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn both_versions_are_agreed_upon_inside_of_tls() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let upstream = Upstream::start();
    let (certificate, key) = (shown(&certificates.certificate), shown(&certificates.key));
    let config = format!("tls: {{certificate: {certificate}, key: {key}, listeners: [gateway]}}");
    let gateway = Gateway::with_config(&upstream.url(), &config);
    for (offers, expected) in [
        (&["h2"][..], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&["http/1.1", "h2"], Some("h2")),
        (&[], None),
    ] {
        let (agreed, head) = head(gateway.address(), &certificates, offers);
        assert_eq!(agreed.as_deref(), expected, "{offers:?}");
        let proto = serde_json::json!(["x-forwarded-proto", "https"]);
        assert!(head["headers"].as_array().unwrap().contains(&proto), "{head}");
    }
    // Who does not speak it is not answered, and nobody behind hears of it.
    let mut plain = gateway.connect();
    plain.write("GET /head HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!String::from_utf8_lossy(&plain.rest()).contains("200"));
    assert_eq!(upstream.seen("GET"), 4);
}

#[test]
fn an_upstream_with_tls_is_believed_by_its_certificate_alone() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let (folder, other) = (Folder::new(), Folder::new());
    let certificates = Certificates::create(Path::new(folder.path()));
    let strangers = Certificates::create(Path::new(other.path()));
    let upstream = Upstream::with_tls(&certificates);
    let before = |ca: &Path| {
        let (url, ca) = (upstream.url(), shown(ca));
        let config =
            format!("gateway: {{upstreams: [{{name: shop, servers: ['{url}'], ca: {ca}}}]}}");
        Gateway::launch(&[], &config, NO_LIMIT)
    };
    let gateway = before(&certificates.ca);
    let mut client = gateway.connect();
    let head = client.get("/head").json();
    // The server prefers it.
    assert_eq!(head["version"], "HTTP/2.0");
    assert_eq!(client.ask("POST", "/echo", &[], "hello").text(), "hello");
    assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    let wary = before(&strangers.ca);
    wary.connect().get("/head").assert_problem(502);
    assert_eq!(upstream.seen("GET /head"), 1);
}
