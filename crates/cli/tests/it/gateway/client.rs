//! An HTTP/1.1 client for tests, with access to every byte.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use tidegate_testkit::WAIT_TIMEOUT;

/// One connection of a client.
pub(crate) struct HttpClient {
    stream: BufReader<TcpStream>,
}

/// A response with field names in lower case.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl HttpResponse {
    /// Returns the value of a field. Panics if the field occurs twice.
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

    /// Checks that the gateway itself created this error response.
    pub(crate) fn assert_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.json()["status"], status, "{self:?}");
    }
}

/// Returns the text of a request, with a `Content-Length` if it has a body or is a POST.
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

impl HttpClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).unwrap()
    }

    pub(crate) fn try_connect(address: SocketAddr) -> std::io::Result<Self> {
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

    /// Returns a second handle of the socket, for a thread that writes while this one reads.
    pub(crate) fn socket(&self) -> TcpStream {
        self.stream.get_ref().try_clone().unwrap()
    }

    pub(crate) fn get(&mut self, path: &str) -> HttpResponse {
        self.send("GET", path, &[], "")
    }

    /// Sends a request, and reads its response.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> HttpResponse {
        self.write(request(method, path, fields, body));
        self.receive(method)
    }

    /// Reads the response to a request with this method, and skips 100 responses before it.
    pub(crate) fn receive(&mut self, method: &str) -> HttpResponse {
        self.try_receive(method).unwrap_or_else(|| panic!("no whole response to {method}"))
    }

    /// As [`receive`](Self::receive). Returns `None` if the connection ends before the response does.
    pub(crate) fn try_receive(&mut self, method: &str) -> Option<HttpResponse> {
        let mut response = self.read_head()?;
        while response.status == 100 {
            response = self.read_head()?;
        }
        let bodiless = matches!(response.status, 101 | 204 | 304) || method == "HEAD";
        if bodiless {
            return Some(response);
        }
        match (response.field("transfer-encoding"), response.field("content-length")) {
            (Some(encoding), length) => {
                assert_eq!((encoding, length), ("chunked", None), "{response:?}");
                self.read_chunks(&mut response)?;
            }
            (None, Some(length)) => {
                response.body = vec![0; length.parse().unwrap()];
                self.stream.read_exact(&mut response.body).ok()?;
            }
            (None, None) => drop(self.stream.read_to_end(&mut response.body).ok()?),
        }
        Some(response)
    }

    /// Reads the head of the next response, which may be an interim response.
    pub(crate) fn read_head(&mut self) -> Option<HttpResponse> {
        let line = self.read_line()?;
        let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "));
        let status = rest.and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {line:?}"));
        let fields = self.read_fields()?;
        Some(HttpResponse { status, fields, body: Vec::new(), trailers: Vec::new() })
    }

    /// Reads one chunk of a body. The last chunk is empty, and its trailers are not read yet.
    pub(crate) fn read_chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.read_line()?;
        let size = usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("{line:?}"));
        let mut chunk = vec![0; size];
        self.stream.read_exact(&mut chunk).ok()?;
        if size > 0 {
            assert_eq!(self.read_line()?, "");
        }
        Some(chunk)
    }

    fn read_chunks(&mut self, response: &mut HttpResponse) -> Option<()> {
        loop {
            let chunk = self.read_chunk()?;
            if chunk.is_empty() {
                response.trailers = self.read_fields()?;
                return Some(());
            }
            response.body.extend(chunk);
        }
    }

    fn read_fields(&mut self) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Some(fields);
            }
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line:?}"));
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    fn read_line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).ok()?;
        let line = line.strip_suffix(b"\r\n")?;
        Some(String::from_utf8_lossy(line).into_owned())
    }

    /// Reads exactly `length` bytes.
    pub(crate) fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Discards up to `length` bytes. Returns how many were discarded before the end of the connection.
    pub(crate) fn discard(&mut self, length: u64) -> u64 {
        std::io::copy(&mut self.stream.by_ref().take(length), &mut std::io::sink()).unwrap()
    }

    /// Reads everything until the connection is closed or reset.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }
}
