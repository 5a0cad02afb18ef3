//! `tidegate rules`: shows and changes the rules of a running fleet.

mod admin_client;
mod diff;
mod get;
mod history;
mod local_document;
mod push;
mod rollback;
mod status;
mod table;

use clap::{Args, Subcommand};
use tidegate_net::client::HttpClient;

use self::admin_client::AdminClient;
use crate::commands::{CommandError, CommandOutput, ExitStatus};

/// Shows the rules of running servers, and changes them without a restart.
///
/// The command uses the admin listener of one server. If its rules are in Redis (serve --rules redis://cache), a push
/// reaches every node, usually within a second. If they are in a file, change the file instead: it is watched. Exit
/// status: 0 done, 1 rejected or different, 2 no reply.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RulesCommand {
    #[command(subcommand)]
    action: Action,

    /// URL of the admin listener. TIDEGATE_TOKEN is sent as its token if it is set
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:9090", global = true)]
    server: HttpClient,
}

const EXAMPLES: &str = "\
Examples:
  tidegate rules get > rules.yaml            save the active document, as it was pushed
  tidegate rules diff rules.yaml             show what a push would change
  tidegate rules push rules.yaml --note 'double the limit for the launch'
  tidegate rules status                      list the version of each node
  tidegate rules history                     list versions with author, time and note
  tidegate rules rollback                    push the previous version as a new one";

#[derive(Debug, Subcommand)]
enum Action {
    Get(get::GetCommand),
    Push(push::PushCommand),
    Diff(diff::DiffCommand),
    History(history::HistoryCommand),
    Rollback(rollback::RollbackCommand),
    Status(status::StatusCommand),
}

impl RulesCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        let client = AdminClient::new(&self.server)?;
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
