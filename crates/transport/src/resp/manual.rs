//! Every command there is: its name, how many arguments it takes, and what it is for.

use super::argument::shown;
use super::frame::Arguments;
use super::reply::{Refusal, Replies};

/// What a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Auth,
    Check,
    Client,
    Command,
    Config,
    Echo,
    Hello,
    Info,
    Ping,
    Quit,
    Reset,
    Select,
    Throttle,
}

/// What is to be known about a command.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) verb: Verb,
    name: &'static str,
    /// Fewest and most arguments, the name included.
    arguments: (usize, usize),
    flags: &'static [&'static str],
    /// Where its key stands; 0 when it has none.
    key: i64,
    summary: &'static str,
}

const ANY: usize = usize::MAX;
const PLAIN: &[&str] = &["fast", "loading", "stale"];
const WITHOUT_LOGIN: &[&str] = &["fast", "loading", "stale", "no_auth"];
const SPENDING: &[&str] = &["write", "fast"];

#[rustfmt::skip] // A table is read by its columns.
static ENTRIES: [Entry; 13] = [
    entry(Verb::Auth, "auth", (2, 3), WITHOUT_LOGIN, 0, "Proves who the client is"),
    entry(Verb::Throttle, "cl.throttle", (5, 6), SPENDING, 1, "Spends from a limit that the command names"),
    entry(Verb::Client, "client", (2, ANY), PLAIN, 0, "Asks and says things about the connection"),
    entry(Verb::Command, "command", (1, ANY), PLAIN, 0, "Lists the commands"),
    entry(Verb::Config, "config", (2, ANY), PLAIN, 0, "Shows what benchmarks ask for"),
    entry(Verb::Echo, "echo", (2, 2), PLAIN, 0, "Says a message back"),
    entry(Verb::Hello, "hello", (1, ANY), WITHOUT_LOGIN, 0, "Chooses the version of the protocol"),
    entry(Verb::Info, "info", (1, ANY), PLAIN, 0, "Describes the server"),
    entry(Verb::Ping, "ping", (1, 2), PLAIN, 0, "Shows that somebody is there"),
    entry(Verb::Quit, "quit", (1, ANY), WITHOUT_LOGIN, 0, "Closes the connection"),
    entry(Verb::Reset, "reset", (1, 1), WITHOUT_LOGIN, 0, "Makes the connection like a new one"),
    entry(Verb::Select, "select", (2, 2), PLAIN, 0, "Chooses database 0, the only one"),
    entry(Verb::Check, "tg.check", (3, ANY), SPENDING, 0, "Spends from a rule of this server"),
];

const fn entry(
    verb: Verb,
    name: &'static str,
    arguments: (usize, usize),
    flags: &'static [&'static str],
    key: i64,
    summary: &'static str,
) -> Entry {
    Entry { verb, name, arguments, flags, key, summary }
}

impl Entry {
    /// The command that these are the arguments of, if it takes so many of them.
    ///
    /// # Errors
    /// There is no such command, or it takes more or fewer arguments.
    pub(super) fn of(arguments: &Arguments<'_>) -> Result<&'static Self, Refusal> {
        let name = arguments.first().map_or(&b""[..], |name| name);
        let entry = Self::named(name).ok_or_else(|| unknown(arguments))?;
        let (fewest, most) = entry.arguments;
        if !(fewest..=most).contains(&arguments.len()) {
            return Err(wrong_number(entry.name));
        }
        Ok(entry)
    }

    fn named(name: &[u8]) -> Option<&'static Self> {
        ENTRIES.iter().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether somebody may send it before proving who they are.
    pub(super) fn is_for_strangers(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// As COMMAND describes it. A negative arity means that many or more.
    fn describe(&self, replies: &mut Replies) {
        let (fewest, most) = self.arguments;
        let arity = i64::try_from(fewest).unwrap_or(i64::MAX);
        replies.array(10);
        replies.bulk(self.name.as_bytes());
        replies.integer(if fewest == most { arity } else { -arity });
        replies.array(self.flags.len());
        self.flags.iter().for_each(|flag| replies.bulk(flag.as_bytes()));
        for place in [self.key, self.key, self.key.min(1)] {
            replies.integer(place);
        }
        // Categories of access, tips, key specifications, subcommands.
        (0..4).for_each(|_| replies.array(0));
    }
}

/// Answers COMMAND with whatever follows it.
pub(super) fn describe(arguments: &Arguments<'_>, replies: &mut Replies) -> Result<(), Refusal> {
    let named = arguments.get(2..).unwrap_or_default();
    let Some(subcommand) = arguments.get(1) else {
        describe_all(replies);
        return Ok(());
    };
    match subcommand.to_ascii_uppercase().as_slice() {
        b"COUNT" if named.is_empty() => {
            replies.integer(i64::try_from(ENTRIES.len()).unwrap_or(i64::MAX));
        }
        b"LIST" => {
            replies.array(ENTRIES.len());
            ENTRIES.iter().for_each(|entry| replies.bulk(entry.name.as_bytes()));
        }
        b"INFO" if named.is_empty() => describe_all(replies),
        b"INFO" => {
            replies.array(named.len());
            for name in named {
                match Entry::named(name) {
                    Some(entry) => entry.describe(replies),
                    None => replies.null(),
                }
            }
        }
        b"DOCS" => {
            let wanted = |entry: &&Entry| {
                named.is_empty()
                    || named.iter().any(|name| entry.name.as_bytes().eq_ignore_ascii_case(name))
            };
            let entries: Vec<&Entry> = ENTRIES.iter().filter(wanted).collect();
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

fn describe_all(replies: &mut Replies) {
    replies.array(ENTRIES.len());
    ENTRIES.iter().for_each(|entry| entry.describe(replies));
}

/// As Redis says it.
fn unknown(arguments: &Arguments<'_>) -> Refusal {
    /// Most characters of the arguments that are repeated.
    const ECHO: usize = 128;
    let plain = |argument: &[u8]| String::from_utf8_lossy(argument).replace('\'', "");
    let mut beginning = String::new();
    for argument in arguments.iter().skip(1) {
        if beginning.len() >= ECHO {
            break;
        }
        let argument: String = plain(argument).chars().take(ECHO - beginning.len()).collect();
        beginning.push_str(&format!("'{argument}' "));
    }
    let name: String =
        plain(arguments.first().map_or(&b""[..], |name| name)).chars().take(ECHO).collect();
    Refusal::error(format_args!("unknown command '{name}', with args beginning with: {beginning}"))
}

/// As Redis says it; `name` is that of the command or `command|subcommand`.
pub(super) fn wrong_number(name: &str) -> Refusal {
    Refusal::error(format_args!("wrong number of arguments for '{name}' command"))
}

/// A command that goes by two words, of which the second is none of ours.
pub(super) fn unknown_subcommand(command: &str, found: &[u8]) -> Refusal {
    let found = shown(found);
    Refusal::error(format_args!("unknown subcommand {found} of {command}"))
}
