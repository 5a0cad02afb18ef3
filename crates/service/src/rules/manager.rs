//! Activates documents that are valid and newer than the active one.

mod push;
mod reporting;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_redis::RedisDocument;
use tidegate_rules::WarningContext;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

pub use self::push::PushError;
use crate::active_rules::{ActiveRules, CompiledRules, RulesVersion};
use crate::config_error::ConfigError;
use crate::envoy::EnvoyFiles;
use crate::identity::{AttributePlan, Identity};
use crate::rules::local_copy::LocalCopy;
use crate::rules::low_priority::spawn_low_priority;
use crate::rules::{NativeRules, ParsedRules, RulesDocument};
use crate::rules_version;
use crate::service::Service;
use crate::source_status::SourceStatus;

/// Interval at which replaced rules are checked for remaining users.
const UNUSED_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Loads, validates and activates the rules of a server.
#[derive(Debug)]
pub struct RulesManager {
    service: Arc<Service>,
    identity: Arc<Identity>,
    /// The name of the source, without secrets.
    source: String,
    /// The parts of the configuration on which warnings about rules depend.
    warnings: WarningContext,
    /// The name of this node in its fleet.
    node: String,
    /// The inputs of the active rules. The lock is held during a change, so changes never overlap.
    inputs: tokio::sync::Mutex<RuleInputs>,
    status: Mutex<SourceStatus>,
    copy: Option<LocalCopy>,
    /// Set if rules are read from another machine.
    is_remote: bool,
    /// The newest document of the source that this node rejected. If Redis loses it, this node restores it: other nodes
    /// may accept it, and its number must not be used again.
    rejected: Mutex<Option<RulesDocument>>,
    /// The shared document that rules are read from and pushed to.
    shared: Option<RedisDocument>,
    /// The document that nodes report to.
    reports: Option<RedisDocument>,
    /// Wakes the reporting task after a change of version or status.
    changed: Notify,
}

/// The unparsed inputs of a set of rules.
#[derive(Clone, Debug)]
pub struct RuleInputs {
    pub(crate) native: NativeRules,
    pub(crate) envoy: Option<Arc<EnvoyFiles>>,
}

/// The parts that a manager is built from.
#[derive(Debug)]
pub struct RulesManagerDeps {
    /// The service that gets the rules.
    pub service: Arc<Service>,
    /// Reads the identity of clients; the rules determine which attributes it reads.
    pub identity: Arc<Identity>,
    /// The name of the source, as reports show it.
    pub source: String,
    /// Set if the source is on another machine.
    pub is_remote: bool,
    /// The parts of the configuration on which warnings about rules depend.
    pub warnings: WarningContext,
    /// The name of this node.
    pub node: String,
    /// The local copy of a remote document.
    pub copy: Option<LocalCopy>,
    /// The shared document that a push writes.
    pub shared: Option<RedisDocument>,
    /// The document that nodes report to.
    pub reports: Option<RedisDocument>,
}

/// Valid rules, with everything that is derived from them.
struct PreparedRules {
    rules: ParsedRules,
    attribute_plan: AttributePlan,
    hash: String,
}

impl RulesManager {
    /// Returns a manager, with the first rules active.
    pub fn new(deps: RulesManagerDeps, inputs: RuleInputs, rules: ParsedRules) -> Self {
        let RulesManagerDeps {
            service,
            identity,
            source,
            is_remote,
            warnings,
            node,
            copy,
            shared,
            reports,
        } = deps;
        let manager = Self {
            service,
            identity,
            source,
            warnings,
            node,
            inputs: tokio::sync::Mutex::new(inputs.clone()),
            status: Mutex::default(),
            copy,
            is_remote,
            rejected: Mutex::default(),
            shared,
            reports,
            changed: Notify::new(),
        };
        let number = match (inputs.native.document(), &inputs.native) {
            (Some(RulesDocument { number: Some(number), .. }), _) => *number,
            // The local copy has the number from before the restart.
            (Some(document), _) => match manager.read_copy() {
                Some(copy) => {
                    copy.number.unwrap_or_default() + u64::from(document.text != copy.text)
                }
                None => 1,
            },
            (None, NativeRules::Nothing) if is_remote || inputs.envoy.is_none() => 0,
            (None, _) => 1,
        };
        let prepared = manager.prepare(rules);
        drop(manager.activate(prepared, number, &inputs.native));
        manager.write_copy(&inputs.native, number);
        manager.status.lock().latest = number;
        manager
    }

