//! Where the load goes.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Uri;
use tokio::net::TcpStream;

use super::ask::filled;
use crate::client::ClientTls;
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

/// A door at an address.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// As it was given.
    url: String,
    door: Door,
    host: String,
    port: u16,
    tls: Option<ClientTls>,
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
                "must be http://HOST:PORT, https://, grpc:// or resp://, found {url:?}; --get takes any URL"
            ),
        };
        let uri: Uri = filled(url, "client").parse().map_err(|_| wanted())?;
        let (door, usual) = match (uri.scheme_str(), get) {
            (Some("http"), false) => (Door::Http, 80),
            (Some("https"), false) => (Door::Http, 443),
            (Some("grpc"), false) => (Door::Grpc, 8081),
            (Some("resp"), false) => (Door::Resp, 6380),
            (Some("http"), true) => (Door::Get, 80),
            (Some("https"), true) => (Door::Get, 443),
            _ => return Err(wanted()),
        };
        let has_path = !matches!(uri.path(), "" | "/") || uri.query().is_some();
        let host = uri.host().filter(|_| get || !has_path).ok_or_else(wanted)?;
        let tls = match uri.scheme_str() {
            Some("https") => Some(config::client_tls().map_err(|error| error.to_string())?),
            _ => None,
        };
        Ok(Self {
            url: url.to_owned(),
            door,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(usual),
            tls,
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

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn tls(&self) -> Option<&ClientTls> {
        self.tls.as_ref()
    }

    /// Host and port, as a request names them.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The first address.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.addresses.first().copied()
    }

    /// A connection to the first address that takes one.
    ///
    /// # Errors
    /// None does, as text for a person.
    pub(super) async fn connect(&self) -> Result<TcpStream, String> {
        let connecting = TcpStream::connect(&*self.addresses);
        match tokio::time::timeout(PATIENCE, connecting).await {
            Ok(Ok(stream)) => {
                // What is sent is small, and its answer is waited for.
                stream.set_nodelay(true).map_err(|error| error.to_string())?;
                Ok(stream)
            }
            Ok(Err(error)) => Err(format!("can't connect: {error}")),
            Err(_) => Err(format!("can't connect within {PATIENCE:?}")),
        }
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
            let error = Target::new(url, get).unwrap_err();
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
