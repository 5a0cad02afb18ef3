//! `TG.CHECK`, as a Redis client sends it.

use std::io::{Error, ErrorKind};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::reply::{ConnectionError, LoadReply};
use crate::request::{LoadRequest, filled};
use crate::target::{ByteStream, LoadTarget};

/// Longest line of a reply.
const MAX_LINE: u64 = 64 * 1024;

/// A command with placeholders for the name of a client.
pub(crate) struct RespMessage {
    words: Vec<String>,
}

impl RespMessage {
    pub(crate) fn new(ask: &LoadRequest) -> Self {
        let mut words = vec!["TG.CHECK".to_owned(), ask.rule.clone().unwrap_or_default()];
        let cost = ask.cost.to_string();
        if ask.attributes.is_empty() {
            words.extend(["{client}".to_owned(), cost]);
        } else {
            words.push(cost);
            let pairs = ask.attributes.iter();
            words.extend(pairs.flat_map(|(name, value)| [name.clone(), value.clone()]));
        }
        Self { words }
    }

    fn bytes(&self, client: &str) -> Vec<u8> {
        let words: Vec<String> = self.words.iter().map(|word| filled(word, client)).collect();
        written(&words)
    }
}

/// Encodes a command.
fn written(words: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

pub(crate) struct RespConnection {
    stream: BufReader<Box<dyn ByteStream>>,
}

impl RespConnection {
    pub(crate) async fn open(target: &LoadTarget) -> Result<Self, String> {
        let mut link = Self { stream: BufReader::new(target.connect().await?) };
        if let Some(password) = target.password() {
            let words = vec!["AUTH".to_owned(), password.to_owned()];
            let greeting = link.say(&written(&words)).await.map_err(|error| error.to_string())?;
            if greeting != "+OK" {
                let said = greeting.trim_start_matches('-');
                return Err(format!("the password was not taken: {said}"));
            }
        }
        Ok(link)
    }

    pub(crate) async fn ask(
        &mut self,
        message: &RespMessage,
        client: &str,
    ) -> Result<LoadReply, ConnectionError> {
        self.exchange(message, client).await.map_err(ConnectionError::broken)
    }

    async fn exchange(&mut self, message: &RespMessage, client: &str) -> Result<LoadReply, Error> {
        let head = self.say(&message.bytes(client)).await?;
        if let Some(text) = head.strip_prefix('-') {
            return Ok(match text.starts_with("UNAVAILABLE ") {
                true => LoadReply::Unavailable,
                false => LoadReply::Other(text.to_owned()),
            });
        }
        let numbers = head.strip_prefix('*').and_then(|count| count.parse().ok());
        let numbers: u8 = numbers.ok_or_else(|| strange(&head))?;
        let mut limited = None;
        for _ in 0..numbers {
            let line = self.line().await?;
            let number = line.strip_prefix(':').ok_or_else(|| strange(&line))?;
            limited.get_or_insert(number != "0");
        }
        match limited {
            Some(true) => Ok(LoadReply::Denied),
            Some(false) => Ok(LoadReply::Allowed),
            None => Err(strange(&head)),
        }
    }

    /// Sends a command, and returns the first line of its reply.
    async fn say(&mut self, command: &[u8]) -> Result<String, Error> {
        self.stream.get_mut().write_all(command).await?;
        self.stream.get_mut().flush().await?;
        self.line().await
    }

    async fn line(&mut self) -> Result<String, Error> {
        let mut line = Vec::new();
        (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None if line.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
            None => Err(strange(&String::from_utf8_lossy(&line))),
        }
    }
}

fn strange(line: &str) -> Error {
    let line: String = line.chars().take(40).collect();
    Error::other(format!("found {line:?}, wanted the numbers that TG.CHECK answers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_client_or_the_attributes() {
        let mut ask = LoadRequest { rule: Some("api".into()), attributes: Vec::new(), cost: 2 };
        let shown =
            |ask: &LoadRequest| String::from_utf8(RespMessage::new(ask).bytes("client-1")).unwrap();
        assert_eq!(
            shown(&ask),
            "*4\r\n$8\r\nTG.CHECK\r\n$3\r\napi\r\n$8\r\nclient-1\r\n$1\r\n2\r\n"
        );
        ask.attributes.push(("user".into(), "{client}".into()));
        assert_eq!(
            shown(&ask),
            "*5\r\n$8\r\nTG.CHECK\r\n$3\r\napi\r\n$1\r\n2\r\n$4\r\nuser\r\n$8\r\nclient-1\r\n"
        );
    }
}
