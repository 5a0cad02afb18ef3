//! Puts documents in force that are newer and fit, and keeps what it has when they are not.

mod push;
mod reporting;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_redis::RedisDocument;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

pub use self::push::PushError;
use crate::active_rules::{ActiveRules, CompiledRules, RulesVersion};
use crate::config_error::ConfigError;
use crate::envoy::Files;
use crate::identity::{AttributePlan, Identity};
use crate::rules::local_copy::LocalCopy;
use crate::rules::low_priority::spawn_low_priority;
use crate::rules::{NativeRules, Rules, RulesDocument};
use crate::rules_version;
use crate::service::Service;
use crate::source_status::SourceStatus;

/// How often it is looked whether rules that were replaced are still in use.
const RETIRED: Duration = Duration::from_secs(1);

/// Keeps a server's rules.
#[derive(Debug)]
pub struct RulesManager {
    service: Arc<Service>,
    identity: Arc<Identity>,
    /// Where rules come from, without secrets.
    source: String,
    /// What this node is called in its fleet.
    node: String,
    /// What is in force, as it was found. Whoever holds it changes the rules.
    inputs: tokio::sync::Mutex<RuleInputs>,
    standing: Mutex<SourceStatus>,
    copy: Option<LocalCopy>,
    /// Whether rules are fetched from another machine, which numbers them if it can.
    is_remote: bool,
    /// The newest document of the source that could not be used. Redis gets it back if it loses it: other nodes
    /// may be able to use it, and its number must not be given again.
    refused: Mutex<Option<RulesDocument>>,
    /// Where rules are pushed to and come from.
    shared: Option<RedisDocument>,
    /// Where nodes tell each other what they have.
    reports: Option<RedisDocument>,
    /// There is something new to tell.
    changed: Notify,
}

/// What rules are made of.
#[derive(Clone, Debug)]
pub struct RuleInputs {
    pub(crate) own: NativeRules,
    pub(crate) envoy: Option<Arc<Files>>,
}

/// What a manager works with.
#[derive(Debug)]
pub struct RulesManagerDeps {
    /// The service whose rules are replaced.
    pub service: Arc<Service>,
    /// Reads the identity of clients; rules are checked against it.
    pub identity: Arc<Identity>,
    /// The name of the source, as reports show it.
    pub source: String,
    /// Whether the source is on another machine.
    pub is_remote: bool,
    /// The name of this node.
    pub node: String,
    /// The local copy of a remote document.
    pub copy: Option<LocalCopy>,
    /// The shared document that a push writes.
    pub shared: Option<RedisDocument>,
    /// The document that nodes report to.
    pub reports: Option<RedisDocument>,
}

/// Rules that are fit to be enforced, and what was made of them.
struct PreparedRules {
    rules: Rules,
    attribute_plan: AttributePlan,
    hash: String,
}

impl RulesManager {
    /// Puts the first rules in force, which were found fit already.
    pub fn new(household: RulesManagerDeps, inputs: RuleInputs, rules: Rules) -> Self {
        let RulesManagerDeps { service, identity, source, is_remote, node, copy, shared, reports } =
            household;
        let manager = Self {
            service,
            identity,
            source,
            node,
            inputs: tokio::sync::Mutex::new(inputs.clone()),
            standing: Mutex::default(),
            copy,
            is_remote,
            refused: Mutex::default(),
            shared,
            reports,
            changed: Notify::new(),
        };
        let number = match (inputs.own.document(), &inputs.own) {
            (Some(RulesDocument { number: Some(number), .. }), _) => *number,
            // Counting goes on where it was before a restart.
            (Some(own), _) => match manager.kept() {
                Some(kept) => kept.number.unwrap_or_default() + u64::from(own.text != kept.text),
                None => 1,
            },
            (None, NativeRules::Nothing) if is_remote || inputs.envoy.is_none() => 0,
            (None, _) => 1,
        };
        let fit = manager.fit(rules);
        drop(manager.enforce(fit, number, &inputs.own));
        manager.keep_copy(&inputs.own, number);
        manager.standing.lock().latest = number;
        manager
    }

    fn fit(&self, rules: Rules) -> PreparedRules {
        let (attribute_plan, hash) =
            (self.identity.known(&rules.set), rules_version::of(&rules.set));
        PreparedRules { rules, attribute_plan, hash }
    }

    /// Puts a document in force, if it is newer than what is. Whether it was.
    ///
    /// # Errors
    /// Something is wrong with it. Nothing changed, and the node says that it is behind.
    pub(crate) async fn take(
        self: &Arc<Self>,
        document: RulesDocument,
    ) -> Result<bool, ConfigError> {
        let mut inputs = self.inputs.lock().await;
        let current = self.version();
        let same = current.text.as_deref() == Some(&*document.text);
        let number = document.number.unwrap_or_else(|| current.number + u64::from(!same));
        if number < current.number {
            // Redis gets the newer one back; another source has to be changed by its operator.
            if self.shared.is_none() {
                self.older(number, current.number);
            }
            return Ok(false);
        }
        if number == current.number {
            if same {
                self.settled(number);
                return Ok(false);
            }
            if current.text.is_some() {
                let (source, hash) = (&self.source, &document.hash);
                tracing::warn!(
                    source,
                    version = number,
                    %hash,
                    "source has another document under the version in force, taking it"
                );
            }
        }
        let next = RuleInputs { own: NativeRules::Written(document), envoy: inputs.envoy.clone() };
        self.change(&mut inputs, next, number).await.map(|()| true)
    }

