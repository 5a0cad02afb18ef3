//! The state of one connection, and the commands that need no decision.

use super::commands::{self, CommandKind, unknown_subcommand, wrong_number};
use crate::resp::auth::RespAuth;
use crate::resp::frame::Arguments;
use crate::resp::reply::{ReplyBuffer, RespError, RespVersion};
use crate::resp::throttle::LimitCache;
use crate::resp::transaction::{QueuedCommands, Transaction};

/// The state of one client connection.
#[derive(Debug)]
pub(crate) struct RespSession {
    id: i64,
    auth: RespAuth,
    is_authenticated: bool,
    /// The number of wrong passwords.
    auth_failures: usize,
    name: Vec<u8>,
    pub(crate) limits: LimitCache,
    /// The transaction that the client has started.
    pub(crate) transaction: Option<Transaction>,
}

/// Longest name of a connection, in bytes.
const MAX_NAME_BYTES: usize = 256;

impl RespSession {
    /// Returns the state of a new connection.
    pub(crate) fn new(id: i64, auth: RespAuth) -> Self {
        let is_authenticated = auth.allows_all();
        let (name, limits) = (Vec::new(), LimitCache::default());
        Self { id, auth, is_authenticated, auth_failures: 0, name, limits, transaction: None }
    }

    /// Returns `true` if the client may send every command.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Returns the number of wrong passwords that the client has sent.
    pub(crate) fn auth_failures(&self) -> usize {
        self.auth_failures
    }

    /// Checks a password, and counts a wrong one.
    fn authenticate(&mut self, user: Option<&[u8]>, password: &[u8]) -> Result<(), RespError> {
        let result = self.auth.authenticate(user, password);
        // Without a password there is nothing to guess.
        self.auth_failures += usize::from(result.is_err() && !self.auth.allows_all());
        result
    }

    /// Runs a command that needs no decision and writes its reply.
    ///
    /// # Errors
    /// The command is invalid or not allowed. State and replies are unchanged.
    pub(crate) fn handle(
        &mut self,
        kind: CommandKind,
        arguments: &Arguments<'_>,
        replies: &mut ReplyBuffer,
    ) -> Result<(), RespError> {
        match kind {
            CommandKind::Auth => self.auth(arguments, replies)?,
            CommandKind::Client => self.client(arguments, replies)?,
            CommandKind::Command => commands::describe(arguments, replies)?,
            CommandKind::Config => config(arguments, replies)?,
            CommandKind::Echo => replies.bulk(&arguments[1]),
            CommandKind::Hello => self.hello(arguments, replies)?,
            CommandKind::Info => replies.bulk(INFO.as_bytes()),
            CommandKind::Ping => match arguments.get(1) {
                Some(message) => replies.bulk(message),
                None => replies.simple("PONG"),
            },
            CommandKind::Reset => {
                self.is_authenticated = self.auth.allows_all();
                self.name.clear();
                self.transaction = None;
                replies.version = RespVersion::Two;
                replies.simple("RESET");
            }
            CommandKind::Select if *arguments[1] == *b"0" => replies.ok(),
            CommandKind::Select => return Err(RespError::error("DB index is out of range")),
            // The caller closes the connection after this reply.
            CommandKind::Quit => replies.ok(),
            CommandKind::Multi if self.transaction.is_some() => {
                return Err(RespError::error("MULTI calls can not be nested"));
            }
            CommandKind::Multi => {
                self.transaction = Some(Transaction::default());
                replies.ok();
            }
            CommandKind::Discard => match self.transaction.take() {
                Some(_) => replies.ok(),
                None => return Err(RespError::error("DISCARD without MULTI")),
            },
            // The caller runs these.
            CommandKind::Throttle | CommandKind::Check | CommandKind::Exec => {}
        }
        Ok(())
    }

    /// Ends the transaction and returns its commands.
    ///
    /// # Errors
    /// No transaction was started, or one of its commands was rejected.
    pub(crate) fn end_transaction(&mut self) -> Result<QueuedCommands, RespError> {
        let transaction = self.transaction.take();
        transaction.ok_or_else(|| RespError::error("EXEC without MULTI"))?.into_commands()
    }

