//! `tidegate rules diff`.

use std::path::Path;

use clap::Args;
use tidegate_api::{FieldChange, RuleChange, RulesDifference};
use tidegate_core::TerminalSafe;

use super::ask::{AdminClient, Answer};
use super::document::Document;
use crate::commands::{Ending, Failure, Output};

/// Shows what pushing a document would change, or what changed between two versions
///
/// Exit status: 0 the rules are the same, 1 they are not, 2 it can't be told.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// A document, - for stdin, to compare with what is in force; or the number of a version
    #[arg(value_name = "FILE|N")]
    first: String,

    /// The version to compare that one with
    #[arg(value_name = "M")]
    second: Option<u64>,

    /// As the server answers, in JSON
    #[arg(long)]
    json: bool,
}

/// A difference whose text is safe to print.
pub(crate) type Difference = RulesDifference<TerminalSafe>;

impl Diff {
    pub(crate) fn run(
        self,
        client: &AdminClient<'_>,
        output: &mut Output<'_>,
    ) -> Result<Ending, Failure> {
        // That it can't be told must not look like a difference.
        let failed = |failure| Failure { ending: Ending::Failed, ..failure };
        let answer = self.ask(client).map_err(failed)?;
        let difference: Difference = answer.json()?;
        if self.json {
            output.data(answer.body);
        } else {
            lines(&difference).for_each(|line| output.data(line));
        }
        Ok(if is_empty(&difference) { Ending::Fine } else { Ending::No })
    }

    fn ask(&self, client: &AdminClient<'_>) -> Result<Answer, Failure> {
        match (self.first.parse::<u64>(), self.second) {
            (Ok(from), Some(to)) => client.read(&format!("/v1/rules/diff?from={from}&to={to}")),
            (Err(_), Some(to)) => {
                let first = &self.first;
                Err(Failure::failed(format_args!("a version is wanted before {to}, found {first:?}"))
                    .hint("tidegate rules diff 6 7 compares two versions, tidegate rules diff FILE a document with what is in force"))
            }
            (number, None) => {
                let document =
                    Document::read(Path::new(&self.first)).map_err(|failure| match number {
                        Ok(_) => failure.hint("to compare versions name two of them"),
                        Err(_) => failure,
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
) -> Result<Difference, Failure> {
    client.compare(name, text)?.json()
}

fn is_empty(difference: &Difference) -> bool {
    difference.added.is_empty() && difference.removed.is_empty() && difference.changed.is_empty()
}

/// Writes a line for each rule that is added or removed and for each field that changes, and one for the rest.
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
        1 => "1 rule stays as it is".to_owned(),
        same => format!("{same} rules stay as they are"),
    };
    added.chain(removed).chain(changed).chain([rest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_a_line() {
        let answer = r#"{"added":["a"],"removed":["b"],"changed":[{"rule":"c","fields":[
            {"field":"limit","from":"100 per 1 s","to":"200 per 1 s"},
            {"field":"match.path","from":null,"to":"\"/x\u001b[2J\""}]}],"same":9}"#;
        let difference: Difference = serde_json::from_str(answer).unwrap();
        let found: Vec<String> = lines(&difference).collect();
        let expected = [
            "+ a",
            "- b",
            "~ c: limit from 100 per 1 s to 200 per 1 s",
            "~ c: match.path from nothing to \"/x\u{fffd}[2J\"",
            "9 rules stay as they are",
        ];
        assert_eq!(found, expected);
        assert!(!is_empty(&difference));
        let none: Difference = serde_json::from_str(r#"{"same":1}"#).unwrap();
        assert!(is_empty(&none));
        assert_eq!(lines(&none).collect::<Vec<_>>(), ["1 rule stays as it is"]);
    }
}