    /// Parses rules, with the warnings that depend on the configuration of this server.
    ///
    /// # Errors
    /// A rule is invalid, or two rules have the same name.
    pub(crate) fn parse(&self, inputs: &RuleInputs) -> Result<ParsedRules, ConfigError> {
        let now = self.service.clock().now();
        ParsedRules::parse(&inputs.native, inputs.envoy.as_deref(), &self.warnings, now)
    }

    fn prepare(&self, rules: ParsedRules) -> PreparedRules {
        let attribute_plan = self.identity.attribute_plan(&rules.set);
        let hash = rules_version::hash_rules(&rules.set);
        PreparedRules { rules, attribute_plan, hash }
    }

    /// Activates a document if it is newer than the active one. Returns whether it was activated.
    ///
    /// # Errors
    /// The document is invalid. The active rules stay, and the node reports that it is behind.
    pub(crate) async fn offer(
        self: &Arc<Self>,
        document: RulesDocument,
    ) -> Result<bool, ConfigError> {
        let mut inputs = self.inputs.lock().await;
        let current = self.version();
        let same = current.text.as_deref() == Some(&*document.text);
        let number = document.number.unwrap_or_else(|| current.number + u64::from(!same));
        if number < current.number {
            // A node restores the newer document to Redis. Any other source has to be changed by its operator.
            if self.shared.is_none() {
                self.mark_stale(number, current.number);
            }
            return Ok(false);
        }
        if number == current.number {
            if same {
                self.mark_current(number);
                return Ok(false);
            }
            if current.text.is_some() {
                let (source, hash) = (&self.source, &document.hash);
                tracing::warn!(
                    source,
                    version = number,
                    %hash,
                    "source has another document under the active version, activating it"
                );
            }
        }
        let next =
            RuleInputs { native: NativeRules::Document(document), envoy: inputs.envoy.clone() };
        self.apply(&mut inputs, next, number).await.map(|()| true)
    }

    /// Activates the local copy, if there is a valid one.
    pub(crate) async fn start_with_copy(self: &Arc<Self>) {
        let Some(document) = self.read_copy() else { return };
        let (copy, version) = (document.name.to_string(), document.number);
        // `offer` logs an invalid copy.
        if self.offer(document).await.is_ok() {
            tracing::info!(version, copy, source = self.source, "started with a copy of the rules");
        }
    }

    /// Activates other files of envoyproxy/ratelimit, with the same native rules.
    ///
    /// # Errors
    /// As [`offer`](Self::offer).
    pub(crate) async fn offer_envoy(
        self: &Arc<Self>,
        files: EnvoyFiles,
    ) -> Result<(), ConfigError> {
        let mut inputs = self.inputs.lock().await;
        let next = RuleInputs { native: inputs.native.clone(), envoy: Some(Arc::new(files)) };
        let number = self.version().number;
        // A number of the source belongs to its document, so this node must not increase it.
        let is_own_number = match next.native.document() {
            Some(document) => document.number.is_none(),
            None => !self.is_remote,
        };
        self.apply(&mut inputs, next, number + u64::from(is_own_number)).await
    }

    /// Parses `next` and activates it under `number`.
    async fn apply(
        self: &Arc<Self>,
        inputs: &mut RuleInputs,
        next: RuleInputs,
        number: u64,
    ) -> Result<(), ConfigError> {
        let (manager, unparsed) = (Arc::clone(self), next.clone());
        let preparation = spawn_low_priority(move || {
            let rules = manager.parse(&unparsed)?;
            Ok::<PreparedRules, ConfigError>(manager.prepare(rules.with_internal_rules()?))
        });
        let prepared = match preparation.await.and_then(|prepared| prepared) {
            Ok(prepared) => prepared,
            Err(error) => {
                let offered = next.native.document().filter(|offered| offered.number.is_some());
                if let Some(offered) = offered.filter(|_| number > self.version().number) {
                    *self.rejected.lock() = Some(offered.clone());
                }
                self.mark_rejected(number, &error);
                return Err(error);
            }
        };
        let (count, hash) = (prepared.rules.set.rules().len(), prepared.hash.clone());
        tokio::spawn(drop_when_unused(self.activate(prepared, number, &next.native)));
        tracing::info!(
            version = number,
            hash,
            rules = count,
            source = self.source,
            "rules activated"
        );
        let (manager, native) = (Arc::clone(self), next.native.clone());
        spawn_blocking(move || manager.write_copy(&native, number));
        self.rejected.lock().take_if(|rejected| rejected.number <= Some(number));
        *inputs = next;
        self.mark_current(number);
        if number > 0 {
            self.service.readiness().set_rules_pending(None);
        }
        Ok(())
    }

