//! Reads the rules of a simulation.

use std::path::Path;

use tidegate_rules::RuleSet;
use tidegate_service::config_error::{ConfigError, read_file};

use crate::commands::snippet::SourceTexts;
use crate::commands::{CommandError, CommandOutput};

/// Reads the rules of a file.
///
/// # Errors
/// The file can't be read or is invalid. All errors are reported, with their lines.
pub(crate) fn read_rules(path: &Path) -> Result<RuleSet, CommandError> {
    let name = path.display().to_string();
    let text = read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?;
    RuleSet::parse(&name, &text).map_err(|error| {
        let error = ConfigError::from(error);
        let mut sources = SourceTexts::default();
        sources.insert(&name, &text);
        let rendered = sources.render(&error);
        let error = CommandError::from(error);
        CommandError { message: rendered.unwrap_or_else(|| error.message.clone()), ..error }
    })
}

/// Prints a note for each concurrency rule: simulated requests never release their slots early.
pub(crate) fn note_concurrency_rules(rules: &RuleSet, output: &mut CommandOutput<'_>) {
    for rule in rules.rules().iter().filter(|rule| rule.limit().is_concurrency()) {
        output.note(format_args!(
            "{}: limits requests in flight; each simulated request keeps its slot for the whole hold time",
            rule.name()
        ));
    }
}
