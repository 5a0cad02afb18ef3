//! `tidegate rules status`.

use clap::Args;
use serde::Deserialize;
use tidegate_core::TerminalSafe;

use super::ask::Door;
use super::table::{Table, instant};
use crate::commands::{Ending, Failure, Output};

/// Lists the nodes and which version each has
///
/// Exit status: 0 every node has the latest, 1 one of them is behind, 2 no answer.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// As the server answers, in JSON
    #[arg(long)]
    json: bool,
}

/// How a server stands with its source of rules, and the others that share it.
#[derive(Deserialize)]
pub(super) struct Standing {
    source: String,
    pub(super) version: u64,
    #[serde(default)]
    pub latest: u64,
    #[serde(default)]
    behind: bool,
    #[serde(default)]
    problem: Option<String>,
    /// Why other nodes are not listed.
    #[serde(default)]
    unknown: Option<String>,
    #[serde(default)]
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    node: String,
    version: u64,
    #[serde(default)]
    behind: bool,
    #[serde(default)]
    problem: Option<String>,
    #[serde(default)]
    seen: u64,
}

const PATH: &str = "/v1/rules/status";

impl Standing {
    pub(super) fn ask(door: &Door<'_>) -> Result<Self, Failure> {
        door.read(PATH)?.json()
    }

    fn is_behind(&self) -> bool {
        self.behind || self.nodes.iter().any(|node| node.behind)
    }
}

impl Status {
    pub(super) fn run(self, door: &Door<'_>, output: &mut Output<'_>) -> Result<Ending, Failure> {
        let answer = door.read(PATH)?;
        let standing: Standing = answer.json()?;
        if self.json {
            output.data(answer.body);
        } else {
            let mut table = Table::new(["NODE", "VERSION", "BEHIND", "SEEN", "PROBLEM"]);
            for node in &standing.nodes {
                let (version, seen) = (node.version.to_string(), instant(node.seen));
                let behind = if node.behind { "yes" } else { "no" };
                let problem = node.problem.as_deref().unwrap_or_default();
                table.row([&node.node, &version, behind, &seen, problem]);
            }
            table.lines().for_each(|line| output.data(line));
            output.note(summary(&standing));
            if let Some(problem) = &standing.problem {
                output.note(format_args!("here: {}", TerminalSafe::from(problem.as_str())));
            }
            if let Some(unknown) = &standing.unknown {
                output.note(format_args!(
                    "other nodes are not known: {}",
                    TerminalSafe::from(unknown.as_str())
                ));
            }
        }
        Ok(if standing.is_behind() { Ending::No } else { Ending::Fine })
    }
}

/// `version 7 of redis://cache is the latest; 1 of 3 nodes is behind`.
fn summary(standing: &Standing) -> String {
    let latest = standing.latest.max(standing.version);
    let of = standing.nodes.len();
    let behind = match standing.nodes.iter().filter(|node| node.behind).count() {
        0 => "no node is behind".to_owned(),
        1 => format!("1 of {of} nodes is behind"),
        behind => format!("{behind} of {of} nodes are behind"),
    };
    format!(
        "version {latest} of {} is the latest; {behind}",
        TerminalSafe::from(standing.source.as_str())
    )
}
