//! Connections of the load: failures are answers here, and no reason to panic.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::history::AnswerKind;

/// One connection that is kept alive.
pub(crate) struct LoadConnection {
    stream: BufReader<TcpStream>,
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

impl LoadConnection {
    pub(crate) fn open(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    /// Sends one `TG.CHECK` for each cost, in one write.
    pub(crate) fn send_checks(
        &mut self,
        rule: &str,
        client: &str,
        costs: &[u64],
    ) -> io::Result<()> {
        let mut text = String::new();
        for cost in costs {
            text.push_str("*4\r\n");
            for part in ["TG.CHECK", rule, client, &cost.to_string()] {
                let _ = write!(text, "${}\r\n{part}\r\n", part.len());
            }
        }
        self.stream.get_mut().write_all(text.as_bytes())
    }

    /// Reads the reply to one `TG.CHECK`.
    pub(crate) fn read_check(&mut self) -> io::Result<AnswerKind> {
        let line = self.line()?;
        if line.starts_with("-UNAVAILABLE") {
            return Ok(AnswerKind::Unavailable);
        }
        if line != "*6" {
            return Err(invalid(&line));
        }
        let mut numbers = [0_i64; 6];
        for number in &mut numbers {
            let line = self.line()?;
            let text = line.strip_prefix(':').ok_or_else(|| invalid(&line))?;
            *number = text.parse().map_err(|_| invalid(text))?;
        }
        let [limited, limit, .., delay] = numbers;
        Ok(match (limited, limit) {
            (0, -1) => AnswerKind::PassedUncounted,
            (0, _) => AnswerKind::Admitted { delay_millis: delay.unsigned_abs() },
            _ => AnswerKind::Denied,
        })
    }

    /// One request over HTTP/1.1: the status and the body.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, String)> {
        let length = body.len();
        // A push replaces whichever version there is.
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nif-match: *\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(text.as_bytes())?;
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| invalid(&line))?;
        let mut length = 0;
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else { break };
            if name == "content-length" {
                length = value.parse().map_err(|_| invalid(value))?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body).map_err(|_| invalid("a body that is not text"))?))
    }
}
