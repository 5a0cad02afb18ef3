//! Where the load goes.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Uri;
use rustls::pki_types::ServerName;
use tidegate::Secret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::ask::filled;
use crate::config;

/// How long a connection may take to be there.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is spoken there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// `POST /v1/check`.
    Http,
    /// `GET` of a URL, whoever answers.
    Get,
    /// `tidegate.v1.RateLimiter/Check`.
    Grpc,
    /// `TG.CHECK`.
    Resp,
}

impl Door {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Get => "get",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
        }
    }
}

/// A connection, with TLS or without.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A door at an address.
#[derive(Clone)]
pub(crate) struct Target {
    /// As it was given.
    url: String,
    door: Door,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    /// Of a RESP door.
    password: Option<Secret>,
    /// What the host stood for when it was looked up; nobody else is ever sent anything.
    addresses: Vec<SocketAddr>,
}

impl Target {
    /// What a URL names; one that is got as it is may have a path.
    ///
    /// # Errors
    /// What was found and what is wanted, as text for a person.
    pub(crate) fn new(url: &str, get: bool) -> Result<Self, String> {
        let wanted = || match get {
            true => format!("must be a URL like http://127.0.0.1:8000/orders, found {url:?}"),
            false => format!(
                "must be http://HOST:PORT, grpc:// or resp://, or https://, grpcs:// or resps:// with TLS, found {url:?}; --get takes any URL"
            ),
        };
        let uri: Uri = filled(url, "client").parse().map_err(|_| wanted())?;
        let (door, usual) = match (uri.scheme_str(), get) {
            (Some("http"), false) => (Door::Http, 80),
            (Some("https"), false) => (Door::Http, 443),
            (Some("grpc" | "grpcs"), false) => (Door::Grpc, 8081),
            (Some("resp" | "resps"), false) => (Door::Resp, 6380),
            (Some("http"), true) => (Door::Get, 80),
            (Some("https"), true) => (Door::Get, 443),
            _ => return Err(wanted()),
        };
        let has_path = !matches!(uri.path(), "" | "/") || uri.query().is_some();
        let host = uri.host().filter(|_| get || !has_path).ok_or_else(wanted)?;
        let tls = match uri.scheme_str() {
            Some("https" | "grpcs" | "resps") => {
                let protocols: &[&str] = match door {
                    Door::Http | Door::Get => &["http/1.1"],
                    Door::Grpc => &["h2"],
                    Door::Resp => &[],
                };
                let files = config::client_tls().map_err(|error| error.to_string())?;
                Some(files.connector(protocols)?)
            }
            _ => None,
        };
        let password = match door {
            Door::Resp => config::resp_password().map_err(|error| error.to_string())?,
            Door::Http | Door::Get | Door::Grpc => None,
        };
        Ok(Self {
            url: url.to_owned(),
            door,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(usual),
            tls,
            password,
            addresses: Vec::new(),
        })
    }

    /// Looks up where it is.
    ///
    /// # Errors
    /// Nobody knows, as text for a person.
    pub(crate) async fn resolve(&mut self) -> Result<(), String> {
        let Self { host, port, .. } = self;
        let found = tokio::net::lookup_host((host.trim_matches(['[', ']']), *port)).await;
        self.addresses = found.map_err(|error| format!("{host}: {error}"))?.collect();
        match self.addresses.is_empty() {
            true => Err(format!("{host}: has no address")),
            false => Ok(()),
        }
    }

    /// Whether every address of it is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn door(&self) -> Door {
        self.door
    }

    /// What a RESP door wants to hear first.
    pub(super) fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }

    /// Host and port, as a request names them.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// A connection to the first address that takes one.
    ///
    /// # Errors
    /// None does, as text for a person.
    pub(super) async fn connect(&self) -> Result<Box<dyn Wire>, String> {
        match tokio::time::timeout(PATIENCE, self.reach()).await {
            Ok(reached) => reached.map_err(|error| format!("can't connect: {error}")),
            Err(_) => Err(format!("can't connect within {PATIENCE:?}")),
        }
    }

    async fn reach(&self) -> std::io::Result<Box<dyn Wire>> {
        let stream = TcpStream::connect(&*self.addresses).await?;
        // What is sent is small, and its answer is waited for.
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(std::io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_says_which_door_it_is() {
        for (url, get, door, authority) in [
            ("http://127.0.0.1:8080", false, Door::Http, "127.0.0.1:8080"),
            ("grpc://localhost", false, Door::Grpc, "localhost:8081"),
            ("resp://[::1]", false, Door::Resp, "[::1]:6380"),
            ("http://127.0.0.1/u/{client}?q={client}", true, Door::Get, "127.0.0.1:80"),
        ] {
            let target = Target::new(url, get).unwrap();
            assert_eq!((target.door(), target.authority().as_str()), (door, authority), "{url}");
        }
    }

    #[test]
    fn what_is_no_door_is_refused_with_what_is_wanted() {
        for (url, get) in [
            ("127.0.0.1:8080", false),
            ("http://127.0.0.1/orders", false),
            ("redis://127.0.0.1", false),
            ("grpc://127.0.0.1", true),
            ("", true),
        ] {
            let error = Target::new(url, get).err().unwrap();
            assert!(error.contains("http://") && error.contains("found"), "{error}");
        }
    }

    #[tokio::test]
    async fn only_this_machine_is_local() {
        for (url, local) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://[::ffff:127.0.0.1]:1", true),
            ("http://192.0.2.1:1", false),
            ("http://0.0.0.0:1", false),
        ] {
            let mut target = Target::new(url, false).unwrap();
            target.resolve().await.unwrap();
            assert_eq!(target.is_local(), local, "{url}");
        }
    }
}
