//! The table of commands: name, number of arguments, flags and summary.

use crate::resp::argument::quoted;
use crate::resp::frame::Arguments;
use crate::resp::reply::{ReplyBuffer, RespError};

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Auth,
    Check,
    Client,
    Command,
    Config,
    Discard,
    Echo,
    Exec,
    Hello,
    Info,
    Multi,
    Ping,
    Quit,
    Reset,
    Select,
    Throttle,
}

/// The description of a command.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    pub(crate) kind: CommandKind,
    name: &'static str,
    /// Smallest and largest number of arguments, including the name.
    arity: (usize, usize),
    flags: &'static [&'static str],
    /// Index of the key among the arguments; 0 if the command has none.
    key: i64,
    summary: &'static str,
}

const UNLIMITED: usize = usize::MAX;
const PLAIN: &[&str] = &["fast", "loading", "stale"];
const BEFORE_AUTH: &[&str] = &["fast", "loading", "stale", "no_auth"];
const SPENDS: &[&str] = &["write", "fast"];

#[rustfmt::skip] // Keep the columns of the table aligned.
static COMMANDS: [CommandSpec; 16] = [
    entry(CommandKind::Auth, "auth", (2, 3), BEFORE_AUTH, 0, "Authenticates the connection"),
    entry(CommandKind::Throttle, "cl.throttle", (5, 6), SPENDS, 1, "Charges a limit given in the command"),
    entry(CommandKind::Client, "client", (2, UNLIMITED), PLAIN, 0, "Returns or sets properties of the connection"),
    entry(CommandKind::Command, "command", (1, UNLIMITED), PLAIN, 0, "Lists the commands"),
    entry(CommandKind::Config, "config", (2, UNLIMITED), PLAIN, 0, "Returns the settings that benchmarks read"),
    entry(CommandKind::Discard, "discard", (1, 1), PLAIN, 0, "Ends a transaction without running it"),
    entry(CommandKind::Echo, "echo", (2, 2), PLAIN, 0, "Returns its argument"),
    entry(CommandKind::Exec, "exec", (1, 1), PLAIN, 0, "Runs the commands of a transaction"),
    entry(CommandKind::Hello, "hello", (1, UNLIMITED), BEFORE_AUTH, 0, "Chooses the version of the protocol"),
    entry(CommandKind::Info, "info", (1, UNLIMITED), PLAIN, 0, "Describes the server"),
    entry(CommandKind::Multi, "multi", (1, 1), PLAIN, 0, "Starts a transaction"),
    entry(CommandKind::Ping, "ping", (1, 2), PLAIN, 0, "Returns PONG, or its argument"),
    entry(CommandKind::Quit, "quit", (1, UNLIMITED), BEFORE_AUTH, 0, "Closes the connection"),
    entry(CommandKind::Reset, "reset", (1, 1), BEFORE_AUTH, 0, "Resets the connection to its initial state"),
    entry(CommandKind::Select, "select", (2, 2), PLAIN, 0, "Chooses database 0, the only one"),
    entry(CommandKind::Check, "tg.check", (3, UNLIMITED), SPENDS, 0, "Charges a rule of this server"),
];

const fn entry(
    kind: CommandKind,
    name: &'static str,
    arity: (usize, usize),
    flags: &'static [&'static str],
    key: i64,
    summary: &'static str,
) -> CommandSpec {
    CommandSpec { kind, name, arity, flags, key, summary }
}

