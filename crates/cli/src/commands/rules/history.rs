//! `tidegate rules history`: lists versions.

use clap::Args;
use tidegate_api::RulesHistory;

use super::admin_client::{AdminClient, AdminReply};
use super::status;
use super::table::{TextTable, format_utc};
use crate::commands::{CommandError, CommandOutput, ExitStatus};

/// Lists the stored versions with author, time and note
#[derive(Debug, Args)]
pub(crate) struct HistoryCommand {
    /// Most versions to list
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: u32,

    /// Prints the reply of the server, in JSON
    #[arg(long)]
    json: bool,
}

/// Reads the last versions, the newest first.
pub(crate) fn fetch(client: &AdminClient<'_>, limit: u32) -> Result<AdminReply, CommandError> {
    client.read(&format!("/v1/rules/history?limit={limit}"))
}

impl HistoryCommand {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut CommandOutput<'_>,
    ) -> Result<ExitStatus, CommandError> {
        let reply = fetch(client, self.limit)?;
        let RulesHistory { versions }: RulesHistory = reply.json()?;
        if self.json {
            output.data(reply.body);
            return Ok(ExitStatus::Success);
        }
        if versions.is_empty() {
            output.note("no version was pushed yet");
            return Ok(ExitStatus::Success);
        }
        let active_version = status::fetch(client)?.version;
        let mut table = TextTable::new(["", "VERSION", "WHEN", "AUTHOR", "BYTES", "NOTE"]);
        for version in &versions {
            let mark = if version.version == active_version { "*" } else { "" };
            let number = version.version.to_string();
            let (when, bytes) = (format_utc(version.at), version.bytes.to_string());
            table.row([mark, &number, &when, &version.by, &bytes, &version.note]);
        }
        table.lines().for_each(|line| output.data(line));
        output.note(format_args!("* is active on this node: version {active_version}"));
        Ok(ExitStatus::Success)
    }
}
