//! One RESP connection, byte by byte.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a test waits for something that will never come before it fails.
const FOREVER: Duration = Duration::from_secs(60);

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Null,
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl Value {
    pub(crate) fn integer(&self) -> i64 {
        let Self::Integer(number) = self else { panic!("no number: {self:?}") };
        *number
    }

    /// The numbers that an array of nothing else has.
    pub(crate) fn integers(&self) -> Vec<i64> {
        let Self::Array(items) = self else { panic!("no array: {self:?}") };
        items.iter().map(Self::integer).collect()
    }
}

pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(FOREVER)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a command as client libraries write it, and reads the reply.
    pub(crate) fn ask(&mut self, command: &[&str]) -> Value {
        self.send(&encoded(command));
        self.receive()
    }

    pub(crate) fn receive(&mut self) -> Value {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Value::Simple(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Integer(rest.parse().unwrap()),
            "_" => Value::Null,
            "$" if rest == "-1" => Value::Null,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Value::Bulk(String::from_utf8(bytes).unwrap())
            }
            "*" => Value::Array((0..rest.parse().unwrap()).map(|_| self.receive()).collect()),
            "%" => {
                let pairs = 0..rest.parse().unwrap();
                Value::Map(pairs.map(|_| (self.receive(), self.receive())).collect())
            }
            other => panic!("no reply: {other:?} {rest:?}"),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").unwrap_or_else(|| panic!("no line: {line:?}")).to_owned()
    }

    /// What is left on the connection until the server closes it.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset is an end like any other.
        let _ = self.stream.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

pub(crate) fn encoded(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len());
    for argument in command {
        bytes.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
    }
    bytes.into_bytes()
}
