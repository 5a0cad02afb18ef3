//! Rules: their sources, versions and activation.
//!
//! A source (`source/`) offers documents to the [`RulesManager`]. The manager activates a document that is valid and
//! newer than the active one. Any other document leaves the active rules unchanged.

mod config;
pub mod diff;
mod local_copy;
mod low_priority;
mod manager;
mod rule_view;
#[cfg(test)]
mod simulation;
mod source;
mod startup;

use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_rules::{RuleSet, RuleWarnings, WarningContext};

pub use self::config::{InlineRules, RuleSource, RulesConfig, RulesRedis, RulesUrl};
use self::config::{SAMPLE_NAME, SAMPLE_RULES};
pub use self::manager::{PushError, RulesManager, RulesManagerDeps};
pub use self::rule_view::rule_view;
pub use self::source::{RULES_VERSION_HEADER, follow_sources, start_from_source};
pub use self::startup::{LoadedRules, RulesStorage, node_name, report_document};
use crate::config_error::{ConfigError, read_file};
use crate::envoy::{EnvoyFiles, EnvoyRules};
use crate::service::internal_rules;

/// All rules of a server, parsed.
#[derive(Debug)]
pub struct ParsedRules {
    /// The native rules, then the rules that apply only to calls that name them.
    pub set: RuleSet,
    /// The warnings of the native rules.
    pub warnings: RuleWarnings,
    /// The descriptor trees of envoyproxy/ratelimit files. Their limits are rules of `set`.
    pub(crate) envoy: Option<Arc<EnvoyRules>>,
}

/// The native rules before they are parsed.
#[derive(Clone, Debug)]
pub enum NativeRules {
    /// No rules: none are configured, or the source was not read yet.
    Nothing,
    /// Rules inside the configuration file.
    Inline(Box<InlineRules>),
    /// A document of a file, a URL or Redis.
    Document(RulesDocument),
}

/// The text of a rules document, with its version.
#[derive(Clone, Debug)]
pub struct RulesDocument {
    /// The name of the document in errors.
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<str>,
    /// The hash of the text, as in the versions in Redis.
    pub(crate) hash: Arc<str>,
    /// The version number of the source. `None` if the source has no numbers: then this node counts the changes.
    pub(crate) number: Option<u64>,
    pub(crate) by: String,
    pub(crate) note: String,
    pub(crate) at: Option<Timestamp>,
}

impl RulesDocument {
    /// Returns a document without number, author, note and time.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let hash = blake3::hash(text.as_bytes()).to_hex().as_str()[..16].into();
        let (by, note) = (String::new(), String::new());
        Self { name: name.into(), text: text.into(), hash, number: None, by, note, at: None }
    }
}

impl NativeRules {
    /// Reads the rules of a local source. A remote source gives [`Nothing`](Self::Nothing): it is read after the start.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(source: &RuleSource) -> Result<Self, ConfigError> {
        Ok(match source {
            RuleSource::Nothing | RuleSource::Redis(_) | RuleSource::Url(_) => Self::Nothing,
            RuleSource::Sample => Self::Document(RulesDocument::new(SAMPLE_NAME, SAMPLE_RULES)),
            RuleSource::Inline(rules) => Self::Inline(rules.clone()),
            RuleSource::File(path) => {
                let text = read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?;
                Self::Document(RulesDocument::new(&path.display().to_string(), &text))
            }
        })
    }

    pub(crate) fn document(&self) -> Option<&RulesDocument> {
        match self {
            Self::Document(document) => Some(document),
            Self::Nothing | Self::Inline(_) => None,
        }
    }
}

impl ParsedRules {
    /// Parses the native rules and, if given, the files of envoyproxy/ratelimit. The warnings depend on the
    /// configuration and on the time.
    ///
    /// # Errors
    /// A rule is invalid, or two rules have the same name.
    pub fn parse(
        native: &NativeRules,
        envoy: Option<&EnvoyFiles>,
        context: &WarningContext,
        now: Timestamp,
    ) -> Result<Self, ConfigError> {
        let (set, warnings) = match native {
            NativeRules::Nothing => Default::default(),
            NativeRules::Inline(rules) => (rules.set.clone(), rules.warnings.clone()),
            NativeRules::Document(RulesDocument { name, text, .. }) => {
                RuleSet::parse_with_warnings(name, text, &[], context, now)?
            }
        };
        let Some(files) = envoy else { return Ok(Self { set, warnings, envoy: None }) };
        let envoy = EnvoyRules::parse(files)?;
        let set = set.with_named(envoy.rules())?;
        Ok(Self { set, warnings, envoy: Some(Arc::new(envoy)) })
    }

    /// Adds the internal rules of the listeners.
    ///
    /// # Errors
    /// A rule of a document has the name of an internal rule.
    pub(crate) fn with_internal_rules(self) -> Result<Self, ConfigError> {
        let set = self.set.with_internal(internal_rules()?)?;
        Ok(Self { set, ..self })
    }
}
