//! `tidegate rules status`: lists the version of each node.

use clap::Args;
use tidegate_api::RulesStatus;
use tidegate_core::TerminalSafe;

use super::admin_client::AdminClient;
use super::table::{TextTable, format_utc};
use crate::commands::{CommandError, CommandOutput, ExitStatus};

/// Lists the nodes with the version of their rules
///
/// Exit status: 0 every node has the latest version, 1 a node is behind, 2 no reply.
#[derive(Debug, Args)]
pub(crate) struct StatusCommand {
    /// Prints the reply of the server, in JSON
    #[arg(long)]
    json: bool,
}

const PATH: &str = "/v1/rules/status";

/// Reads the versions of all nodes.
pub(crate) fn fetch(client: &AdminClient<'_>) -> Result<RulesStatus<TerminalSafe>, CommandError> {
    client.read(PATH)?.json()
}

fn is_behind(status: &RulesStatus<TerminalSafe>) -> bool {
    status.behind || status.nodes.iter().any(|node| node.behind)
}

impl StatusCommand {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut CommandOutput<'_>,
    ) -> Result<ExitStatus, CommandError> {
        let reply = client.read(PATH)?;
        let status: RulesStatus<TerminalSafe> = reply.json()?;
        if self.json {
            output.data(reply.body);
        } else {
            let mut table = TextTable::new(["NODE", "VERSION", "BEHIND", "SEEN", "PROBLEM"]);
            for node in &status.nodes {
                let (version, seen) = (node.version.to_string(), format_utc(node.seen));
                let behind = if node.behind { "yes" } else { "no" };
                let problem = node.problem.as_ref().map_or("", TerminalSafe::as_str);
                table.row([node.node.as_str(), &version, behind, &seen, problem]);
            }
            table.lines().for_each(|line| output.data(line));
            output.note(summary(&status));
            if let Some(problem) = &status.problem {
                output.note(format_args!("problem of this node: {problem}"));
            }
            if let Some(unknown) = &status.unknown {
                output.note(format_args!("other nodes are unknown: {unknown}"));
            }
        }
        Ok(if is_behind(&status) { ExitStatus::Negative } else { ExitStatus::Success })
    }
}

/// Returns a summary: `version 7 of redis://cache is the latest; 1 of 3 nodes is behind`.
fn summary(status: &RulesStatus<TerminalSafe>) -> String {
    let latest = status.latest.max(status.version);
    let of = status.nodes.len();
    let behind = match status.nodes.iter().filter(|node| node.behind).count() {
        0 => "no node is behind".to_owned(),
        1 => format!("1 of {of} nodes is behind"),
        behind => format!("{behind} of {of} nodes are behind"),
    };
    format!("version {latest} of {} is the latest; {behind}", status.source)
}
