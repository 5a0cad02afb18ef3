//! `tidegate block`: who is blocked by a running server, and the ways onto the list and off it.

use clap::{Args, Subcommand};
use hyper::Method;
use serde::{Deserialize, Serialize};
use tidegate_api::{BlockEntry, BlockPage, BlockRequest, BlockTarget, ProblemBody};
use tidegate_net::client::{ClientResponse, HttpClient};

use crate::commands::{Ending, Failure, Output, waiting};
use crate::config;

/// Blocks clients and networks on a running server, and lets them off again.
///
/// Whoever is blocked is denied before any rule is looked at. Asks the admin listener of the server. Exit
/// status: 0 done, 1 not possible or not on the list, 2 no answer.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Block {
    #[command(subcommand)]
    action: Action,

    /// The admin listener to ask; TIDEGATE_TOKEN is sent if it is set
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:9090", global = true)]
    server: HttpClient,
}

const EXAMPLES: &str = "\
Examples:
  tidegate block add 192.0.2.7 --for 10m --reason 'password guessing'
  tidegate block add 2001:db8::/32 --for 1d
  tidegate block add user=mallory
  tidegate block remove 192.0.2.7
  tidegate block list
  tidegate block list --plain > deny.txt      the networks, for a load balancer";

#[derive(Debug, Subcommand)]
enum Action {
    /// Blocks a client, a network, or changes until when it is blocked
    Add {
        /// Whom: an address, a network, or an attribute and its value as in user=mallory
        #[arg(value_name = "CLIENT")]
        client: Client,

        /// How long: 90s, 10m, 1 hour, 7 days
        #[arg(long = "for", value_name = "TIME", default_value = "1h")]
        span: String,

        /// Why, for whoever reads the list
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Lets a client or network off
    Remove {
        /// Whom: as it was added, or by the id that list shows
        #[arg(value_name = "CLIENT")]
        client: Client,
    },
    /// Shows who is blocked, how long still, and why
    List {
        /// As the server answers, in JSON
        #[arg(long)]
        json: bool,

        /// The networks only, one per line, as few as say the same: for a load balancer's deny set
        #[arg(long, conflicts_with = "json")]
        plain: bool,
    },
}

/// Whom a command is about, as the server reads it.
#[derive(Clone, Debug)]
struct Client(BlockTarget);

impl std::str::FromStr for Client {
    type Err = std::convert::Infallible;

    /// What is wrong with it, the server says.
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

impl Block {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        match self.action {
            Action::Add { client: Client(target), span, reason } => {
                let body = json(&BlockRequest { target, r#for: span, reason })?;
                let answer = ask(&self.server, Method::POST, "/v1/block", body)?;
                let entry: BlockEntry = read(&answer)?;
                output.data(answer.body);
                output.note(format_args!("{} is blocked for {} s", entry.id, entry.seconds_left));
            }
            Action::Remove { client: Client(target) } => {
                let answer = ask(&self.server, Method::DELETE, "/v1/block", json(&target)?)?;
                let entry: BlockEntry = read(&answer)?;
                output.data(answer.body);
                output.note(format_args!("{} is no longer blocked", entry.id));
            }
            Action::List { plain: true, .. } => {
                let path = "/v1/block?format=plain";
                let answer = ask(&self.server, Method::GET, path, String::new())?;
                answer.body.lines().for_each(|line| output.data(line));
            }
            Action::List { json, .. } => {
                let answer = ask(&self.server, Method::GET, "/v1/block", String::new())?;
                let list: BlockPage = read(&answer)?;
                if json {
                    output.data(answer.body);
                } else {
                    list.entries.iter().for_each(|entry| output.data(line(entry)));
                }
                output.note(match list.entries.len() {
                    0 => "nobody is blocked".to_owned(),
                    1 => "1 entry".to_owned(),
                    count => format!("{count} entries"),
                });
            }
        }
        Ok(Ending::Fine)
    }
}

/// `192.0.2.0/24, 598 s left, by an operator: scans`.
fn line(entry: &BlockEntry) -> String {
    let by = match &entry.rule {
        Some(rule) => format!("by rule {rule:?}"),
        None => "by an operator".to_owned(),
    };
    let mut line = format!("{}, {} s left, {by}", entry.id, entry.seconds_left);
    if let Some(reason) = &entry.reason {
        line.push_str(": ");
        line.push_str(reason);
    }
    line
}

fn json(body: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(body).map_err(Failure::failed)
}

fn ask(
    server: &HttpClient,
    method: Method,
    path: &str,
    body: String,
) -> Result<ClientResponse, Failure> {
    let token = config::token()?;
    let answer = waiting(server.send_json(method, path, body, token.as_ref()))??;
    if answer.status == 200 {
        return Ok(answer);
    }
    let problem: ProblemBody = serde_json::from_str(&answer.body).unwrap_or_default();
    let (status, detail) = (answer.status, problem.detail);
    Err(match status {
        400 => Failure::refused(detail),
        404 if detail.starts_with("path:") => Failure::failed(detail)
            .hint("the admin listener is another one than the listener for checks, port 9090 if not told otherwise"),
        404 => Failure::refused(detail).hint("tidegate block list shows who is blocked"),
        401 => Failure::failed(detail).hint("TIDEGATE_TOKEN sets the token that is sent"),
        _ => Failure::failed(format_args!("{detail} (status {status})")),
    })
}

fn read<'a, T: Deserialize<'a>>(answer: &'a ClientResponse) -> Result<T, Failure> {
    serde_json::from_str(&answer.body).map_err(|error| {
        Failure::failed(format_args!("the answer can't be read: {error}"))
            .hint("is that the admin listener of a tidegate?")
    })
}