    /// Activates rules and returns the previous ones.
    fn activate(
        &self,
        prepared: PreparedRules,
        number: u64,
        native: &NativeRules,
    ) -> Arc<ActiveRules> {
        let PreparedRules { rules, attribute_plan, hash } = prepared;
        let ParsedRules { set, warnings, envoy } = rules;
        self.log_warnings(number, &warnings);
        let warnings = Arc::new(warnings);
        let loaded = self.service.clock().now();
        let version = match native.document() {
            Some(document) => RulesVersion {
                number,
                hash,
                by: document.by.clone(),
                note: document.note.clone(),
                at: document.at,
                loaded,
                warnings,
                text: Some(Arc::clone(&document.text)),
            },
            None => RulesVersion { number, hash, loaded, warnings, ..RulesVersion::default() },
        };
        self.service.activate(CompiledRules { set, envoy, attribute_plan, version })
    }

    fn write_copy(&self, native: &NativeRules, number: u64) {
        let (Some(copy), Some(document)) = (&self.copy, native.document()) else { return };
        match copy.write(document, number) {
            Ok(_) => self.status.lock().copy_problem = None,
            Err(error) => {
                let path = copy.path().display();
                tracing::warn!(
                    %path,
                    %error,
                    "cannot write the local copy of the rules, the next start needs their source"
                );
            }
        }
    }

    /// Returns the inputs of the active rules.
    pub(crate) async fn inputs(&self) -> RuleInputs {
        self.inputs.lock().await.clone()
    }

    /// Reads the local copy. A damaged copy is logged and not used.
    fn read_copy(&self) -> Option<RulesDocument> {
        match self.copy.as_ref()?.read() {
            Ok(document) => document,
            Err(error) => {
                tracing::error!(%error, source = self.source, "local copy of the rules can't be used");
                self.status.lock().copy_problem = Some(error.to_string());
                None
            }
        }
    }

    /// Returns the newest document of the source that this node has, active or rejected.
    pub(crate) async fn newest_document(&self) -> Option<RulesDocument> {
        let active = self.inputs().await.native.document().cloned();
        let active = active.filter(|active| active.number.is_some());
        let rejected = self.rejected.lock().clone();
        // For equal numbers `max_by_key` returns the last one: the active document.
        rejected.into_iter().chain(active).max_by_key(|document| document.number)
    }

    /// Returns the version of the active rules.
    pub(crate) fn version(&self) -> RulesVersion {
        self.service.active_rules().version().clone()
    }

    /// Marks this node as not ready while no rules are active although some may exist: they were rejected, or the source
    /// is unreachable. Returns whether the node is not ready.
    pub(crate) fn update_readiness(&self, is_source_known: bool) -> bool {
        let status = self.source_status();
        let may_exist = status.latest > 0 || status.copy_problem.is_some() || !is_source_known;
        let is_pending = self.version().number == 0 && may_exist;
        self.service
            .readiness()
            .set_rules_pending(is_pending.then(|| format!("rules from {}", self.source)));
        is_pending
    }
}

/// Frees replaced rules after the last call has finished with them. A large set takes long to free, so a thread of low
/// priority does it.
async fn drop_when_unused(old: Arc<ActiveRules>) {
    let mut ticker = tokio::time::interval(UNUSED_CHECK_INTERVAL);
    while Arc::strong_count(&old) > 1 {
        ticker.tick().await;
    }
    // If no thread can be started, the closure and the rules in it are dropped here.
    let _ = spawn_low_priority(move || drop(old)).await;
}
