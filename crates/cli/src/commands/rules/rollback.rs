//! `tidegate rules rollback`.

use clap::Args;
use tidegate_api::RulesHistory;

use super::ask::{AdminClient, Change};
use super::diff;
use super::history;
use super::push::{Words, send};
use super::status;
use crate::commands::{Ending, Failure, Output};

/// How far back to look for the version before the one in force.
const KEPT: u32 = 50;

/// Pushes an older version again, as a new one
///
/// What was pushed in between stays in the history. If somebody else pushes meanwhile, theirs stays and
/// nothing is rolled back.
#[derive(Debug, Args)]
pub(crate) struct Rollback {
    /// Which version; the one before the one in force if nothing is said
    #[arg(value_name = "N")]
    version: Option<u64>,

    #[command(flatten)]
    words: Words,
}

impl Rollback {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut Output<'_>,
    ) -> Result<Ending, Failure> {
        let replaces = status::ask(client)?.version;
        let version = match self.version {
            Some(version) => version,
            None => before(client, replaces)?,
        };
        if version == replaces {
            return Err(Failure::refused(format_args!("version {version} is in force already")));
        }
        let text = client.document(Some(version))?.body;
        let name = format!("version {version}");
        let difference = diff::compare(client, &name, &text)?;
        diff::lines(&difference).for_each(|line| output.note(line));
        let by = self.words.by()?;
        let note = self.words.note.unwrap_or_else(|| format!("rollback to {version}"));
        let hint = "tidegate rules history shows what was pushed";
        let change = Change { name: &name, text: &text, replaces, by: &by, note: &note, hint };
        send(client, &change, output)
    }
}

/// The version before one.
fn before(client: &AdminClient<'_>, version: u64) -> Result<u64, Failure> {
    let RulesHistory { versions }: RulesHistory = history::ask(client, KEPT)?.json()?;
    let earlier = versions.iter().map(|kept| kept.version).filter(|kept| *kept < version).max();
    earlier.ok_or_else(|| {
        let wrong = format!("no version before {version} is kept");
        Failure::refused(wrong).hint("tidegate rules history shows which versions are kept")
    })
}
