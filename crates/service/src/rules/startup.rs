//! What a server knows of its rules before it opens, and where a fleet shares them.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_redis::{OpenError, RedisConfig, RedisDocument};

use crate::config_error::ConfigError;
use crate::envoy;
use crate::rules::local_copy::LocalCopy;
use crate::rules::manager::RuleInputs;
use crate::rules::{NativeRules, RuleSource, Rules, RulesConfig, RulesRedis};
use crate::store::{AnyStore, StoreConfig};

/// What the document and the reports are called in Redis.
const NAME: &str = "rules";

/// The rules of this machine, fit to be enforced; of a source that is elsewhere nothing yet.
#[derive(Debug)]
pub struct LoadedRules {
    /// The configuration that they were read by.
    pub config: RulesConfig,
    /// The documents that were read.
    pub inputs: RuleInputs,
    /// The rules that were parsed.
    pub rules: Rules,
}

impl LoadedRules {
    /// Reads what the configuration names.
    ///
    /// A file that can't be read is replaced by its copy, if one is kept. One that says something wrong
    /// is not: who starts a server is there to mend it.
    ///
    /// # Errors
    /// A file can't be read, or has rules that can't be used.
    pub fn read(config: RulesConfig) -> Result<Self, ConfigError> {
        let own = match (NativeRules::read(&config.source), copy(&config)) {
            (Err(error @ ConfigError::Unreadable { .. }), Some(copy)) => {
                let kept = copy.read().unwrap_or_else(|error| {
                    tracing::error!(%error, "local copy of the rules can't be used");
                    None
                });
                let Some(kept) = kept else { return Err(error) };
                let path = copy.path().display();
                tracing::warn!(%error, version = kept.number, copy = %path, "started with a copy of the rules");
                NativeRules::Written(kept)
            }
            (read, _) => read?,
        };
        let envoy = config.envoy.as_deref().map(envoy::read).transpose()?;
        let rules = Rules::of(&own, envoy.as_ref())?.complete()?;
        Ok(Self { config, inputs: RuleInputs { own, envoy: envoy.map(Arc::new) }, rules })
    }

    /// Where the last good rules are kept.
    pub fn copy(&self) -> Option<LocalCopy> {
        copy(&self.config)
    }
}

fn copy(config: &RulesConfig) -> Option<LocalCopy> {
    let source = match &config.source {
        // The same file, wherever the server was started.
        RuleSource::File(path) => std::path::absolute(path).ok()?.display().to_string(),
        RuleSource::Redis(_) | RuleSource::Url(_) => config.source.to_string(),
        RuleSource::Nothing | RuleSource::Sample | RuleSource::Inline(_) => return None,
    };
    Some(LocalCopy::of(&source, config.copies.as_deref()?))
}

/// Which Redis a fleet shares its rules through.
#[derive(Debug)]
pub enum Shared {
    /// None: they come from elsewhere.
    Nowhere,
    /// That of the store.
    InStore,
    /// Another one.
    Own(Box<RedisConfig>),
}

impl Shared {
    /// Returns the connections that a source needs beside those of the store.
    pub fn of(store: &StoreConfig, source: &RuleSource) -> Self {
        match (source, store) {
            (RuleSource::Redis(RulesRedis::OfStore), StoreConfig::Redis { .. }) => Self::InStore,
            (RuleSource::Redis(RulesRedis::Own(own)), StoreConfig::Redis { config, .. })
                if own == config =>
            {
                Self::InStore
            }
            (RuleSource::Redis(RulesRedis::Own(own)), _) => Self::Own(own.clone()),
            _ => Self::Nowhere,
        }
    }

    /// Opens the document that rules are pushed to and read from.
    ///
    /// # Errors
    /// A server that answered and never will do.
    pub async fn rules(&self, store: &AnyStore) -> Result<Option<RedisDocument>, OpenError> {
        Ok(match (self, store) {
            (Self::InStore, AnyStore::Redis(store)) => Some(store.document(NAME)),
            (Self::Own(config), _) => {
                Some(RedisDocument::start(RedisConfig::clone(config), NAME).await?)
            }
            _ => None,
        })
    }
}

/// Returns the document that nodes report to: in the Redis of the rules, else in that of the store.
pub fn reports(rules: Option<&RedisDocument>, store: &AnyStore) -> Option<RedisDocument> {
    match (rules, store) {
        (Some(rules), _) => Some(rules.clone()),
        (None, AnyStore::Redis(store)) => Some(store.document(NAME)),
        (None, AnyStore::Memory(_)) => None,
    }
}

/// Returns the name of this node: its machine, and the port of one of its listeners.
pub fn node_name(at: Option<SocketAddr>) -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    match at {
        Some(at) => format!("{host}:{}", at.port()),
        None => format!("{host}:{}", std::process::id()),
    }
}