    /// Puts the local copy in force, if there is a usable one.
    pub(crate) async fn start_with_copy(self: &Arc<Self>) {
        let Some(kept) = self.kept() else { return };
        let (copy, version) = (kept.name.to_string(), kept.number);
        // A copy that this node can't use was logged.
        if self.take(kept).await.is_ok() {
            tracing::info!(version, copy, source = self.source, "started with a copy of the rules");
        }
    }

    /// Puts other files of envoyproxy/ratelimit in force, beside the same rules of our own.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) async fn take_envoy(self: &Arc<Self>, files: Files) -> Result<(), ConfigError> {
        let mut inputs = self.inputs.lock().await;
        let next = RuleInputs { own: inputs.own.clone(), envoy: Some(Arc::new(files)) };
        let number = self.version().number;
        // A number that a source gives belongs to its document alone.
        let counted = match next.own.document() {
            Some(document) => document.number.is_none(),
            None => !self.is_remote,
        };
        self.change(&mut inputs, next, number + u64::from(counted)).await
    }

    async fn change(
        self: &Arc<Self>,
        inputs: &mut RuleInputs,
        next: RuleInputs,
        number: u64,
    ) -> Result<(), ConfigError> {
        let (manager, read) = (Arc::clone(self), next.clone());
        let reading = spawn_low_priority(move || {
            let rules = Rules::of(&read.own, read.envoy.as_deref())?.complete()?;
            Ok::<PreparedRules, ConfigError>(manager.fit(rules))
        });
        let fit = match reading.await.and_then(|read| read) {
            Ok(fit) => fit,
            Err(error) => {
                let offered = next.own.document().filter(|offered| offered.number.is_some());
                if let Some(offered) = offered.filter(|_| number > self.version().number) {
                    *self.refused.lock() = Some(offered.clone());
                }
                self.unfit(number, &error);
                return Err(error);
            }
        };
        let (count, hash) = (fit.rules.set.rules().len(), fit.hash.clone());
        tokio::spawn(retire(self.enforce(fit, number, &next.own)));
        tracing::info!(
            version = number,
            hash,
            rules = count,
            source = self.source,
            "rules in force"
        );
        let (manager, own) = (Arc::clone(self), next.own.clone());
        spawn_blocking(move || manager.keep_copy(&own, number));
        self.refused.lock().take_if(|refused| refused.number <= Some(number));
        *inputs = next;
        self.settled(number);
        if number > 0 {
            self.service.set_rules_pending(None);
        }
        Ok(())
    }

    /// What had been in force.
    fn enforce(&self, fit: PreparedRules, number: u64, own: &NativeRules) -> Arc<ActiveRules> {
        let PreparedRules { rules: Rules { set, envoy }, attribute_plan, hash } = fit;
        let loaded = self.service.clock().now();
        let version = match own.document() {
            Some(document) => RulesVersion {
                number,
                hash,
                by: document.by.clone(),
                note: document.note.clone(),
                at: document.at,
                loaded,
                text: Some(Arc::clone(&document.text)),
            },
            None => RulesVersion { number, hash, loaded, ..RulesVersion::default() },
        };
        self.service.activate(CompiledRules { set, envoy, attribute_plan, version })
    }

    fn keep_copy(&self, own: &NativeRules, number: u64) {
        let (Some(copy), Some(document)) = (&self.copy, own.document()) else { return };
        match copy.write(document, number) {
            Ok(_) => self.standing.lock().copy_problem = None,
            Err(error) => {
                let path = copy.path().display();
                tracing::warn!(%path, %error, "no copy of the rules kept: a start needs their source");
            }
        }
    }

    /// What is in force, as it was found.
    pub(crate) async fn found(&self) -> RuleInputs {
        self.inputs.lock().await.clone()
    }

    /// The last good document of this source on this machine. A damaged copy is logged and not used.
    fn kept(&self) -> Option<RulesDocument> {
        match self.copy.as_ref()?.read() {
            Ok(kept) => kept,
            Err(error) => {
                tracing::error!(%error, source = self.source, "local copy of the rules can't be used");
                self.standing.lock().copy_problem = Some(error.to_string());
                None
            }
        }
    }

    /// The newest document of the source that this node has seen and still has, usable or not.
    pub(crate) async fn newest(&self) -> Option<RulesDocument> {
        let active = self.found().await.own.document().cloned();
        let active = active.filter(|active| active.number.is_some());
        let refused = self.refused.lock().clone();
        // Of equal ones the last: the one in force.
        refused.into_iter().chain(active).max_by_key(|document| document.number)
    }

    /// Which rules are in force.
    pub(crate) fn version(&self) -> RulesVersion {
        self.service.active_rules().version().clone()
    }

    /// Marks this node as not ready while it enforces no rules although some exist: it can't use them, or
    /// can't find out because the source does not answer. Returns whether it is.
    pub(crate) fn update_readiness(&self, is_source_known: bool) -> bool {
        let standing = self.standing();
        let exist = standing.latest > 0 || standing.copy_problem.is_some() || !is_source_known;
        let waits = self.version().number == 0 && exist;
        self.service.set_rules_pending(waits.then(|| format!("rules from {}", self.source)));
        waits
    }
}

/// Frees rules that were replaced once the last call is done with them, and not on a thread that
/// answers calls: for very many it takes a moment.
async fn retire(old: Arc<ActiveRules>) {
    let mut ticker = tokio::time::interval(RETIRED);
    while Arc::strong_count(&old) > 1 {
        ticker.tick().await;
    }
    // Without a thread it was dropped here.
    let _ = spawn_low_priority(move || drop(old)).await;
}
