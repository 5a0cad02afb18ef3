//! Puts documents in force that are newer and fit, and keeps what it has when they are not.

mod push;
mod telling;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::RedisDocument;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

pub(crate) use self::push::PushError;
use super::copy::LocalCopy;
use super::envoy::Files;
use super::quiet::quietly;
use super::{Document, Own, Rules, Standing};
use crate::config::ConfigError;
use crate::identity::{Identity, Known};
use crate::rules_version;
use crate::service::{InForce, Next, Service, Version};

/// How often it is looked whether rules that were replaced are still in use.
const RETIRED: Duration = Duration::from_secs(1);

/// Keeps a server's rules.
#[derive(Debug)]
pub(crate) struct Keeper {
    service: Arc<Service>,
    identity: Arc<Identity>,
    /// Where rules come from, without secrets.
    source: String,
    /// What this node is called in its fleet.
    node: String,
    /// What is in force, as it was found. Whoever holds it changes the rules.
    inputs: tokio::sync::Mutex<Inputs>,
    standing: Mutex<Standing>,
    copy: Option<LocalCopy>,
    /// Where rules are pushed to and come from.
    shared: Option<RedisDocument>,
    /// Where nodes tell each other what they have.
    reports: Option<RedisDocument>,
    /// There is something new to tell.
    changed: Notify,
}

/// What rules are made of.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) own: Own,
    pub(crate) envoy: Option<Arc<Files>>,
}

/// What a keeper works with.
#[derive(Debug)]
pub(crate) struct Household {
    pub(crate) service: Arc<Service>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) source: String,
    pub(crate) node: String,
    pub(crate) copy: Option<LocalCopy>,
    pub(crate) shared: Option<RedisDocument>,
    pub(crate) reports: Option<RedisDocument>,
}

/// Rules that are fit to be enforced, and what was made of them.
struct Fit {
    rules: Rules,
    known: Known,
    hash: String,
}

impl Keeper {
    /// Puts the first rules in force, which were found fit already.
    pub(crate) fn new(household: Household, inputs: Inputs, rules: Rules) -> Self {
        let Household { service, identity, source, node, copy, shared, reports } = household;
        let keeper = Self {
            service,
            identity,
            source,
            node,
            inputs: tokio::sync::Mutex::new(inputs.clone()),
            standing: Mutex::default(),
            copy,
            shared,
            reports,
            changed: Notify::new(),
        };
        let kept = keeper.copy.as_ref().and_then(LocalCopy::read);
        // Counting goes on where it was before a restart.
        let number = match (inputs.own.document(), kept) {
            (Some(own), Some(kept)) if own.number.is_none() => {
                let known = kept.number.unwrap_or_default();
                if own.text == kept.text { known } else { known + 1 }
            }
            (Some(own), _) => own.number.unwrap_or(1),
            (None, _) => match inputs.own {
                Own::Nothing if inputs.envoy.is_none() => 0,
                _ => 1,
            },
        };
        let fit = keeper.fit(rules);
        drop(keeper.enforce(fit, number, &inputs.own));
        keeper.keep_copy(&inputs.own, number);
        keeper.standing.lock().latest = number;
        keeper
    }

    fn fit(&self, rules: Rules) -> Fit {
        let (known, hash) = (self.identity.known(&rules.set), rules_version::of(&rules.set));
        Fit { rules, known, hash }
    }

    /// Puts a document in force, if it is newer than what is. Whether it was.
    ///
    /// # Errors
    /// Something is wrong with it. Nothing changed, and the node says that it is behind.
    pub(crate) async fn take(self: &Arc<Self>, document: Document) -> Result<bool, ConfigError> {
        let mut inputs = self.inputs.lock().await;
        let current = self.version();
        let same = current.text.as_deref() == Some(&*document.text);
        let number = document.number.unwrap_or_else(|| current.number + u64::from(!same));
        if number < current.number {
            self.older(number, current.number);
            return Ok(false);
        }
        if same && number == current.number {
            self.settled(number);
            return Ok(false);
        }
        let next = Inputs { own: Own::Written(document), envoy: inputs.envoy.clone() };
        self.change(&mut inputs, next, number).await.map(|()| true)
    }

