//! `tidegate rules history`.

use clap::Args;
use tidegate_api::RulesHistory;

use super::ask::{AdminClient, Answer};
use super::status;
use super::table::{Table, instant};
use crate::commands::{Ending, Failure, Output};

/// Lists the versions that are kept: who pushed each, when and why
#[derive(Debug, Args)]
pub(crate) struct History {
    /// How many at most
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: u32,

    /// As the server answers, in JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn ask(client: &AdminClient<'_>, limit: u32) -> Result<Answer, Failure> {
    client.read(&format!("/v1/rules/history?limit={limit}"))
}

impl History {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut Output<'_>,
    ) -> Result<Ending, Failure> {
        let answer = ask(client, self.limit)?;
        let RulesHistory { versions }: RulesHistory = answer.json()?;
        if self.json {
            output.data(answer.body);
            return Ok(Ending::Fine);
        }
        if versions.is_empty() {
            output.note("nothing was pushed yet");
            return Ok(Ending::Fine);
        }
        let active_rules = status::ask(client)?.version;
        let mut table = Table::new(["", "VERSION", "WHEN", "WHO", "BYTES", "NOTE"]);
        for version in &versions {
            let mark = if version.version == active_rules { "*" } else { "" };
            let number = version.version.to_string();
            let (when, bytes) = (instant(version.at), version.bytes.to_string());
            table.row([mark, &number, &when, &version.by, &bytes, &version.note]);
        }
        table.lines().for_each(|line| output.data(line));
        output.note(format_args!("* is in force here: version {active_rules}"));
        Ok(Ending::Fine)
    }
}
