//! A rules document on this machine, checked before it is sent.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use tidegate_rules::RuleSet;
use tidegate_service::config_error::{ConfigError, read_file};
use tidegate_service::service::internal_rules;

use crate::commands::CommandError;
use crate::commands::snippet::SourceTexts;
use crate::config::{self, FileKind};

/// A valid rules document and its name in error messages.
pub(crate) struct LocalDocument {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl LocalDocument {
    /// Reads a file, or stdin for `-`, and validates it as the server does.
    ///
    /// # Errors
    /// The document can't be read, is not a rules document, or is invalid. All errors are reported, with their lines.
    pub(crate) fn read(path: &Path) -> Result<Self, CommandError> {
        let (name, text) = if path == Path::new("-") {
            ("stdin".to_owned(), read_stdin()?)
        } else {
            (path.display().to_string(), read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?)
        };
        let found = match config::detect_kind(Path::new(&name), &text) {
            FileKind::Rules => None,
            FileKind::Config => Some("a configuration"),
            FileKind::Envoy => Some("limits of envoyproxy/ratelimit"),
        };
        if let Some(found) = found {
            let message = format!("{name}: a rules document is wanted, found {found}");
            let hint = "a rules document has a top-level key rules: with a list";
            return Err(CommandError::negative(message).hint(hint));
        }
        let validate = || {
            // The names of internal rules are reserved.
            let rules = RuleSet::parse(&name, &text)?;
            rules.with_internal(internal_rules().unwrap_or_default())?;
            Ok::<_, ConfigError>(())
        };
        let Err(error) = validate() else { return Ok(Self { name, text }) };
        let mut sources = SourceTexts::default();
        sources.insert(&name, &text);
        let rendered = sources.render(&error);
        let error = CommandError::from(error);
        Err(CommandError { message: rendered.unwrap_or_else(|| error.message.clone()), ..error })
    }
}

fn read_stdin() -> Result<String, ConfigError> {
    let unreadable = |reason| ConfigError::Unreadable { path: PathBuf::from("stdin"), reason };
    let max = RuleSet::MAX_DOCUMENT_BYTES;
    let mut bytes = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let read = std::io::stdin().lock().take(limit).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > max {
        return Err(unreadable(format!("at most {max} bytes are wanted, found more")));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("text in UTF-8 is wanted".to_owned()))
}
