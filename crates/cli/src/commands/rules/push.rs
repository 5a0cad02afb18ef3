//! `tidegate rules push`: activates a document on every node.

use std::path::PathBuf;

use clap::Args;
use tidegate_api::PushedRules;
use tidegate_core::TerminalSafe;

use super::admin_client::{AdminClient, RulesPush, warning_line};
use super::diff;
use super::local_document::LocalDocument;
use super::status;
use crate::commands::{CommandError, CommandOutput, ExitStatus};
use crate::config;

/// Longest note and author in characters. The server has the same limit.
const MAX_METADATA_CHARS: usize = 200;

/// Activates a document on every node, and prints what changes
///
/// The document is validated here and by the server; an invalid document changes nothing. It replaces the
/// version that it was compared with. If another version is pushed in the meantime, this push fails.
#[derive(Debug, Args)]
pub(crate) struct PushCommand {
    /// The document; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    metadata: VersionMetadata,

    /// Push only if this version is active; 0 means that no version exists yet
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,

    /// Prints what would change, and pushes nothing
    #[arg(long)]
    dry_run: bool,
}

/// Metadata that is stored with a version.
#[derive(Debug, Args)]
pub(crate) struct VersionMetadata {
    /// Reason of the change, for the history
    #[arg(long, value_name = "TEXT", value_parser = metadata_text)]
    pub(crate) note: Option<String>,

    /// Author of the change [default: user@host of this machine]
    #[arg(long, value_name = "AUTHOR", value_parser = metadata_text)]
    pub(crate) by: Option<String>,
}

fn metadata_text(text: &str) -> Result<String, String> {
    if text.chars().any(char::is_control) {
        return Err("must be one line of plain text".to_owned());
    }
    match text.chars().count() {
        0..=MAX_METADATA_CHARS => Ok(text.to_owned()),
        found => Err(format!("must have at most {MAX_METADATA_CHARS} characters, found {found}")),
    }
}

impl PushCommand {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut CommandOutput<'_>,
    ) -> Result<ExitStatus, CommandError> {
        let LocalDocument { name, text } = LocalDocument::read(&self.file)?;
        let replaces = status::fetch(client)?.version;
        let hint = format!(
            "tidegate rules diff {} shows what a push would change now",
            self.file.display()
        );
        if let Some(wanted) = self.if_version.filter(|wanted| *wanted != replaces) {
            let message = format!("active version must be {wanted}, found {replaces}");
            return Err(CommandError::negative(message).hint(hint));
        }
        let difference = diff::compare(client, &name, &text)?;
        diff::lines(&difference).for_each(|line| output.note(line));
        if self.dry_run {
            difference.warnings.iter().for_each(|item| output.note(warning_line(item, &name)));
            output.note(format_args!("version {replaces} stays active, nothing was pushed"));
            return Ok(ExitStatus::Success);
        }
        let (by, note) = (self.metadata.author()?, self.metadata.note.unwrap_or_default());
        let push =
            RulesPush { name: &name, text: &text, replaces, by: &by, note: &note, hint: &hint };
        send(client, &push, output)
    }
}

impl VersionMetadata {
    /// Returns the author: `--by`, else the operator of this machine.
    pub(crate) fn author(&self) -> Result<String, CommandError> {
        match &self.by {
            Some(by) => Ok(by.clone()),
            None => Ok(config::operator()?.chars().take(MAX_METADATA_CHARS).collect()),
        }
    }
}

/// Pushes a document and prints the new version.
pub(crate) fn send(
    client: &AdminClient<'_>,
    push: &RulesPush<'_>,
    output: &mut CommandOutput<'_>,
) -> Result<ExitStatus, CommandError> {
    let pushed = client.push(push)?;
    let PushedRules { version, rules, warnings, .. }: PushedRules<TerminalSafe> = pushed.json()?;
    output.data(&pushed.body);
    warnings.iter().for_each(|warning| output.note(warning_line(warning, push.name)));
    let rules = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
    output.note(format_args!("version {version} is active: {rules}"));
    Ok(ExitStatus::Success)
}
