//! `tidegate rules diff`.

use std::path::Path;

use clap::Args;
use serde::Deserialize;
use tidegate_core::TerminalSafe;

use super::ask::{Answer, Door};
use super::document::Document;
use crate::commands::{Ending, Failure, Output};

/// Shows what pushing a document would change, or what changed between two versions
///
/// Exit status: 0 the rules are the same, 1 they are not, 2 it can't be told.
#[derive(Debug, Args)]
pub(super) struct Diff {
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

/// What is different between two documents.
#[derive(Deserialize)]
pub(super) struct Difference {
    #[serde(default)]
    added: Vec<String>,
    #[serde(default)]
    removed: Vec<String>,
    #[serde(default)]
    changed: Vec<Changed>,
    #[serde(default)]
    same: u64,
}

#[derive(Deserialize)]
struct Changed {
    rule: String,
    #[serde(default)]
    fields: Vec<Field>,
}

#[derive(Deserialize)]
struct Field {
    field: String,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    to: Option<String>,
}

impl Diff {
    pub(super) fn run(self, door: &Door<'_>, output: &mut Output<'_>) -> Result<Ending, Failure> {
        // That it can't be told must not look like a difference.
        let failed = |failure| Failure { ending: Ending::Failed, ..failure };
        let answer = self.ask(door).map_err(failed)?;
        let difference: Difference = answer.json()?;
        if self.json {
            output.data(answer.body);
        } else {
            difference.lines().for_each(|line| output.data(line));
        }
        Ok(if difference.is_none() { Ending::Fine } else { Ending::No })
    }

    fn ask(&self, door: &Door<'_>) -> Result<Answer, Failure> {
        match (self.first.parse::<u64>(), self.second) {
            (Ok(from), Some(to)) => door.read(&format!("/v1/rules/diff?from={from}&to={to}")),
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
                door.compare(&document.name, &document.text)
            }
        }
    }
}

impl Difference {
    /// What pushing a document would change.
    pub(super) fn ask(door: &Door<'_>, name: &str, text: &str) -> Result<Self, Failure> {
        door.compare(name, text)?.json()
    }

    fn is_none(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    /// A line for each rule that comes and goes and for each field that changes, and one on the rest.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let added =
            self.added.iter().map(|rule| format!("+ {}", TerminalSafe::from(rule.as_str())));
        let removed =
            self.removed.iter().map(|rule| format!("- {}", TerminalSafe::from(rule.as_str())));
        let changed = self.changed.iter().flat_map(|changed| {
            changed.fields.iter().map(|field| {
                let said = |value: &Option<String>| match value {
                    Some(value) => TerminalSafe::from(value.as_str()).to_string(),
                    None => "nothing".to_owned(),
                };
                let (rule, name) = (
                    TerminalSafe::from(changed.rule.as_str()),
                    TerminalSafe::from(field.field.as_str()),
                );
                format!("~ {rule}: {name} from {} to {}", said(&field.from), said(&field.to))
            })
        });
        let rest = match self.same {
            1 => "1 rule stays as it is".to_owned(),
            same => format!("{same} rules stay as they are"),
        };
        added.chain(removed).chain(changed).chain([rest])
    }
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
        let lines: Vec<String> = difference.lines().collect();
        let expected = [
            "+ a",
            "- b",
            "~ c: limit from 100 per 1 s to 200 per 1 s",
            "~ c: match.path from nothing to \"/x\u{fffd}[2J\"",
            "9 rules stay as they are",
        ];
        assert_eq!(lines, expected);
        assert!(!difference.is_none());
        let none: Difference = serde_json::from_str(r#"{"same":1}"#).unwrap();
        assert!(none.is_none());
        assert_eq!(none.lines().collect::<Vec<_>>(), ["1 rule stays as it is"]);
    }
}
