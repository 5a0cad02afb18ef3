//! A document of rules on this machine, fit to be pushed.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use tidegate_rules::RuleSet;
use tidegate_service::config_error::{ConfigError, read_file};
use tidegate_service::service::internal_rules;

use crate::commands::Failure;
use crate::commands::excerpt::Sources;
use crate::config::{self, Kind};

/// A document of rules, and what errors call it.
pub(crate) struct Document {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Document {
    /// Reads a file, or what is piped in for `-`, and everything that is wrong with it.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let (name, text) = if path == Path::new("-") {
            ("stdin".to_owned(), piped()?)
        } else {
            (path.display().to_string(), read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?)
        };
        let found = match config::kind(Path::new(&name), &text) {
            Kind::Rules => None,
            Kind::Config => Some("a configuration"),
            Kind::Envoy => Some("limits of envoyproxy/ratelimit"),
        };
        if let Some(found) = found {
            let wrong = format!("{name}: a document of rules is wanted, found {found}");
            return Err(Failure::refused(wrong).hint("it begins with rules: and lists them"));
        }
        let checked = || {
            // The server has rules of its own, whose names are taken.
            let rules = RuleSet::parse(&name, &text)?;
            rules.with_internal(internal_rules().unwrap_or_default())?;
            Ok::<_, ConfigError>(())
        };
        let Err(error) = checked() else { return Ok(Self { name, text }) };
        let mut sources = Sources::default();
        sources.keep(&name, &text);
        let told = sources.told(&error);
        let failure = Failure::from(error);
        Err(Failure { message: told.unwrap_or_else(|| failure.message.clone()), ..failure })
    }
}

fn piped() -> Result<String, ConfigError> {
    let unreadable = |reason| ConfigError::Unreadable { path: PathBuf::from("stdin"), reason };
    let most = RuleSet::MAX_DOCUMENT_BYTES;
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let read = std::io::stdin().lock().take(limit).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > most {
        return Err(unreadable(format!("at most {most} bytes are wanted, found more")));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("text in UTF-8 is wanted".to_owned()))
}
