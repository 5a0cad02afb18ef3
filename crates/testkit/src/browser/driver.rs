//! The WebDriver protocol over HTTP.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::wait::WAIT_TIMEOUT;

/// A browser that a driver has opened.
#[derive(Debug)]
pub(crate) struct DriverSession {
    port: u16,
    session: String,
}

/// An error of the driver.
#[derive(Debug)]
pub(crate) struct DriverError {
    /// The WebDriver error code; empty if the driver does not reply.
    pub(crate) kind: String,
    message: String,
}

impl DriverSession {
    /// Starts a browser through a driver.
    pub(crate) fn open(port: u16, capabilities: &Value) -> Result<Self, DriverError> {
        let body = json!({"capabilities": {"alwaysMatch": capabilities}});
        let opened = ask(port, "POST", "/session", Some(&body))?;
        let session = opened["sessionId"].as_str().unwrap_or_default().to_owned();
        Ok(Self { port, session })
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, DriverError> {
        ask(self.port, "POST", &self.path(path), Some(body))
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, DriverError> {
        ask(self.port, "GET", &self.path(path), None)
    }

    /// Ends the browser.
    pub(crate) fn close(&self) -> Result<Value, DriverError> {
        ask(self.port, "DELETE", &format!("/session/{}", self.session), None)
    }

    fn path(&self, path: &str) -> String {
        format!("/session/{}/{path}", self.session)
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Below the first line there is only a stack trace of the driver.
        let message = self.message.lines().next().unwrap_or_default();
        write!(f, "{}: {message}", self.kind)
    }
}

impl From<io::Error> for DriverError {
    fn from(error: io::Error) -> Self {
        Self { kind: String::new(), message: format!("the driver does not answer: {error}") }
    }
}

fn ask(port: u16, method: &str, path: &str, body: Option<&Value>) -> Result<Value, DriverError> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    // The driver has a shorter timeout, and returns the reason.
    stream.set_read_timeout(Some(WAIT_TIMEOUT + Duration::from_secs(10)))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n");
    let head = format!("{head}content-type: application/json\r\nconnection: close\r\n");
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes())?;
    let mut answer = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        answer.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            if line.starts_with("HTTP/") {
                continue;
            }
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body)?;
    let mut answer: Value = serde_json::from_slice(&body).map_err(io::Error::from)?;
    let value = answer["value"].take();
    match value["error"].as_str() {
        Some(kind) => {
            let message = value["message"].as_str().unwrap_or_default().to_owned();
            Err(DriverError { kind: kind.to_owned(), message })
        }
        None => Ok(value),
    }
}
