//! The target of a load.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Uri;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::request::fill_client;

/// Longest time until a connection is open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// `POST /v1/check`.
    Http,
    /// `GET` of a URL of any server.
    Get,
    /// `tidegate.v1.RateLimiter/Check`.
    Grpc,
    /// `TG.CHECK`.
    Resp,
}

impl ListenerKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Get => "get",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
        }
    }
}

/// A connection, with TLS or without.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A listener at an address.
#[derive(Clone)]
pub struct LoadTarget {
    /// The URL as it was given.
    url: String,
    listener: ListenerKind,
    host: String,
    port: u16,
    uses_tls: bool,
    tls: Option<TlsConnector>,
    /// The password of a RESP listener. Never printed.
    password: Option<String>,
    /// The addresses of the host when it was resolved; no others are used.
    addresses: Vec<SocketAddr>,
}

impl LoadTarget {
    /// Parses a URL; with `get` it may have a path.
    ///
    /// # Errors
    /// A message with what was found and what is wanted.
    pub fn new(url: &str, get: bool) -> Result<Self, String> {
        let wanted = || match get {
            true => format!("must be a URL like http://127.0.0.1:8000/orders, found {url:?}"),
            false => format!(
                "must be http://HOST:PORT, grpc:// or resp://, or https://, grpcs:// or resps:// with TLS, found {url:?}; --get takes any URL"
            ),
        };
        let uri: Uri = fill_client(url, "client").parse().map_err(|_| wanted())?;
        let (listener, default_port) = match (uri.scheme_str(), get) {
            (Some("http"), false) => (ListenerKind::Http, 80),
            (Some("https"), false) => (ListenerKind::Http, 443),
            (Some("grpc" | "grpcs"), false) => (ListenerKind::Grpc, 8081),
            (Some("resp" | "resps"), false) => (ListenerKind::Resp, 6380),
            (Some("http"), true) => (ListenerKind::Get, 80),
            (Some("https"), true) => (ListenerKind::Get, 443),
            _ => return Err(wanted()),
        };
        let has_path = !matches!(uri.path(), "" | "/") || uri.query().is_some();
        let host = uri.host().filter(|_| get || !has_path).ok_or_else(wanted)?;
        let uses_tls = matches!(uri.scheme_str(), Some("https" | "grpcs" | "resps"));
        Ok(Self {
            url: url.to_owned(),
            listener,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(default_port),
            uses_tls,
            tls: None,
            password: None,
            addresses: Vec::new(),
        })
    }

    /// Resolves the host.
    ///
    /// # Errors
    /// A message: the host has no address.
    pub async fn resolve(&mut self) -> Result<(), String> {
        let Self { host, port, .. } = self;
        let found = tokio::net::lookup_host((host.trim_matches(['[', ']']), *port)).await;
        self.addresses = found.map_err(|error| format!("{host}: {error}"))?.collect();
        match self.addresses.is_empty() {
            true => Err(format!("{host}: has no address")),
            false => Ok(()),
        }
    }

    /// Returns whether all of its addresses are on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
    }

    /// Returns the URL as it was given.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the protocol of the listener.
    #[must_use]
    pub fn listener(&self) -> ListenerKind {
        self.listener
    }

    /// Returns the protocols to negotiate if the target is reached through TLS; then it needs [`with_tls`](Self::with_tls).
    #[must_use]
    pub fn tls_protocols(&self) -> Option<&'static [&'static str]> {
        self.uses_tls.then_some(match self.listener {
            ListenerKind::Http | ListenerKind::Get => &["http/1.1"],
            ListenerKind::Grpc => &["h2"],
            ListenerKind::Resp => &[],
        })
    }

    /// Sets the client side of TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: TlsConnector) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the password that is sent to a RESP listener.
    #[must_use]
    pub fn with_password(mut self, password: Option<String>) -> Self {
        self.password = password;
        self
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns host and port, as a request has them.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Connects to the first address that accepts.
    ///
    /// # Errors
    /// A message: no address accepts.
    pub(crate) async fn connect(&self) -> Result<Box<dyn ByteStream>, String> {
        match tokio::time::timeout(CONNECT_TIMEOUT, self.connect_stream()).await {
            Ok(connected) => connected.map_err(|error| format!("can't connect: {error}")),
            Err(_) => Err(format!("can't connect within {CONNECT_TIMEOUT:?}")),
        }
    }

    async fn connect_stream(&self) -> std::io::Result<Box<dyn ByteStream>> {
        let stream = TcpStream::connect(&*self.addresses).await?;
        // Requests are small, and each waits for its reply.
        stream.set_nodelay(true)?;
        if !self.uses_tls {
            return Ok(Box::new(stream));
        }
        let no_tls = || std::io::Error::other("TLS of the client is not configured");
        let tls = self.tls.as_ref().ok_or_else(no_tls)?;
        let name = ServerName::try_from(self.host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(std::io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_scheme_selects_the_listener() {
        for (url, get, listener, authority) in [
            ("http://127.0.0.1:8080", false, ListenerKind::Http, "127.0.0.1:8080"),
            ("grpc://localhost", false, ListenerKind::Grpc, "localhost:8081"),
            ("resp://[::1]", false, ListenerKind::Resp, "[::1]:6380"),
            ("http://127.0.0.1/u/{client}?q={client}", true, ListenerKind::Get, "127.0.0.1:80"),
        ] {
            let target = LoadTarget::new(url, get).unwrap();
            assert_eq!(
                (target.listener(), target.authority().as_str()),
                (listener, authority),
                "{url}"
            );
        }
    }

    #[test]
    fn invalid_target_is_rejected_with_the_wanted_form() {
        for (url, get) in [
            ("127.0.0.1:8080", false),
            ("http://127.0.0.1/orders", false),
            ("redis://127.0.0.1", false),
            ("grpc://127.0.0.1", true),
            ("", true),
        ] {
            let error = LoadTarget::new(url, get).err().unwrap();
            assert!(error.contains("http://") && error.contains("found"), "{error}");
        }
    }

    #[tokio::test]
    async fn loopback_addresses_are_local() {
        for (url, local) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://[::ffff:127.0.0.1]:1", true),
            ("http://192.0.2.1:1", false),
            ("http://0.0.0.0:1", false),
        ] {
            let mut target = LoadTarget::new(url, false).unwrap();
            target.resolve().await.unwrap();
            assert_eq!(target.is_local(), local, "{url}");
        }
    }
}
