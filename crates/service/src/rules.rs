//! Rules, wherever they come from, kept up to date while calls are answered.
//!
//! A source offers documents (`source/`), the [`RulesManager`] puts those in force that are newer and fit, and
//! keeps what it has when they are not.

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
use tidegate_rules::RuleSet;

pub use self::config::{RuleSource, RulesConfig, RulesRedis, RulesUrl};
use self::config::{SAMPLE_NAME, SAMPLE_RULES};
pub use self::manager::{PushError, RulesManager, RulesManagerDeps};
pub use self::rule_view::rule_view;
pub use self::source::{NUMBER, follow_sources, start_from_source};
pub use self::startup::{LoadedRules, Shared, node_name, reports};
use crate::config_error::{ConfigError, read_file};
use crate::envoy::{EnvoyRules, Files};
use crate::service::internal_rules;

/// Everything that is enforced.
#[derive(Debug)]
pub struct Rules {
    /// Our own rules, and after them those that apply only where they are named.
    pub set: RuleSet,
    /// What finds the limits of envoyproxy/ratelimit files among the latter.
    pub(crate) envoy: Option<Arc<EnvoyRules>>,
}

/// Our own rules as they were found.
#[derive(Clone, Debug)]
pub enum NativeRules {
    /// There are none, or none yet.
    Nothing,
    /// They stand in the configuration.
    Inline(Box<RuleSet>),
    /// A document of a file, a URL or Redis.
    Written(RulesDocument),
}

/// A document of rules, and what is known of it.
#[derive(Clone, Debug)]
pub struct RulesDocument {
    /// What errors call it.
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<str>,
    /// The hash of the text, as versions in Redis have it.
    pub(crate) hash: Arc<str>,
    /// The number that its source gives it; a source that has none is counted by whoever follows it.
    pub(crate) number: Option<u64>,
    pub(crate) by: String,
    pub(crate) note: String,
    pub(crate) at: Option<Timestamp>,
}

impl RulesDocument {
    /// A text of which nothing else is known.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let hash = blake3::hash(text.as_bytes()).to_hex().as_str()[..16].into();
        let (by, note) = (String::new(), String::new());
        Self { name: name.into(), text: text.into(), hash, number: None, by, note, at: None }
    }
}

impl NativeRules {
    /// What this machine has of a source; of one that is elsewhere nothing yet.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(source: &RuleSource) -> Result<Self, ConfigError> {
        Ok(match source {
            RuleSource::Nothing | RuleSource::Redis(_) | RuleSource::Url(_) => Self::Nothing,
            RuleSource::Sample => Self::Written(RulesDocument::new(SAMPLE_NAME, SAMPLE_RULES)),
            RuleSource::Inline(rules) => Self::Inline(rules.clone()),
            RuleSource::File(path) => {
                let text = read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?;
                Self::Written(RulesDocument::new(&path.display().to_string(), &text))
            }
        })
    }

    pub(crate) fn document(&self) -> Option<&RulesDocument> {
        match self {
            Self::Written(document) => Some(document),
            Self::Nothing | Self::Inline(_) => None,
        }
    }
}

impl Rules {
    /// Our own rules and those of envoyproxy/ratelimit files, if there are any.
    ///
    /// # Errors
    /// Something is wrong with them, or two rules have the same name.
    pub fn of(own: &NativeRules, envoy: Option<&Files>) -> Result<Self, ConfigError> {
        let set = match own {
            NativeRules::Nothing => RuleSet::default(),
            NativeRules::Inline(rules) => RuleSet::clone(rules),
            NativeRules::Written(document) => RuleSet::parse(&document.name, &document.text)?,
        };
        let Some(files) = envoy else { return Ok(Self { set, envoy: None }) };
        let envoy = EnvoyRules::parse(files)?;
        let set = set.with_named(envoy.rules())?;
        Ok(Self { set, envoy: Some(Arc::new(envoy)) })
    }

    /// The same with the rules that listeners count by and nobody names.
    ///
    /// # Errors
    /// Somebody wrote a rule of such a name.
    pub(crate) fn complete(self) -> Result<Self, ConfigError> {
        let set = self.set.with_internal(internal_rules()?)?;
        Ok(Self { set, ..self })
    }
}
