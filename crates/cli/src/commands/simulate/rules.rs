//! Rules to simulate, and what can't be of them.

use std::path::Path;

use tidegate_rules::RuleSet;
use tidegate_service::config_error::{ConfigError, read_file};

use crate::commands::excerpt::Sources;
use crate::commands::{Failure, Output};

/// The rules of a file, or what is wrong in its lines.
pub(crate) fn read_rules(path: &Path) -> Result<RuleSet, Failure> {
    let name = path.display().to_string();
    let text = read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?;
    RuleSet::parse(&name, &text).map_err(|error| {
        let error = ConfigError::from(error);
        let mut sources = Sources::default();
        sources.keep(&name, &text);
        let told = sources.told(&error);
        let failure = Failure::from(error);
        Failure { message: told.unwrap_or_else(|| failure.message.clone()), ..failure }
    })
}

/// Says what can't be simulated of limits in flight.
pub(crate) fn note_held(rules: &RuleSet, output: &mut Output<'_>) {
    for rule in rules.rules().iter().filter(|rule| rule.limit().is_concurrency()) {
        output.note(format_args!(
            "{}: counts what is in flight; here every request keeps its slot for all of hold",
            rule.name()
        ));
    }
}
