//! `tidegate block`: shows and changes the block list of a running server.

use clap::{Args, Subcommand};
use hyper::Method;
use serde::{Deserialize, Serialize};
use tidegate_api::{BlockEntry, BlockPage, BlockRequest, BlockTarget, ProblemBody};
use tidegate_net::client::{ClientResponse, HttpClient};

use crate::commands::{CommandError, CommandOutput, ExitStatus, block_on};
use crate::config;

/// Blocks, allows and unblocks clients and networks on a running server.
///
/// A blocked client is denied before any rule is evaluated. With --allow, no rule counts or denies the client. The command uses the admin listener. Exit status: 0 done,
/// 1 invalid or not on the list, 2 no reply.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BlockCommand {
    #[command(subcommand)]
    action: Action,

    /// URL of the admin listener. TIDEGATE_TOKEN is sent as its token if it is set
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:9090", global = true)]
    server: HttpClient,
}

const EXAMPLES: &str = "\
Examples:
  tidegate block add 192.0.2.7 --for 10m --reason 'password guessing'
  tidegate block add 2001:db8::/32 --for 1d
  tidegate block add user=mallory
  tidegate block add 198.51.100.7 --allow --for 30d --reason 'load test'
  tidegate block remove 192.0.2.7
  tidegate block list
  tidegate block list --plain > deny.txt      networks for a load balancer";

#[derive(Debug, Subcommand)]
enum Action {
    /// Blocks or allows a client or a network, or changes the time of its entry
    Add {
        /// An address, a network, or an attribute with its value, like user=mallory
        #[arg(value_name = "CLIENT")]
        client: BlockedClient,

        /// Allows the client instead: no rule counts or denies it
        #[arg(long)]
        allow: bool,

        /// Length of the block: 90s, 10m, 1 hour, 7 days
        #[arg(long = "for", value_name = "TIME", default_value = "1h")]
        span: String,

        /// Reason, shown in the list
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Removes the entry of a client or a network, whether it blocks or allows
    Remove {
        /// The client as it was added, or its id from the list
        #[arg(value_name = "CLIENT")]
        client: BlockedClient,
    },
    /// Lists blocked and allowed clients with the remaining time and the reason
    List {
        /// Prints the reply of the server, in JSON
        #[arg(long)]
        json: bool,

        /// Prints only blocked networks, merged and one per line, for the deny list of a load balancer
        #[arg(long, conflicts_with = "json")]
        plain: bool,
    },
}

/// The client or network of a command.
#[derive(Clone, Debug)]
struct BlockedClient(BlockTarget);

impl std::str::FromStr for BlockedClient {
    type Err = std::convert::Infallible;

    /// Accepts any text: the server validates it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let owned = |text: &str| Some(text.to_owned());
        Ok(Self(match text.split_once('=') {
            Some((attribute, value)) => BlockTarget {
                attribute: owned(attribute),
                value: owned(value),
                ..BlockTarget::default()
            },
            None if text.contains('#') => BlockTarget { id: owned(text), ..BlockTarget::default() },
            None => BlockTarget { ip: owned(text), ..BlockTarget::default() },
        }))
    }
}

impl BlockCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        match self.action {
            Action::Add { client: BlockedClient(target), allow, span, reason } => {
                let action = allow.then(|| "allow".to_owned());
                let body = json(&BlockRequest { target, action, r#for: span, reason })?;
                let reply = send(&self.server, Method::POST, "/v1/block", body)?;
                let entry: BlockEntry = read(&reply)?;
                output.data(reply.body);
                let (id, effect) = (&entry.id, effect(&entry));
                output.note(format_args!("{id} is {effect} for {} s", entry.seconds_left));
            }
            Action::Remove { client: BlockedClient(target) } => {
                let reply = send(&self.server, Method::DELETE, "/v1/block", json(&target)?)?;
                let entry: BlockEntry = read(&reply)?;
                output.data(reply.body);
                output.note(format_args!("{} is no longer {}", entry.id, effect(&entry)));
            }
            Action::List { plain: true, .. } => {
                let path = "/v1/block?format=plain";
                let reply = send(&self.server, Method::GET, path, String::new())?;
                reply.body.lines().for_each(|line| output.data(line));
            }
            Action::List { json, .. } => {
                let reply = send(&self.server, Method::GET, "/v1/block", String::new())?;
                let list: BlockPage = read(&reply)?;
                if json {
                    output.data(reply.body);
                } else {
                    list.entries.iter().for_each(|entry| output.data(line(entry)));
                }
                output.note(match list.entries.len() {
                    0 => "no client is blocked or allowed".to_owned(),
                    1 => "1 entry".to_owned(),
                    count => format!("{count} entries"),
                });
            }
        }
        Ok(ExitStatus::Success)
    }
}

/// Returns the effect of an entry. Servers of earlier releases have only entries that block.
fn effect(entry: &BlockEntry) -> &'static str {
    if entry.action == "allow" { "allowed" } else { "blocked" }
}

/// Returns a line of the list: `192.0.2.0/24, blocked, 598 s left, by an operator: scans`.
fn line(entry: &BlockEntry) -> String {
    let by = match &entry.rule {
        Some(rule) => format!("by rule {rule:?}"),
        None => "by an operator".to_owned(),
    };
    let (id, effect) = (&entry.id, effect(entry));
    let mut line = format!("{id}, {effect}, {} s left, {by}", entry.seconds_left);
    if let Some(reason) = &entry.reason {
        line.push_str(": ");
        line.push_str(reason);
    }
    line
}

fn json(body: &impl Serialize) -> Result<String, CommandError> {
    serde_json::to_string(body).map_err(CommandError::failed)
}

/// Sends a request to the admin listener. A status other than 200 is an error.
fn send(
    server: &HttpClient,
    method: Method,
    path: &str,
    body: String,
) -> Result<ClientResponse, CommandError> {
    let token = config::token()?;
    let reply = block_on(server.send_json(method, path, body, token.as_ref()))??;
    if reply.status == 200 {
        return Ok(reply);
    }
    let problem: ProblemBody = serde_json::from_str(&reply.body).unwrap_or_default();
    let (status, detail) = (reply.status, problem.detail);
    Err(match status {
        400 => CommandError::negative(detail),
        404 if detail.starts_with("path:") => CommandError::failed(detail)
            .hint("use the URL of the admin listener; its default port is 9090"),
        404 => CommandError::negative(detail)
            .hint("tidegate block list shows the blocked and allowed clients"),
        401 => CommandError::failed(detail).hint("set TIDEGATE_TOKEN to the admin token"),
        _ => CommandError::failed(format_args!("{detail} (status {status})")),
    })
}

fn read<'a, T: Deserialize<'a>>(reply: &'a ClientResponse) -> Result<T, CommandError> {
    serde_json::from_str(&reply.body).map_err(|error| {
        CommandError::failed(format_args!("the reply can't be read: {error}"))
            .hint("is this the admin listener of a tidegate server?")
    })
}
