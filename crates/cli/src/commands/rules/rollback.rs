//! `tidegate rules rollback`: activates an older version.

use clap::Args;
use tidegate_api::RulesHistory;

use super::admin_client::{AdminClient, RulesPush};
use super::diff;
use super::history;
use super::push::{VersionMetadata, send};
use super::status;
use crate::commands::{CommandError, CommandOutput, ExitStatus};

/// Number of versions among which the previous one is searched.
const HISTORY_LIMIT: u32 = 50;

/// Pushes an older version again, as a new version
///
/// The versions in between stay in the history. If another version is pushed in the meantime, the rollback
/// fails.
#[derive(Debug, Args)]
pub(crate) struct RollbackCommand {
    /// Number of the version [default: the one before the active version]
    #[arg(value_name = "N")]
    version: Option<u64>,

    #[command(flatten)]
    metadata: VersionMetadata,
}

impl RollbackCommand {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut CommandOutput<'_>,
    ) -> Result<ExitStatus, CommandError> {
        let replaces = status::fetch(client)?.version;
        let version = match self.version {
            Some(version) => version,
            None => previous_version(client, replaces)?,
        };
        if version == replaces {
            return Err(CommandError::negative(format_args!(
                "version {version} is already active"
            )));
        }
        let text = client.document(Some(version))?.body;
        let name = format!("version {version}");
        let difference = diff::compare(client, &name, &text)?;
        diff::lines(&difference).for_each(|line| output.note(line));
        let by = self.metadata.author()?;
        let note = self.metadata.note.unwrap_or_else(|| format!("rollback to {version}"));
        let hint = "tidegate rules history lists the pushed versions";
        let push = RulesPush { name: &name, text: &text, replaces, by: &by, note: &note, hint };
        send(client, &push, output)
    }
}

/// Returns the version before this one.
fn previous_version(client: &AdminClient<'_>, version: u64) -> Result<u64, CommandError> {
    let RulesHistory { versions }: RulesHistory = history::fetch(client, HISTORY_LIMIT)?.json()?;
    let earlier = versions.iter().map(|kept| kept.version).filter(|kept| *kept < version).max();
    earlier.ok_or_else(|| {
        let message = format!("no version before {version} is stored");
        CommandError::negative(message).hint("tidegate rules history lists the available versions")
    })
}
