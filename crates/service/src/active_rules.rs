//! The active rules, and everything that is compiled from them.

use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_rules::{RuleSet, RuleWarnings};

use crate::envoy::EnvoyRules;
use crate::identity::AttributePlan;
use crate::stats::CounterIds;
use crate::store::AnyStore;

/// The rules that decide calls. They are replaced as a whole and never changed: a call is read, decided and
/// counted by one set.
#[derive(Debug)]
pub struct ActiveRules {
    pub(crate) limiter: Limiter<AnyStore>,
    /// The descriptor trees of envoyproxy/ratelimit files, if there are any.
    pub(crate) envoy: Option<Arc<EnvoyRules>>,
    pub(crate) attribute_plan: AttributePlan,
    pub(crate) counter_ids: CounterIds,
    pub(crate) version: RulesVersion,
}

/// Validated rules that can be activated.
#[derive(Debug)]
pub struct CompiledRules {
    /// The rules of documents, then those that apply only to calls that name them.
    pub(crate) set: RuleSet,
    pub(crate) envoy: Option<Arc<EnvoyRules>>,
    pub(crate) attribute_plan: AttributePlan,
    pub(crate) version: RulesVersion,
}

/// The version of the active rules.
#[derive(Clone, Debug, Default)]
pub struct RulesVersion {
    /// Increases with every change, and never decreases.
    pub number: u64,
    /// The hash of the rules: equal on nodes with equal rules.
    pub hash: String,
    /// The author of the change, if the source knows it.
    pub by: String,
    /// The note of the operator that pushed them.
    pub note: String,
    /// The time of the push.
    pub at: Option<Timestamp>,
    /// The time at which this node activated them.
    pub(crate) loaded: Timestamp,
    /// The warnings of the rules.
    pub warnings: Arc<RuleWarnings>,
    /// The text of the document, if the rules come from one.
    pub text: Option<Arc<str>>,
}

impl ActiveRules {
    /// Returns the limiter of the rules.
    pub fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    /// Returns the limits of envoyproxy/ratelimit files.
    pub fn envoy(&self) -> Option<&EnvoyRules> {
        self.envoy.as_deref()
    }

    /// Returns the attributes that requests are read for.
    pub fn attribute_plan(&self) -> &AttributePlan {
        &self.attribute_plan
    }

    /// Returns the counters of the rules.
    pub fn counter_ids(&self) -> &CounterIds {
        &self.counter_ids
    }

    /// Returns the version of the rules.
    pub fn version(&self) -> &RulesVersion {
        &self.version
    }
}
