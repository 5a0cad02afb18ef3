//! What is known of one connection, and what is said about the connection itself.

use super::frame::Arguments;
use super::gate::Gate;
use super::manual::{self, Verb, unknown_subcommand, wrong_number};
use super::reply::{Refusal, Replies, Version};
use super::throttle::Limits;

/// One client's connection.
#[derive(Debug)]
pub(super) struct Session {
    id: i64,
    gate: Gate,
    is_known: bool,
    name: Vec<u8>,
    pub(super) limits: Limits,
}

/// Longest name of a connection in bytes.
const MAX_NAME: usize = 256;

impl Session {
    /// The connection of that number.
    pub(super) fn new(id: i64, gate: Gate) -> Self {
        Self { id, gate, is_known: gate.is_open(), name: Vec::new(), limits: Limits::default() }
    }

    /// Whether it may ask for anything.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Answers a command that needs no decision.
    ///
    /// # Errors
    /// It is not understood, or not allowed; nothing has changed, and nothing is to be added to the
    /// replies but that.
    pub(super) fn answer(
        &mut self,
        verb: Verb,
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> Result<(), Refusal> {
        match verb {
            Verb::Auth => self.auth(arguments, replies)?,
            Verb::Client => self.client(arguments, replies)?,
            Verb::Command => manual::describe(arguments, replies)?,
            Verb::Config => config(arguments, replies)?,
            Verb::Echo => replies.bulk(&arguments[1]),
            Verb::Hello => self.hello(arguments, replies)?,
            Verb::Info => replies.bulk(INFO.as_bytes()),
            Verb::Ping => match arguments.get(1) {
                Some(message) => replies.bulk(message),
                None => replies.simple("PONG"),
            },
            Verb::Reset => {
                self.is_known = self.gate.is_open();
                self.name.clear();
                replies.version = Version::Two;
                replies.simple("RESET");
            }
            Verb::Select if *arguments[1] == *b"0" => replies.ok(),
            Verb::Select => return Err(Refusal::error("DB index is out of range")),
            // Ends the connection after this.
            Verb::Quit => replies.ok(),
            Verb::Throttle | Verb::Check => {}
        }
        Ok(())
    }

    fn auth(&mut self, arguments: &Arguments<'_>, replies: &mut Replies) -> Result<(), Refusal> {
        let (user, password) = match arguments.get(2) {
            Some(password) => (Some(&*arguments[1]), password),
            None => (None, &arguments[1]),
        };
        self.gate.admit(user, password)?;
        self.is_known = true;
        replies.ok();
        Ok(())
    }

    fn hello(&mut self, arguments: &Arguments<'_>, replies: &mut Replies) -> Result<(), Refusal> {
        let version = match arguments.get(1).map(|version| &**version) {
            None => replies.version,
            Some(b"2") => Version::Two,
            Some(b"3") => Version::Three,
            Some(other) if other.iter().all(u8::is_ascii_digit) => {
                return Err(Refusal::coded("NOPROTO", "unsupported protocol version"));
            }
            Some(_) => {
                let text = "ConnectionHandler version is not an integer or out of range";
                return Err(Refusal::error(text));
            }
        };
        let (mut is_known, mut name) = (self.is_known, None);
        let mut options = arguments.iter().skip(2);
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"AUTH" => {
                    let (Some(user), Some(password)) = (options.next(), options.next()) else {
                        return Err(no_option(option));
                    };
                    self.gate.admit(Some(user), password)?;
                    is_known = true;
                }
                b"SETNAME" => {
                    let given = options.next().ok_or_else(|| no_option(option))?;
                    name = Some(checked_name(given)?);
                }
                _ => return Err(no_option(option)),
            }
        }
        if !is_known {
            return Err(Refusal::coded("NOAUTH", HELLO_FIRST));
        }
        self.is_known = true;
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        replies.version = version;
        self.greet(replies);
        Ok(())
    }

    fn greet(&self, replies: &mut Replies) {
        replies.map(7);
        let mut text = |name: &str, value: &str| {
            replies.bulk(name.as_bytes());
            replies.bulk(value.as_bytes());
        };
        text("server", "tidegate");
        text("version", env!("CARGO_PKG_VERSION"));
        text("mode", "standalone");
        text("role", "master");
        replies.bulk(b"proto");
        replies.integer(if replies.version == Version::Three { 3 } else { 2 });
        replies.bulk(b"id");
        replies.integer(self.id);
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn client(&mut self, arguments: &Arguments<'_>, replies: &mut Replies) -> Result<(), Refusal> {
        let subcommand = arguments[1].to_ascii_uppercase();
        match (subcommand.as_slice(), &arguments[2..]) {
            (b"SETNAME", [name]) => {
                self.name = checked_name(name)?.to_vec();
                replies.ok();
            }
            (b"GETNAME", []) if self.name.is_empty() => replies.null(),
            (b"GETNAME", []) => replies.bulk(&self.name),
            (b"ID", []) => replies.integer(self.id),
            (b"INFO", []) => {
                let name = String::from_utf8_lossy(&self.name);
                replies.bulk(format!("id={} name={name}\n", self.id).as_bytes());
            }
            // Who the library is makes no difference here, nor whether anything would be evicted.
            (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => replies.ok(),
            (
                b"SETNAME" | b"GETNAME" | b"ID" | b"INFO" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH",
                _,
            ) => {
                let subcommand = String::from_utf8_lossy(&subcommand).to_ascii_lowercase();
                return Err(wrong_number(&format!("client|{subcommand}")));
            }
            _ => return Err(unknown_subcommand("client", &arguments[1])),
        }
        Ok(())
    }
}

/// redis-benchmark asks for these two before it starts.
const SETTINGS: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];

fn config(arguments: &Arguments<'_>, replies: &mut Replies) -> Result<(), Refusal> {
    if !arguments[1].eq_ignore_ascii_case(b"GET") {
        return Err(unknown_subcommand("config", &arguments[1]));
    }
    let wanted = |(name, _): &&(&str, &str)| {
        arguments[2..].iter().any(|asked| asked.eq_ignore_ascii_case(name.as_bytes()))
    };
    let settings = SETTINGS.iter().filter(wanted);
    replies.map(settings.clone().count());
    for (name, value) in settings {
        replies.bulk(name.as_bytes());
        replies.bulk(value.as_bytes());
    }
    Ok(())
}

/// Names of connections are shown in lists, so they have to be visible.
fn checked_name(name: &[u8]) -> Result<&[u8], Refusal> {
    if name.len() > MAX_NAME {
        let found = name.len();
        return Err(Refusal::error(format_args!(
            "name: found {found} bytes, wanted at most {MAX_NAME}"
        )));
    }
    if name.iter().all(u8::is_ascii_graphic) {
        return Ok(name);
    }
    let text = "Client names cannot contain spaces, newlines or special characters.";
    Err(Refusal::error(text))
}

fn no_option(option: &[u8]) -> Refusal {
    let option = String::from_utf8_lossy(option);
    Refusal::error(format_args!("Syntax error in HELLO option '{option}'"))
}

const HELLO_FIRST: &str = "HELLO must be called with the client already authenticated, otherwise the \
                           HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                           client and select the RESP protocol version at the same time";

/// What clients look for before they send anything: which Redis they may take this for, that it is not
/// loading, and that it is no replica.
const INFO: &str = concat!(
    "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\ntidegate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
);