    /// Puts the copy of a document in force whose source is away, or has one that can't be used. What the
    /// source has is still told.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) async fn start_with(self: &Arc<Self>, kept: Document) -> Result<(), ConfigError> {
        let told = self.standing();
        self.take(kept).await?;
        let mut standing = self.standing.lock();
        standing.latest = standing.latest.max(told.latest);
        standing.problem = told.problem;
        Ok(())
    }

    /// Puts other files of envoyproxy/ratelimit in force, beside the same rules of our own.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) async fn take_envoy(self: &Arc<Self>, files: Files) -> Result<(), ConfigError> {
        let mut inputs = self.inputs.lock().await;
        let next = Inputs { own: inputs.own.clone(), envoy: Some(Arc::new(files)) };
        let number = self.version().number;
        // A number that a source gives belongs to its document alone.
        let counted = next.own.document().is_none_or(|document| document.number.is_none());
        self.change(&mut inputs, next, number + u64::from(counted)).await
    }

    async fn change(
        self: &Arc<Self>,
        inputs: &mut Inputs,
        next: Inputs,
        number: u64,
    ) -> Result<(), ConfigError> {
        let (keeper, read) = (Arc::clone(self), next.clone());
        let reading = quietly(move || {
            let rules = Rules::of(&read.own, read.envoy.as_deref())?.complete()?;
            Ok::<Fit, ConfigError>(keeper.fit(rules))
        });
        let fit = match reading.await.and_then(|read| read) {
            Ok(fit) => fit,
            Err(error) => {
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
        let (keeper, own) = (Arc::clone(self), next.own.clone());
        spawn_blocking(move || keeper.keep_copy(&own, number));
        *inputs = next;
        self.settled(number);
        Ok(())
    }

    /// What had been in force.
    fn enforce(&self, fit: Fit, number: u64, own: &Own) -> Arc<InForce> {
        let Fit { rules: Rules { set, envoy }, known, hash } = fit;
        let loaded = self.service.clock().now();
        let version = match own.document() {
            Some(document) => Version {
                number,
                hash,
                by: document.by.clone(),
                note: document.note.clone(),
                at: document.at,
                loaded,
                text: Some(Arc::clone(&document.text)),
            },
            None => Version { number, hash, loaded, ..Version::default() },
        };
        self.service.enforce(Next { set, envoy, known, version })
    }

    fn keep_copy(&self, own: &Own, number: u64) {
        let (Some(copy), Some(document)) = (&self.copy, own.document()) else { return };
        if let Err(error) = copy.write(document, number) {
            let path = copy.path().display();
            tracing::warn!(%path, %error, "no copy of the rules kept: a start needs their source");
        }
    }

    /// What is in force, as it was found.
    pub(crate) async fn found(&self) -> Inputs {
        self.inputs.lock().await.clone()
    }

    /// The last good document of this source on this machine.
    pub(crate) fn kept(&self) -> Option<Document> {
        self.copy.as_ref().and_then(LocalCopy::read)
    }

    /// Which rules are in force.
    pub(crate) fn version(&self) -> Version {
        self.service.now().version().clone()
    }

    /// Says whether calls should wait for the first rules.
    pub(crate) fn await_rules(&self, waits: bool) {
        self.service.await_rules(waits.then(|| format!("rules from {}", self.source)));
    }
}

/// Frees rules that were replaced once the last call is done with them, and not on a thread that
/// answers calls: for very many it takes a moment.
async fn retire(old: Arc<InForce>) {
    let mut ticker = tokio::time::interval(RETIRED);
    while Arc::strong_count(&old) > 1 {
        ticker.tick().await;
    }
    // Without a thread it was dropped here.
    let _ = quietly(move || drop(old)).await;
}
