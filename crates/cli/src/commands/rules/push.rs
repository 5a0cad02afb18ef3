//! `tidegate rules push`.

use std::path::PathBuf;

use clap::Args;
use tidegate_api::PushedRules;

use super::ask::{AdminClient, Change};
use super::diff;
use super::document::Document;
use super::status;
use crate::commands::{Ending, Failure, Output};
use crate::config;

/// Most characters of who and why, as the server takes them.
const MOST_WORDS: usize = 200;

/// Puts a document in force on every node, and shows what it changes
///
/// The document is checked here and by the server, whole; one that has an error changes nothing
/// anywhere. It replaces the version that it was compared with: if somebody else pushes meanwhile,
/// theirs stays and yours is not pushed.
#[derive(Debug, Args)]
pub(crate) struct Push {
    /// The document; - reads it from stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    words: Words,

    /// Only if this version is in force; 0 if there must be none yet
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,

    /// Shows what would change, and pushes nothing
    #[arg(long)]
    dry_run: bool,
}

/// What is kept with a version.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// Why, for whoever reads the history
    #[arg(long, value_name = "TEXT", value_parser = few)]
    pub(crate) note: Option<String>,

    /// Who: user@host of this machine if nothing is said
    #[arg(long, value_name = "WHO", value_parser = few)]
    pub(crate) by: Option<String>,
}

fn few(text: &str) -> Result<String, String> {
    if text.chars().any(char::is_control) {
        return Err("must be one line of plain text".to_owned());
    }
    match text.chars().count() {
        0..=MOST_WORDS => Ok(text.to_owned()),
        found => Err(format!("must have at most {MOST_WORDS} characters, found {found}")),
    }
}

impl Push {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut Output<'_>,
    ) -> Result<Ending, Failure> {
        let Document { name, text } = Document::read(&self.file)?;
        let replaces = status::ask(client)?.version;
        let look = format!(
            "tidegate rules diff {} shows what pushing it would change now",
            self.file.display()
        );
        if let Some(wanted) = self.if_version.filter(|wanted| *wanted != replaces) {
            let wrong = format!("version {wanted} must be in force, found {replaces}");
            return Err(Failure::refused(wrong).hint(look));
        }
        let difference = diff::compare(client, &name, &text)?;
        diff::lines(&difference).for_each(|line| output.note(line));
        if self.dry_run {
            output.note(format_args!("version {replaces} stays in force, nothing was pushed"));
            return Ok(Ending::Fine);
        }
        let (by, note) = (self.words.by()?, self.words.note.unwrap_or_default());
        let change =
            Change { name: &name, text: &text, replaces, by: &by, note: &note, hint: &look };
        send(client, &change, output)
    }
}

impl Words {
    /// Who changes the rules.
    pub(crate) fn by(&self) -> Result<String, Failure> {
        match &self.by {
            Some(by) => Ok(by.clone()),
            None => Ok(config::operator()?.chars().take(MOST_WORDS).collect()),
        }
    }
}

/// Pushes a change and says what became of it.
pub(crate) fn send(
    client: &AdminClient<'_>,
    change: &Change<'_>,
    output: &mut Output<'_>,
) -> Result<Ending, Failure> {
    let pushed = client.push(change)?;
    let PushedRules { version, rules, .. }: PushedRules = pushed.json()?;
    output.data(&pushed.body);
    let rules = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
    output.note(format_args!("version {version} is in force: {rules}"));
    Ok(Ending::Fine)
}
