//! `TG.CHECK`, as a Redis client sends it.

use std::io::{Error, ErrorKind};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::reply::{ConnectionError, LoadReply};
use crate::request::{LoadRequest, fill_client};
use crate::target::{ByteStream, LoadTarget};

/// Longest line of a reply in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// A command with placeholders for the name of a client.
pub(crate) struct RespMessage {
    arguments: Vec<String>,
}

impl RespMessage {
    pub(crate) fn new(request: &LoadRequest) -> Self {
        let mut arguments = vec!["TG.CHECK".to_owned(), request.rule.clone().unwrap_or_default()];
        let cost = request.cost.to_string();
        if request.attributes.is_empty() {
            arguments.extend(["{client}".to_owned(), cost]);
        } else {
            arguments.push(cost);
            let pairs = request.attributes.iter();
            arguments.extend(pairs.flat_map(|(name, value)| [name.clone(), value.clone()]));
        }
        Self { arguments }
    }

    /// Returns the command of one client, encoded.
    fn bytes(&self, client: &str) -> Vec<u8> {
        let filled = self.arguments.iter().map(|argument| fill_client(argument, client));
        encode(&filled.collect::<Vec<_>>())
    }
}

/// Encodes a command as an array of bulk strings.
fn encode(arguments: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n{argument}\r\n", argument.len()).as_bytes());
    }
    bytes
}

/// A connection with one command at a time.
pub(crate) struct RespConnection {
    stream: BufReader<Box<dyn ByteStream>>,
}

impl RespConnection {
    pub(crate) async fn open(target: &LoadTarget) -> Result<Self, String> {
        let mut connection = Self { stream: BufReader::new(target.connect().await?) };
        if let Some(password) = target.password() {
            let arguments = vec!["AUTH".to_owned(), password.to_owned()];
            let sent = connection.send_command(&encode(&arguments)).await;
            let reply = sent.map_err(|error| error.to_string())?;
            if reply != "+OK" {
                let reason = reply.trim_start_matches('-');
                return Err(format!("the password was rejected: {reason}"));
            }
        }
        Ok(connection)
    }

    pub(crate) async fn send(
        &mut self,
        message: &RespMessage,
        client: &str,
    ) -> Result<LoadReply, ConnectionError> {
        self.exchange(message, client).await.map_err(ConnectionError::broken)
    }

    async fn exchange(&mut self, message: &RespMessage, client: &str) -> Result<LoadReply, Error> {
        let first_line = self.send_command(&message.bytes(client)).await?;
        if let Some(text) = first_line.strip_prefix('-') {
            return Ok(match text.starts_with("UNAVAILABLE ") {
                true => LoadReply::Unavailable,
                false => LoadReply::Other(text.to_owned()),
            });
        }
        let count = first_line.strip_prefix('*').and_then(|count| count.parse().ok());
        let count: u8 = count.ok_or_else(|| unexpected(&first_line))?;
        let mut limited = None;
        for _ in 0..count {
            let line = self.read_line().await?;
            let number = line.strip_prefix(':').ok_or_else(|| unexpected(&line))?;
            limited.get_or_insert(number != "0");
        }
        match limited {
            Some(true) => Ok(LoadReply::Denied),
            Some(false) => Ok(LoadReply::Allowed),
            None => Err(unexpected(&first_line)),
        }
    }

    /// Sends a command, and returns the first line of its reply.
    async fn send_command(&mut self, command: &[u8]) -> Result<String, Error> {
        self.stream.get_mut().write_all(command).await?;
        self.stream.get_mut().flush().await?;
        self.read_line().await
    }

    async fn read_line(&mut self) -> Result<String, Error> {
        let mut line = Vec::new();
        (&mut self.stream).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None if line.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
            None => Err(unexpected(&String::from_utf8_lossy(&line))),
        }
    }
}

fn unexpected(line: &str) -> Error {
    let line: String = line.chars().take(40).collect();
    Error::other(format!("found {line:?}, wanted the numbers of a TG.CHECK reply"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_has_the_client_or_the_attributes() {
        let mut request = LoadRequest { rule: Some("api".into()), attributes: Vec::new(), cost: 2 };
        let shown = |request: &LoadRequest| {
            String::from_utf8(RespMessage::new(request).bytes("client-1")).unwrap()
        };
        assert_eq!(
            shown(&request),
            "*4\r\n$8\r\nTG.CHECK\r\n$3\r\napi\r\n$8\r\nclient-1\r\n$1\r\n2\r\n"
        );
        request.attributes.push(("user".into(), "{client}".into()));
        assert_eq!(
            shown(&request),
            "*5\r\n$8\r\nTG.CHECK\r\n$3\r\napi\r\n$1\r\n2\r\n$4\r\nuser\r\n$8\r\nclient-1\r\n"
        );
    }
}
