//! The configuration of rules: their source, its poll interval and the local copy.

use std::fmt;
use std::path::PathBuf;

use tidegate_core::Span;
use tidegate_net::client::ClientTls;
use tidegate_redis::{RedisConfig, Secret};
use tidegate_rules::{RuleSet, RuleWarnings, WarningContext};

/// The rules that are active when the configuration names none.
pub(crate) const SAMPLE_RULES: &str = include_str!("../sample_rules.yaml");
/// Their name in errors.
pub(crate) const SAMPLE_NAME: &str = "sample_rules.yaml";

/// The source of the rules, its poll interval and the local copy.
#[derive(Debug)]
pub struct RulesConfig {
    /// The source of the native rules.
    pub source: RuleSource,
    /// A directory of envoyproxy/ratelimit files, beside the rules.
    pub envoy: Option<PathBuf>,
    /// Directory of the local copy of the rules, for a start while the source is unreachable.
    pub copies: Option<PathBuf>,
    /// Interval at which the source is read, besides its notifications.
    pub poll: Option<Span>,
    /// The parts of the configuration on which warnings about rules depend.
    pub warnings: WarningContext,
}

/// Rules inside the configuration file, with their warnings.
#[derive(Clone, Debug, Default)]
pub struct InlineRules {
    /// The rules.
    pub set: RuleSet,
    /// Their warnings.
    pub warnings: RuleWarnings,
}

/// The place that rules are read from.
#[derive(Debug)]
pub enum RuleSource {
    /// No rules, or only those of envoyproxy/ratelimit files.
    Nothing,
    /// The rules of the sample.
    Sample,
    /// A file, watched for changes.
    File(PathBuf),
    /// Rules inside the configuration file.
    Inline(Box<InlineRules>),
    /// A shared document in Redis.
    Redis(RulesRedis),
    /// A document that is fetched.
    Url(RulesUrl),
}

/// The Redis that stores the rules.
#[derive(Debug)]
pub enum RulesRedis {
    /// The Redis of the store.
    OfStore,
    /// A Redis of its own.
    Own(Box<RedisConfig>),
}

/// A rules document that is read over HTTP.
#[derive(Clone, Debug)]
pub struct RulesUrl {
    /// The address of the document.
    pub uri: hyper::Uri,
    /// The bearer token for its server.
    pub token: Option<Secret>,
    /// Authority and certificate for `https`.
    pub tls: ClientTls,
}

impl RuleSource {
    /// Returns whether the rules are read from another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Redis(_) | Self::Url(_))
    }
}

/// Prints the place, without secrets.
impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Sample => f.write_str(SAMPLE_NAME),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Inline(_) => f.write_str("the configuration"),
            Self::Redis(RulesRedis::OfStore) => f.write_str("redis"),
            Self::Redis(RulesRedis::Own(config)) => config.fmt(f),
            Self::Url(RulesUrl { uri, .. }) => {
                // The query may contain a token.
                let authority = uri.authority().map_or("", |authority| authority.as_str());
                write!(f, "{}://{authority}{}", uri.scheme_str().unwrap_or("http"), uri.path())
            }
        }
    }
}
