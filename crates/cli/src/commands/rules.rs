//! `tidegate rules`: the rules of a running fleet, and how they are changed while traffic flows.

mod ask;
mod diff;
mod document;
mod get;
mod history;
mod push;
mod rollback;
mod status;
mod table;

use clap::{Args, Subcommand};
use tidegate_net::client::HttpClient;

use self::ask::AdminClient;
use crate::commands::{Ending, Failure, Output};

/// Shows the rules of running servers, and changes them while traffic flows.
///
/// Asks the admin listener of one server. Rules that it shares with others through a Redis, by serve --rules
/// redis://cache, are changed on all of them, usually within a second; whoever has a file changes the
/// file. Exit status: 0 done, 1 not possible or not so, 2 no answer.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rules {
    #[command(subcommand)]
    action: Action,

    /// The admin listener to ask; TIDEGATE_TOKEN is sent if it is set
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:9090", global = true)]
    server: HttpClient,
}

const EXAMPLES: &str = "\
Examples:
  tidegate rules get > rules.yaml            the document in force, as it was pushed
  tidegate rules diff rules.yaml             what pushing it would change
  tidegate rules push rules.yaml --note 'twice as much for the launch'
  tidegate rules status                      which nodes have it
  tidegate rules history                     who changed what, and when
  tidegate rules rollback                    the version before, as a new one";

#[derive(Debug, Subcommand)]
enum Action {
    Get(get::Get),
    Push(push::Push),
    Diff(diff::Diff),
    History(history::History),
    Rollback(rollback::Rollback),
    Status(status::Status),
}

impl Rules {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        let client = AdminClient::of(&self.server)?;
        match self.action {
            Action::Get(get) => get.run(&client, output),
            Action::Push(push) => push.run(&client, output),
            Action::Diff(diff) => diff.run(&client, output),
            Action::History(history) => history.run(&client, output),
            Action::Rollback(rollback) => rollback.run(&client, output),
            Action::Status(status) => status.run(&client, output),
        }
    }
}
