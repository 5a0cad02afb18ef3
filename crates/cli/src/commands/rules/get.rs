//! `tidegate rules get`.

use clap::Args;

use super::ask::AdminClient;
use crate::commands::{Ending, Failure, Output};

/// Prints the document in force, as it was pushed
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// An older one, as tidegate rules history lists them
    #[arg(long, value_name = "N")]
    version: Option<u64>,

    /// The rules as the server understands them, in JSON
    #[arg(long, conflicts_with = "version")]
    json: bool,
}

impl Get {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut Output<'_>,
    ) -> Result<Ending, Failure> {
        if self.json {
            output.data(client.read("/v1/rules")?.body);
            return Ok(Ending::Fine);
        }
        let document = client.document(self.version)?;
        output.text(&document.body);
        if let Some(version) = document.version.or(self.version) {
            output.note(format_args!("version {version}"));
        }
        Ok(Ending::Fine)
    }
}