impl CommandSpec {
    /// Returns the command that the first argument names.
    ///
    /// # Errors
    /// The command does not exist, or the number of arguments is wrong.
    pub(crate) fn find(arguments: &Arguments<'_>) -> Result<&'static Self, RespError> {
        let name = arguments.first().map_or(&b""[..], |name| name);
        let entry = Self::by_name(name).ok_or_else(|| unknown_command(arguments))?;
        let (min, max) = entry.arity;
        if !(min..=max).contains(&arguments.len()) {
            return Err(wrong_number(entry.name));
        }
        Ok(entry)
    }

    fn by_name(name: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns `true` if a client may send the command before it is authenticated.
    pub(crate) fn is_allowed_before_auth(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// Writes the entry of COMMAND INFO. A negative arity is a minimum.
    fn describe(&self, replies: &mut ReplyBuffer) {
        let (min, max) = self.arity;
        let arity = i64::try_from(min).unwrap_or(i64::MAX);
        replies.array(10);
        replies.bulk(self.name.as_bytes());
        replies.integer(if min == max { arity } else { -arity });
        replies.array(self.flags.len());
        self.flags.iter().for_each(|flag| replies.bulk(flag.as_bytes()));
        // First key, last key, step.
        for position in [self.key, self.key, self.key.min(1)] {
            replies.integer(position);
        }
        // ACL categories, tips, key specifications, subcommands.
        (0..4).for_each(|_| replies.array(0));
    }
}

/// Writes the reply to COMMAND and its subcommands.
///
/// # Errors
/// The subcommand is unknown.
pub(crate) fn describe(
    arguments: &Arguments<'_>,
    replies: &mut ReplyBuffer,
) -> Result<(), RespError> {
    let named = arguments.get(2..).unwrap_or_default();
    let Some(subcommand) = arguments.get(1) else {
        describe_all(replies);
        return Ok(());
    };
    match subcommand.to_ascii_uppercase().as_slice() {
        b"COUNT" if named.is_empty() => {
            replies.integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX));
        }
        b"LIST" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|entry| replies.bulk(entry.name.as_bytes()));
        }
        b"INFO" if named.is_empty() => describe_all(replies),
        b"INFO" => {
            replies.array(named.len());
            for name in named {
                match CommandSpec::by_name(name) {
                    Some(entry) => entry.describe(replies),
                    None => replies.null(),
                }
            }
        }
        b"DOCS" => {
            let wanted = |entry: &&CommandSpec| {
                named.is_empty()
                    || named.iter().any(|name| entry.name.as_bytes().eq_ignore_ascii_case(name))
            };
            let entries: Vec<&CommandSpec> = COMMANDS.iter().filter(wanted).collect();
            replies.map(entries.len());
            for entry in entries {
                replies.bulk(entry.name.as_bytes());
                replies.map(3);
                for word in ["summary", entry.summary, "since", "0.1.0", "group", "generic"] {
                    replies.bulk(word.as_bytes());
                }
            }
        }
        _ => return Err(unknown_subcommand("command", subcommand)),
    }
    Ok(())
}

fn describe_all(replies: &mut ReplyBuffer) {
    replies.array(COMMANDS.len());
    COMMANDS.iter().for_each(|entry| entry.describe(replies));
}

/// Returns the error for an unknown command, with the text of Redis.
fn unknown_command(arguments: &Arguments<'_>) -> RespError {
    /// Largest number of characters of the arguments in the error.
    const MAX_QUOTED_CHARS: usize = 128;
    let without_quotes = |argument: &[u8]| String::from_utf8_lossy(argument).replace('\'', "");
    let mut beginning = String::new();
    for argument in arguments.iter().skip(1) {
        if beginning.len() >= MAX_QUOTED_CHARS {
            break;
        }
        let argument: String =
            without_quotes(argument).chars().take(MAX_QUOTED_CHARS - beginning.len()).collect();
        beginning.push_str(&format!("'{argument}' "));
    }
    let name: String = without_quotes(arguments.first().map_or(&b""[..], |name| name))
        .chars()
        .take(MAX_QUOTED_CHARS)
        .collect();
    RespError::invalid(format_args!(
        "unknown command '{name}', with args beginning with: {beginning}"
    ))
}

/// Returns the error for a wrong number of arguments, with the text of Redis. `name` is `command` or
/// `command|subcommand`.
pub(crate) fn wrong_number(name: &str) -> RespError {
    RespError::invalid(format_args!("wrong number of arguments for '{name}' command"))
}

/// Returns the error for an unknown subcommand.
pub(crate) fn unknown_subcommand(command: &str, found: &[u8]) -> RespError {
    let found = quoted(found);
    RespError::invalid(format_args!("unknown subcommand {found} of {command}"))
}
