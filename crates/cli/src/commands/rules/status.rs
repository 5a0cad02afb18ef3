//! `tidegate rules status`.

use clap::Args;
use tidegate_api::RulesStatus;
use tidegate_core::TerminalSafe;

use super::ask::AdminClient;
use super::table::{Table, instant};
use crate::commands::{Ending, Failure, Output};

/// Lists the nodes and which version each has
///
/// Exit status: 0 every node has the latest, 1 one of them is behind, 2 no answer.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// As the server answers, in JSON
    #[arg(long)]
    json: bool,
}

const PATH: &str = "/v1/rules/status";

/// Reads the version of this node and of the others.
pub(crate) fn ask(client: &AdminClient<'_>) -> Result<RulesStatus<TerminalSafe>, Failure> {
    client.read(PATH)?.json()
}

fn is_behind(status: &RulesStatus<TerminalSafe>) -> bool {
    status.behind || status.nodes.iter().any(|node| node.behind)
}

impl Status {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut Output<'_>,
    ) -> Result<Ending, Failure> {
        let answer = client.read(PATH)?;
        let status: RulesStatus<TerminalSafe> = answer.json()?;
        if self.json {
            output.data(answer.body);
        } else {
            let mut table = Table::new(["NODE", "VERSION", "BEHIND", "SEEN", "PROBLEM"]);
            for node in &status.nodes {
                let (version, seen) = (node.version.to_string(), instant(node.seen));
                let behind = if node.behind { "yes" } else { "no" };
                let problem = node.problem.as_ref().map_or("", TerminalSafe::as_str);
                table.row([node.node.as_str(), &version, behind, &seen, problem]);
            }
            table.lines().for_each(|line| output.data(line));
            output.note(summary(&status));
            if let Some(problem) = &status.problem {
                output.note(format_args!("here: {problem}"));
            }
            if let Some(unknown) = &status.unknown {
                output.note(format_args!("other nodes are not known: {unknown}"));
            }
        }
        Ok(if is_behind(&status) { Ending::No } else { Ending::Fine })
    }
}

/// `version 7 of redis://cache is the latest; 1 of 3 nodes is behind`.
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
