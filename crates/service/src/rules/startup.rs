//! The rules that a server reads before its listeners open, and the Redis that stores the shared ones.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_limiter::Clock;
use tidegate_redis::{OpenError, RedisConfig, RedisDocument};

use crate::config_error::ConfigError;
use crate::envoy;
use crate::rules::local_copy::LocalCopy;
use crate::rules::manager::RuleInputs;
use crate::rules::{NativeRules, ParsedRules, RuleSource, RulesConfig, RulesRedis};
use crate::store::{AnyStore, StoreConfig};

/// The name of the rules document in Redis; the reports of nodes are stored beside it.
const DOCUMENT_NAME: &str = "rules";

/// The rules of the local sources, parsed. The rules of a remote source are read after the start.
#[derive(Debug)]
pub struct LoadedRules {
    /// The configuration of the rules.
    pub config: RulesConfig,
    /// The documents that were read.
    pub inputs: RuleInputs,
    /// The rules in these documents.
    pub rules: ParsedRules,
}

impl LoadedRules {
    /// Reads the sources that the configuration names.
    ///
    /// A file that can't be read is replaced by its local copy, if there is one. Invalid rules are an error instead: the
    /// operator sees it at once and can correct the file.
    ///
    /// # Errors
    /// A file can't be read, or has invalid rules.
    pub fn read(config: RulesConfig) -> Result<Self, ConfigError> {
        let native = match (NativeRules::read(&config.source), local_copy(&config)) {
            (Err(error @ ConfigError::Unreadable { .. }), Some(copy)) => {
                let document = copy.read().unwrap_or_else(|error| {
                    tracing::error!(%error, "local copy of the rules can't be used");
                    None
                });
                let Some(document) = document else { return Err(error) };
                let path = copy.path().display();
                tracing::warn!(
                    %error,
                    version = document.number,
                    copy = %path,
                    "started with a copy of the rules"
                );
                NativeRules::Document(document)
            }
            (read, _) => read?,
        };
        let envoy = config.envoy.as_deref().map(envoy::read_folder).transpose()?;
        let now = Clock::system().now();
        let rules = ParsedRules::parse(&native, envoy.as_ref(), &config.warnings, now)?;
        let rules = rules.with_internal_rules()?;
        Ok(Self { config, inputs: RuleInputs { native, envoy: envoy.map(Arc::new) }, rules })
    }

    /// Returns the local copy of the source, if it has one.
    pub fn copy(&self) -> Option<LocalCopy> {
        local_copy(&self.config)
    }
}

fn local_copy(config: &RulesConfig) -> Option<LocalCopy> {
    let source = match &config.source {
        // An absolute path names the same file, whatever the working directory is.
        RuleSource::File(path) => std::path::absolute(path).ok()?.display().to_string(),
        RuleSource::Redis(_) | RuleSource::Url(_) => config.source.to_string(),
        RuleSource::Nothing | RuleSource::Sample | RuleSource::Inline(_) => return None,
    };
    Some(LocalCopy::new(&source, config.copies.as_deref()?))
}

/// The Redis that stores the shared rules document.
#[derive(Debug)]
pub enum RulesStorage {
    /// No Redis: the rules come from another source.
    NotShared,
    /// The Redis of the store.
    StoreRedis,
    /// A Redis of its own.
    OwnRedis(Box<RedisConfig>),
}

impl RulesStorage {
    /// Returns the storage for a source of rules. A source with the Redis of the store uses the store's connections.
    pub fn select(store: &StoreConfig, source: &RuleSource) -> Self {
        match (source, store) {
            (RuleSource::Redis(RulesRedis::OfStore), StoreConfig::Redis { .. }) => Self::StoreRedis,
            (RuleSource::Redis(RulesRedis::Own(own)), StoreConfig::Redis { config, .. })
                if own == config =>
            {
                Self::StoreRedis
            }
            (RuleSource::Redis(RulesRedis::Own(own)), _) => Self::OwnRedis(own.clone()),
            _ => Self::NotShared,
        }
    }

    /// Opens the document that rules are pushed to and read from.
    ///
    /// # Errors
    /// The server will never be usable: it is too old, or of another kind.
    pub async fn open_document(
        &self,
        store: &AnyStore,
    ) -> Result<Option<RedisDocument>, OpenError> {
        Ok(match (self, store) {
            (Self::StoreRedis, AnyStore::Redis(store)) => Some(store.document(DOCUMENT_NAME)),
            (Self::OwnRedis(config), _) => {
                Some(RedisDocument::start(RedisConfig::clone(config), DOCUMENT_NAME).await?)
            }
            _ => None,
        })
    }
}

/// Returns the document that nodes report to: in the Redis of the rules, else in that of the store.
pub fn report_document(rules: Option<&RedisDocument>, store: &AnyStore) -> Option<RedisDocument> {
    match (rules, store) {
        (Some(rules), _) => Some(rules.clone()),
        (None, AnyStore::Redis(store)) => Some(store.document(DOCUMENT_NAME)),
        (None, AnyStore::Memory(_)) => None,
    }
}

/// Returns the name of this node: its host name, and the port of a listener or else the process id.
pub fn node_name(listener: Option<SocketAddr>) -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    match listener {
        Some(address) => format!("{host}:{}", address.port()),
        None => format!("{host}:{}", std::process::id()),
    }
}
