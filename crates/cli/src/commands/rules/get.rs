//! `tidegate rules get`: prints the active document.

use clap::Args;

use super::admin_client::AdminClient;
use crate::commands::{CommandError, CommandOutput, ExitStatus};

/// Prints the active document, as it was pushed
#[derive(Debug, Args)]
pub(crate) struct GetCommand {
    /// Number of an older version; tidegate rules history lists them
    #[arg(long, value_name = "N")]
    version: Option<u64>,

    /// Prints the parsed rules of the server, in JSON
    #[arg(long, conflicts_with = "version")]
    json: bool,
}

impl GetCommand {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut CommandOutput<'_>,
    ) -> Result<ExitStatus, CommandError> {
        if self.json {
            output.data(client.read("/v1/rules")?.body);
            return Ok(ExitStatus::Success);
        }
        let document = client.document(self.version)?;
        output.text(&document.body);
        if let Some(version) = document.version.or(self.version) {
            output.note(format_args!("version {version}"));
        }
        Ok(ExitStatus::Success)
    }
}
