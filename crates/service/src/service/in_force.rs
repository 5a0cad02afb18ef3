//! The rules in force, and everything that was made of them.

use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_rules::RuleSet;

use crate::identity::Known;
use crate::metrics::Lines;
use crate::rules::envoy::EnvoyRules;
use crate::store::AnyStore;

/// What calls are decided by. It is replaced as a whole, never changed: a call is read, decided and
/// counted by one of these.
#[derive(Debug)]
pub struct InForce {
    pub(super) limiter: Limiter<AnyStore>,
    /// Finds the limits of envoyproxy/ratelimit files, if there are any.
    pub(super) envoy: Option<Arc<EnvoyRules>>,
    pub(super) known: Known,
    pub(super) lines: Lines,
    pub(super) version: Version,
}

/// Rules that are fit to come into force.
#[derive(Debug)]
pub struct Next {
    /// Those that somebody wrote, and after them those that apply only where they are named.
    pub(crate) set: RuleSet,
    pub(crate) envoy: Option<Arc<EnvoyRules>>,
    pub(crate) known: Known,
    pub(crate) version: Version,
}

/// Which rules are in force, and since when.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// Grows with every change, and never goes back.
    pub number: u64,
    /// The same for nodes that have the same rules.
    pub hash: String,
    /// Who changed them, why, and when; as far as the source knows.
    pub by: String,
    /// The note of the operator that pushed them.
    pub note: String,
    /// The time of the push.
    pub at: Option<Timestamp>,
    /// When this node took them up.
    pub(crate) loaded: Timestamp,
    /// The document as it was written, if there is one.
    pub text: Option<Arc<str>>,
}

impl InForce {
    /// Returns the limiter of the rules.
    pub fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    /// The limits of envoyproxy/ratelimit files.
    pub fn envoy(&self) -> Option<&EnvoyRules> {
        self.envoy.as_deref()
    }

    /// What requests are read for.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Returns the counters of the rules.
    pub fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Returns the version of the rules.
    pub fn version(&self) -> &Version {
        &self.version
    }
}
