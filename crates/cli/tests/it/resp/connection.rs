//! A RESP connection that can send any bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use tidegate_testkit::WAIT_TIMEOUT;

/// A reply in RESP 2 or 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RespValue {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Null,
    Array(Vec<RespValue>),
    Map(Vec<(RespValue, RespValue)>),
}

impl RespValue {
    pub(crate) fn integer(&self) -> i64 {
        let Self::Integer(number) = self else { panic!("no number: {self:?}") };
        *number
    }

    /// Returns the numbers of an array of integers.
    pub(crate) fn integers(&self) -> Vec<i64> {
        let Self::Array(items) = self else { panic!("no array: {self:?}") };
        items.iter().map(Self::integer).collect()
    }
}

pub(crate) struct RespConnection {
    stream: BufReader<TcpStream>,
}

impl RespConnection {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a command as client libraries write it, and reads the reply.
    pub(crate) fn call(&mut self, command: &[&str]) -> RespValue {
        self.send(&encode_command(command));
        self.receive()
    }

    pub(crate) fn receive(&mut self) -> RespValue {
        let line = self.read_line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => RespValue::Simple(rest.to_owned()),
            "-" => RespValue::Error(rest.to_owned()),
            ":" => RespValue::Integer(rest.parse().unwrap()),
            "_" => RespValue::Null,
            "$" if rest == "-1" => RespValue::Null,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                RespValue::Bulk(String::from_utf8(bytes).unwrap())
            }
            "*" => RespValue::Array((0..rest.parse().unwrap()).map(|_| self.receive()).collect()),
            "%" => {
                let pairs = 0..rest.parse().unwrap();
                RespValue::Map(pairs.map(|_| (self.receive(), self.receive())).collect())
            }
            other => panic!("no reply: {other:?} {rest:?}"),
        }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").unwrap_or_else(|| panic!("no line: {line:?}")).to_owned()
    }

    /// Reads until the server closes the connection.
    pub(crate) fn read_to_end(&mut self) -> String {
        let mut unread = Vec::new();
        // A connection reset counts as the end, too.
        let _ = self.stream.read_to_end(&mut unread);
        String::from_utf8_lossy(&unread).into_owned()
    }
}

/// Encodes a command as an array of bulk strings.
pub(crate) fn encode_command(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len());
    for argument in command {
        bytes.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
    }
    bytes.into_bytes()
}
