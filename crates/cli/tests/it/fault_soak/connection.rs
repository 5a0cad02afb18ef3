//! Connections of the load. Failures are returned as errors, because faults cause them on purpose.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::history::AnswerKind;

/// One keep-alive connection to a RESP or HTTP listener.
pub(crate) struct LoadConnection {
    stream: BufReader<TcpStream>,
}

fn invalid_data(text: &str) -> io::Error {
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

    fn read_line(&mut self) -> io::Result<String> {
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
        let line = self.read_line()?;
        if line.starts_with("-UNAVAILABLE") {
            return Ok(AnswerKind::Unavailable);
        }
        if line != "*6" {
            return Err(invalid_data(&line));
        }
        let mut numbers = [0_i64; 6];
        for number in &mut numbers {
            let line = self.read_line()?;
            let text = line.strip_prefix(':').ok_or_else(|| invalid_data(&line))?;
            *number = text.parse().map_err(|_| invalid_data(text))?;
        }
        let [limited, limit, .., delay] = numbers;
        Ok(match (limited, limit) {
            (0, -1) => AnswerKind::PassedUncounted,
            (0, _) => AnswerKind::Admitted { delay_millis: delay.unsigned_abs() },
            _ => AnswerKind::Denied,
        })
    }

    /// Sends one HTTP/1.1 request, and returns the status and the body.
    pub(crate) fn send_http(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, String)> {
        let length = body.len();
        // `if-match: *` lets a push replace any version.
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nif-match: *\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(text.as_bytes())?;
        let line = self.read_line()?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| invalid_data(&line))?;
        let mut length = 0;
        loop {
            let line = self.read_line()?;
            let Some((name, value)) = line.split_once(": ") else { break };
            if name == "content-length" {
                length = value.parse().map_err(|_| invalid_data(value))?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body).map_err(|_| invalid_data("a body that is not text"))?))
    }
}
