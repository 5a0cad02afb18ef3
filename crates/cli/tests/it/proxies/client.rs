//! A client with its own loopback address, since the limits are by address.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};

use tidegate_testkit::WAIT_TIMEOUT;
use tokio::net::TcpSocket;

#[derive(Debug)]
pub(crate) struct LoopbackClient {
    local: SocketAddrV4,
    proxy: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct ProxyResponse {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl ProxyResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl LoopbackClient {
    /// Returns the client with the address 127.0.0.`host`.
    pub(crate) fn new(host: u8, proxy: SocketAddr) -> Self {
        Self { local: SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, host), 0), proxy }
    }

    pub(crate) fn get(&self, path: &str) -> ProxyResponse {
        self.get_with(path, &[])
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> ProxyResponse {
        self.request("GET", path, headers, "").unwrap_or_else(|| panic!("no response to {path}"))
    }

    /// Sends a request to a proxy that may not have started. Returns nothing if there is no response.
    pub(crate) fn try_get(&self, path: &str) -> Option<ProxyResponse> {
        self.request("GET", path, &[], "")
    }

    /// Returns the response, or nothing if the proxy closes the connection without one.
    pub(crate) fn try_get_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Option<ProxyResponse> {
        self.request("GET", path, headers, "")
    }

    pub(crate) fn post(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> ProxyResponse {
        self.request("POST", path, headers, body).unwrap_or_else(|| panic!("no response to {path}"))
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<ProxyResponse> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: shop.example\r\n");
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        let length = body.len();
        let _ = write!(request, "Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        let mut stream = self.connect()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).ok()?;
        parse_response(&String::from_utf8(response).ok()?)
    }

    /// Connects from this client's address. The standard library can't bind a socket before it connects.
    fn connect(&self) -> Option<TcpStream> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.bind(self.local.into())?;
            socket.connect(self.proxy).await?.into_std()
        });
        let stream = stream.ok()?;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        Some(stream)
    }
}

fn parse_response(text: &str) -> Option<ProxyResponse> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    Some(ProxyResponse { status, headers: headers.collect(), body: body.to_owned() })
}
