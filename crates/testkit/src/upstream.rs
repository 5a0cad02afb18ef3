//! A web server to stand behind a proxy.

mod body;
mod responses;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Certificates;
use crate::loopback_server::LoopbackServer;
use crate::port::Port;

/// Speaks HTTP/1.1 and HTTP/2 on one port, whichever the first bytes are (or what TLS agreed upon), and does
/// by path what a proxy has to get right:
///
/// | path | answer |
/// |---|---|
/// | `/head` | JSON: `method`, `target`, `version`, and `headers` as pairs in the order in which they came |
/// | `/echo` | the body as it comes in, its trailers too |
/// | `/bytes/N` | N bytes with their length, made while they are sent |
/// | `/chunked/N` | the same without a length |
/// | `/swallow` | how many bytes of body there were, after the last |
/// | `/early/S` | status S at once, before the body was read; then it is read |
/// | `/status/S` | status S and no body, an `etag` |
/// | `/trailers` | `xxxx`, then the trailer `x-sum: 4` |
/// | `/held` | `done`, once [`release`](Upstream::release) lets it go |
/// | `/close` | an answer after which the connection is closed |
/// | `/broken` | 100 bytes are announced, ten come, and then the end |
/// | `/upgrade` | 101 for any protocol, then bytes are sent back as they come |
///
/// Anything else is 404. A HEAD request gets the same head as a GET.
pub struct Upstream {
    stage: LoopbackServer,
    scheme: &'static str,
    seen: Arc<RequestCounts>,
}

/// Counters of received requests.
struct RequestCounts {
    lines: Mutex<Vec<String>>,
    swallowed: AtomicU64,
    connections: AtomicUsize,
    released: Semaphore,
}

impl Upstream {
    /// Starts one on a free port.
    pub fn start() -> Self {
        Self::open(0, None)
    }

    /// Starts an upstream on a reserved port, so that it can be stopped and started again.
    ///
    /// # Panics
    /// The port is in use.
    pub fn at(port: &Port) -> Self {
        Self::open(port.number(), None)
    }

    /// Starts one that speaks TLS.
    ///
    /// # Panics
    /// The certificates are invalid.
    pub fn with_tls(certificates: &Certificates) -> Self {
        let chain = CertificateDer::pem_file_iter(&certificates.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let key = PrivateKeyDer::from_pem_file(&certificates.key);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider knows the usual versions")
            .with_no_client_auth()
            .with_single_cert(chain.expect("a certificate"), key.expect("a key"));
        let mut config = config.expect("the key is the certificate's");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::open(0, Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn open(port: u16, tls: Option<TlsAcceptor>) -> Self {
        let seen = Arc::new(RequestCounts {
            lines: Mutex::default(),
            swallowed: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            released: Semaphore::new(0),
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let serving = Arc::clone(&seen);
        let stage = LoopbackServer::open(port, move |stream| {
            serving.connections.fetch_add(1, Ordering::SeqCst);
            let (seen, tls) = (Arc::clone(&serving), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => serve(stream, seen).await,
                    // A connection without a TLS handshake is closed.
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve(stream, seen).await;
                        }
                    }
                }
            });
        });
        Self { stage, scheme, seen }
    }

    /// Returns the address of its listener.
    pub fn address(&self) -> SocketAddr {
        self.stage.address()
    }

    /// Returns `http://127.0.0.1:port`, or `https://`.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address())
    }

    /// Returns `h2c://127.0.0.1:port`: HTTP/2 without TLS.
    pub fn h2c_url(&self) -> String {
        format!("h2c://{}", self.address())
    }

    /// Returns the number of requests with this start: `POST /echo`. A request counts when its head is complete.
    pub fn seen(&self, line: &str) -> usize {
        let lines = self.seen.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|seen| seen.starts_with(line)).count()
    }

    /// Returns the number of bytes that `/swallow` and `/early` have read so far.
    pub fn swallowed(&self) -> u64 {
        self.seen.swallowed.load(Ordering::SeqCst)
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Lets so many requests to `/held` be answered, those that wait and those to come.
    pub fn release(&self, requests: usize) {
        self.seen.released.add_permits(requests);
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("url", &self.url()).finish_non_exhaustive()
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    seen: Arc<RequestCounts>,
) {
    let answer = service_fn(move |request| responses::respond(request, Arc::clone(&seen)));
    let builder = auto::Builder::new(TokioExecutor::new());
    // A connection that breaks off is what tests are about.
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), answer).await;
}
