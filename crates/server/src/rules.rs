//! Rules, wherever they come from, ready to be enforced together.

pub(crate) mod envoy;

use std::path::Path;
use std::sync::Arc;

use tidegate::RuleSet;

use self::envoy::EnvoyRules;
use crate::config::{ConfigError, RuleSource};

/// Everything that is enforced.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Our own rules, and after them those that apply only where they are named.
    pub(crate) set: RuleSet,
    /// What finds the limits of envoyproxy/ratelimit files among the latter.
    pub(crate) envoy: Option<Arc<EnvoyRules>>,
}

impl Rules {
    /// Reads our own rules and a directory of envoyproxy/ratelimit files, if there is one.
    ///
    /// # Errors
    /// A file can't be read or has rules that can't be used, or two rules have the same name.
    pub(crate) fn load(source: RuleSource, envoy: Option<&Path>) -> Result<Self, ConfigError> {
        let set = source.load()?;
        let Some(folder) = envoy else { return Ok(Self { set, envoy: None }) };
        let envoy = EnvoyRules::load(folder)?;
        let set = set.with_named(envoy.rules())?;
        Ok(Self { set, envoy: Some(Arc::new(envoy)) })
    }
}
