//! A client of HTTP/1.1 that sees every byte.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use tidegate_testkit::WAIT_TIMEOUT;

/// One connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

/// An answer, with the names of its fields in lower case.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Answer {
    /// The only value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// That it is a problem of the gateway's own.
    pub(crate) fn assert_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.json()["status"], status, "{self:?}");
    }
}

/// A request with its length.
pub(crate) fn request(method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: shop.example\r\n");
    for (name, value) in fields {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if !body.is_empty() || method == "POST" {
        let _ = write!(text, "Content-Length: {}\r\n", body.len());
    }
    text + "\r\n" + body
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::try_to(address).unwrap()
    }

    pub(crate) fn try_to(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
        stream.set_write_timeout(Some(WAIT_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(crate) fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_write(bytes).unwrap();
    }

    pub(crate) fn try_write(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_ref())
    }

    /// The socket, for who writes while somebody else reads.
    pub(crate) fn socket(&self) -> TcpStream {
        self.stream.get_ref().try_clone().unwrap()
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.write(request(method, path, fields, body));
        self.receive(method)
    }

    /// The answer to a request with this method; of those before the last (100) nothing is kept.
    pub(crate) fn receive(&mut self, method: &str) -> Answer {
        self.try_receive(method).unwrap_or_else(|| panic!("no whole answer to {method}"))
    }

    /// Nothing if the connection ends before the answer does.
    pub(crate) fn try_receive(&mut self, method: &str) -> Option<Answer> {
        let mut answer = self.head()?;
        while answer.status == 100 {
            answer = self.head()?;
        }
        let bodiless = matches!(answer.status, 101 | 204 | 304) || method == "HEAD";
        if bodiless {
            return Some(answer);
        }
        match (answer.field("transfer-encoding"), answer.field("content-length")) {
            (Some(encoding), length) => {
                assert_eq!((encoding, length), ("chunked", None), "{answer:?}");
                self.chunks(&mut answer)?;
            }
            (None, Some(length)) => {
                answer.body = vec![0; length.parse().unwrap()];
                self.stream.read_exact(&mut answer.body).ok()?;
            }
            (None, None) => drop(self.stream.read_to_end(&mut answer.body).ok()?),
        }
        Some(answer)
    }

    /// The head of the next answer, also of one that is not the last.
    pub(crate) fn head(&mut self) -> Option<Answer> {
        let line = self.line()?;
        let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "));
        let status = rest.and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {line:?}"));
        let fields = self.fields()?;
        Some(Answer { status, fields, body: Vec::new(), trailers: Vec::new() })
    }

    /// One chunk of a body; empty: the last, whose trailers are still to be read.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.line()?;
        let size = usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("{line:?}"));
        let mut chunk = vec![0; size];
        self.stream.read_exact(&mut chunk).ok()?;
        if size > 0 {
            assert_eq!(self.line()?, "");
        }
        Some(chunk)
    }

    fn chunks(&mut self, answer: &mut Answer) -> Option<()> {
        loop {
            let chunk = self.chunk()?;
            if chunk.is_empty() {
                answer.trailers = self.fields()?;
                return Some(());
            }
            answer.body.extend(chunk);
        }
    }

    fn fields(&mut self) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(fields);
            }
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line:?}"));
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).ok()?;
        let line = line.strip_suffix(b"\r\n")?;
        Some(String::from_utf8_lossy(line).into_owned())
    }

    /// So many bytes of whatever comes.
    pub(crate) fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Passes over so many bytes; how many there were before the end.
    pub(crate) fn pass_over(&mut self, length: u64) -> u64 {
        std::io::copy(&mut self.stream.by_ref().take(length), &mut std::io::sink()).unwrap()
    }

    /// Everything up to the end of the connection, however it comes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }
}