    fn auth(
        &mut self,
        arguments: &Arguments<'_>,
        replies: &mut ReplyBuffer,
    ) -> Result<(), RespError> {
        let (user, password) = match arguments.get(2) {
            Some(password) => (Some(&*arguments[1]), password),
            None => (None, &arguments[1]),
        };
        self.authenticate(user, password)?;
        self.is_authenticated = true;
        replies.ok();
        Ok(())
    }

    fn hello(
        &mut self,
        arguments: &Arguments<'_>,
        replies: &mut ReplyBuffer,
    ) -> Result<(), RespError> {
        let version = match arguments.get(1).map(|version| &**version) {
            None => replies.version,
            Some(b"2") => RespVersion::Two,
            Some(b"3") => RespVersion::Three,
            Some(other) if other.iter().all(u8::is_ascii_digit) => {
                return Err(RespError::coded("NOPROTO", "unsupported protocol version"));
            }
            Some(_) => {
                let text = "Protocol version is not an integer or out of range";
                return Err(RespError::error(text));
            }
        };
        let (mut is_authenticated, mut name) = (self.is_authenticated, None);
        let mut options = arguments.iter().skip(2);
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"AUTH" => {
                    let (Some(user), Some(password)) = (options.next(), options.next()) else {
                        return Err(invalid_option(option));
                    };
                    self.authenticate(Some(user), password)?;
                    is_authenticated = true;
                }
                b"SETNAME" => {
                    let argument = options.next().ok_or_else(|| invalid_option(option))?;
                    name = Some(checked_name(argument)?);
                }
                _ => return Err(invalid_option(option)),
            }
        }
        if !is_authenticated {
            return Err(RespError::coded("NOAUTH", HELLO_BEFORE_AUTH));
        }
        self.is_authenticated = true;
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        replies.version = version;
        self.write_hello(replies);
        Ok(())
    }

    /// Writes the reply to HELLO.
    fn write_hello(&self, replies: &mut ReplyBuffer) {
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
        replies.integer(if replies.version == RespVersion::Three { 3 } else { 2 });
        replies.bulk(b"id");
        replies.integer(self.id);
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn client(
        &mut self,
        arguments: &Arguments<'_>,
        replies: &mut ReplyBuffer,
    ) -> Result<(), RespError> {
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
            // Accepted without effect: the library name is not used, and there are no keys to evict.
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

/// Settings that redis-benchmark reads before it starts.
const SETTINGS: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];

fn config(arguments: &Arguments<'_>, replies: &mut ReplyBuffer) -> Result<(), RespError> {
    if !arguments[1].eq_ignore_ascii_case(b"GET") {
        return Err(unknown_subcommand("config", &arguments[1]));
    }
    let requested = |(name, _): &&(&str, &str)| {
        arguments[2..].iter().any(|argument| argument.eq_ignore_ascii_case(name.as_bytes()))
    };
    let settings = SETTINGS.iter().filter(requested);
    replies.map(settings.clone().count());
    for (name, value) in settings {
        replies.bulk(name.as_bytes());
        replies.bulk(value.as_bytes());
    }
    Ok(())
}

/// Returns a connection name that is short and has only printable characters, as Redis requires.
fn checked_name(name: &[u8]) -> Result<&[u8], RespError> {
    if name.len() > MAX_NAME_BYTES {
        let found = name.len();
        return Err(RespError::error(format_args!(
            "name: found {found} bytes, wanted at most {MAX_NAME_BYTES}"
        )));
    }
    if name.iter().all(u8::is_ascii_graphic) {
        return Ok(name);
    }
    let text = "Client names cannot contain spaces, newlines or special characters.";
    Err(RespError::error(text))
}

fn invalid_option(option: &[u8]) -> RespError {
    let option = String::from_utf8_lossy(option);
    RespError::error(format_args!("Syntax error in HELLO option '{option}'"))
}

const HELLO_BEFORE_AUTH: &str = "HELLO must be called with the client already authenticated, otherwise the \
                           HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                           client and select the RESP protocol version at the same time";

/// Fields that clients check before they send commands: a compatible Redis version, not loading, not a
/// replica.
const INFO: &str = concat!(
    "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\ntidegate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
);
