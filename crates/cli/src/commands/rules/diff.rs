//! `tidegate rules diff`: compares rules.

use std::path::Path;

use clap::Args;
use tidegate_api::{FieldChange, RuleChange, RulesDifference};
use tidegate_core::TerminalSafe;

use super::admin_client::{AdminClient, AdminReply, warning_line};
use super::local_document::LocalDocument;
use crate::commands::{CommandError, CommandOutput, ExitStatus};

/// Compares a document with the active rules, or two versions with each other
///
/// Exit status: 0 the rules are the same, 1 they differ, 2 they can't be compared.
#[derive(Debug, Args)]
pub(crate) struct DiffCommand {
    /// A document (- for stdin) to compare with the active rules, or the number of a version
    #[arg(value_name = "FILE|N")]
    first: String,

    /// The version to compare the first one with
    #[arg(value_name = "M")]
    second: Option<u64>,

    /// Prints the reply of the server, in JSON
    #[arg(long)]
    json: bool,
}

/// A difference with text that is safe to print.
pub(crate) type Difference = RulesDifference<TerminalSafe>;

impl DiffCommand {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut CommandOutput<'_>,
    ) -> Result<ExitStatus, CommandError> {
        // Status 1 means a difference, so that every error has status 2.
        let failed = |error| CommandError { status: ExitStatus::Failed, ..error };
        let reply = self.fetch(client).map_err(failed)?;
        let difference: Difference = reply.json()?;
        if self.json {
            output.data(reply.body);
        } else {
            lines(&difference).for_each(|line| output.data(line));
        }
        difference.warnings.iter().for_each(|item| output.note(warning_line(item, &self.first)));
        Ok(if is_empty(&difference) { ExitStatus::Success } else { ExitStatus::Negative })
    }

    fn fetch(&self, client: &AdminClient<'_>) -> Result<AdminReply, CommandError> {
        match (self.first.parse::<u64>(), self.second) {
            (Ok(from), Some(to)) => client.read(&format!("/v1/rules/diff?from={from}&to={to}")),
            (Err(_), Some(to)) => {
                let first = &self.first;
                Err(CommandError::failed(format_args!("a version is wanted before {to}, found {first:?}"))
                    .hint("tidegate rules diff 6 7 compares two versions, tidegate rules diff FILE compares a document with the active rules"))
            }
            (number, None) => {
                let document =
                    LocalDocument::read(Path::new(&self.first)).map_err(|error| match number {
                        Ok(_) => error.hint("name two versions to compare them"),
                        Err(_) => error,
                    })?;
                client.compare(&document.name, &document.text)
            }
        }
    }
}

/// Compares the active rules with a document.
pub(crate) fn compare(
    client: &AdminClient<'_>,
    name: &str,
    text: &str,
) -> Result<Difference, CommandError> {
    client.compare(name, text)?.json()
}

fn is_empty(difference: &Difference) -> bool {
    difference.added.is_empty() && difference.removed.is_empty() && difference.changed.is_empty()
}

/// Returns a line for each added or removed rule and each changed field, and one for the unchanged rules.
pub(crate) fn lines(difference: &Difference) -> impl Iterator<Item = String> {
    let added = difference.added.iter().map(|rule| format!("+ {rule}"));
    let removed = difference.removed.iter().map(|rule| format!("- {rule}"));
    let changed = difference.changed.iter().flat_map(|RuleChange { rule, fields }| {
        fields.iter().map(move |FieldChange { field, from, to }| {
            let value = |value: &Option<TerminalSafe>| {
                value.as_ref().map_or("nothing", |value| value.as_str()).to_owned()
            };
            format!("~ {rule}: {field} from {} to {}", value(from), value(to))
        })
    });
    let rest = match difference.same {
        1 => "1 rule is unchanged".to_owned(),
        same => format!("{same} rules are unchanged"),
    };
    added.chain(removed).chain(changed).chain([rest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_one_line() {
        let reply = r#"{"added":["a"],"removed":["b"],"changed":[{"rule":"c","fields":[
            {"field":"limit","from":"100 per 1 s","to":"200 per 1 s"},
            {"field":"match.path","from":null,"to":"\"/x\u001b[2J\""}]}],"same":9}"#;
        let difference: Difference = serde_json::from_str(reply).unwrap();
        let found: Vec<String> = lines(&difference).collect();
        let expected = [
            "+ a",
            "- b",
            "~ c: limit from 100 per 1 s to 200 per 1 s",
            "~ c: match.path from nothing to \"/x\u{fffd}[2J\"",
            "9 rules are unchanged",
        ];
        assert_eq!(found, expected);
        assert!(!is_empty(&difference));
        let none: Difference = serde_json::from_str(r#"{"same":1}"#).unwrap();
        assert!(is_empty(&none));
        assert_eq!(lines(&none).collect::<Vec<_>>(), ["1 rule is unchanged"]);
    }
}
