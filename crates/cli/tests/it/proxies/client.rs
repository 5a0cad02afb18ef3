//! A client with an address of its own on the loopback network.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};

use tidegate_testkit::WAIT_TIMEOUT;
use tokio::net::TcpSocket;

#[derive(Debug)]
pub(crate) struct Client {
    from: SocketAddrV4,
    to: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Client {
    /// The client 127.0.0.`host`.
    pub(crate) fn at(host: u8, to: SocketAddr) -> Self {
        Self { from: SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, host), 0), to }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[])
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers, "").unwrap_or_else(|| panic!("no answer to {path}"))
    }

    /// The answer of somebody who may not be there yet.
    pub(crate) fn try_get(&self, path: &str) -> Option<Answer> {
        self.ask("GET", path, &[], "")
    }

    /// The answer, if the proxy does not hang up before it gives one.
    pub(crate) fn try_get_with(&self, path: &str, headers: &[(&str, &str)]) -> Option<Answer> {
        self.ask("GET", path, headers, "")
    }

    pub(crate) fn post(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("POST", path, headers, body).unwrap_or_else(|| panic!("no answer to {path}"))
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Answer> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: shop.example\r\n");
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        let length = body.len();
        let _ = write!(request, "Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        let mut stream = self.connect()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        read(&String::from_utf8(answer).ok()?)
    }

    /// A connection that comes from this client's address, which only tokio lets us choose.
    fn connect(&self) -> Option<TcpStream> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.bind(self.from.into())?;
            socket.connect(self.to).await?.into_std()
        });
        let stream = stream.ok()?;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        Some(stream)
    }
}

fn read(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    Some(Answer { status, headers: headers.collect(), body: body.to_owned() })
}
