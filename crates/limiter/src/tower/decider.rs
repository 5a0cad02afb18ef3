//! Deciders of the layer: by rules, or by one limit for each key.

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arc_swap::{ArcSwap, Guard};
use http::request::Parts;
use tidegate_core::{
    Decision, EncodedSlashes, Request, RequestError, RuleIndex, RuleOutcome, RuleOutcomes, Span,
    Timestamp,
};

use super::attributes::{AttributeReader, LoggedWarnings};
use super::in_flight::HeldSlots;
use super::local_response::RequestRejection;
use super::source::{AttributeSource, ReadAttribute};
use crate::limiter::{Admission, CheckRequest, Limiter};
use crate::live::LiveLimiter;
use crate::per_key::PerKey;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// The longest wait in the queue of a leaky bucket, unless the layer sets another.
const DEFAULT_MAX_WAIT: Span = Span::from_secs(30);

/// Decides a request by its head. Implemented by [`RulesDecider`] and [`KeyDecider`].
pub trait Decider: Send + Sync + 'static {
    /// Checks a request without waiting. Returns `None` if the store may not reply at once.
    #[doc(hidden)]
    fn check_now(&self, head: &Parts) -> Option<CheckResult>;

    /// Checks a request with a store that may not reply at once.
    #[doc(hidden)]
    fn check_async(&self, head: Parts) -> BoxedCheck;

    /// Sets the longest wait in the queue of a leaky bucket. A longer one denies the request.
    #[doc(hidden)]
    fn set_max_wait(&mut self, max_wait: Span);

    /// Logs once which attributes the rules use and this layer never sets.
    #[doc(hidden)]
    fn warn_of_missing(&self) {}
}

/// The outcome of a check, or the reason why there is none.
pub(crate) type CheckResult = Result<CheckOutcome, RequestRejection>;

/// A decision, its time, and the start of the request if it is allowed.
#[derive(Debug)]
pub struct CheckOutcome {
    pub(crate) decision: Decision,
    pub(crate) at: Timestamp,
    pub(crate) start: RequestStart,
}

/// The start of an allowed request: now, or after a wait in a queue.
#[derive(Debug)]
pub(crate) enum RequestStart {
    /// The service is called at once. The request holds these slots in flight.
    Now(HeldSlots),
    /// The service is called after the wait.
    AfterWait(QueueWait),
}

/// A check in progress. It returns the head that it owns.
pub(crate) type BoxedCheck = Pin<Box<dyn Future<Output = (Parts, CheckResult)> + Send>>;

/// A wait in the queue of a leaky bucket. It ends with the slots in flight of the request. If it is
/// dropped earlier, the admission is undone.
pub(crate) struct QueueWait(Pin<Box<dyn Future<Output = HeldSlots> + Send>>);

impl QueueWait {
    pub(crate) fn as_mut(&mut self) -> Pin<&mut (dyn Future<Output = HeldSlots> + Send)> {
        self.0.as_mut()
    }
}

impl fmt::Debug for QueueWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueWait")
    }
}

impl RequestStart {
    fn new<S: Store>(admission: Admission<S>) -> Self {
        if admission.is_ready() {
            return Self::Now(HeldSlots::new(admission.start()));
        }
        let wait = async move { HeldSlots::new(admission.wait().await) };
        Self::AfterWait(QueueWait(Box::pin(wait)))
    }
}

/// Decides by every rule that matches.
#[derive(Debug)]
pub struct RulesDecider<S = MemoryStore> {
    limiter: LiveLimiter<S>,
    /// Attributes that functions of the caller read, with their names.
    custom: Vec<(Box<str>, AttributeSource)>,
    /// The limiter of the last check, replaced when the rules have changed.
    active: Arc<ArcSwap<LimiterReader<S>>>,
    settings: CheckSettings,
}

/// Settings of the layer for each check.
#[derive(Clone, Copy, Debug)]
struct CheckSettings {
    max_wait: Span,
    encoded_slashes: EncodedSlashes,
}

/// A limiter with a reader for the attributes that its rules use.
#[derive(Debug)]
struct LimiterReader<S> {
    limiter: Arc<Limiter<S>>,
    reader: AttributeReader,
}

impl<S> Clone for RulesDecider<S> {
    fn clone(&self) -> Self {
        let (limiter, custom) = (self.limiter.clone(), self.custom.clone());
        Self { limiter, custom, active: Arc::clone(&self.active), settings: self.settings }
    }
}

impl<S: Store> RulesDecider<S> {
    pub(crate) fn new(limiter: LiveLimiter<S>) -> Self {
        let active = LimiterReader::new(Arc::clone(&limiter.current()), &[], Arc::default());
        let active = Arc::new(ArcSwap::from_pointee(active));
        let settings = CheckSettings {
            max_wait: DEFAULT_MAX_WAIT,
            encoded_slashes: EncodedSlashes::default(),
        };
        Self { limiter, custom: Vec::new(), active, settings }
    }

    pub(crate) fn set_encoded_slashes(&mut self, slashes: EncodedSlashes) {
        self.settings.encoded_slashes = slashes;
    }

    /// Adds an attribute from a source of the caller. Clones made before do not have it.
    pub(crate) fn add_attribute(&mut self, name: &str, source: AttributeSource) {
        self.custom.push((name.into(), source));
        let active = self.rebuild(Arc::clone(&self.limiter.current()));
        // A new cell, because earlier clones share the old one.
        self.active = Arc::new(ArcSwap::from(active));
    }

    fn rebuild(&self, limiter: Arc<Limiter<S>>) -> Arc<LimiterReader<S>> {
        let logged = Arc::clone(self.active.load().reader.logged());
        Arc::new(LimiterReader::new(limiter, &self.custom, logged))
    }

    /// Returns the limiter and the reader for the active rules.
    fn active(&self) -> Guard<Arc<LimiterReader<S>>> {
        let (active, now) = (self.active.load(), self.limiter.current());
        if Arc::ptr_eq(&active.limiter, &now) {
            return active;
        }
        self.active.store(self.rebuild(Arc::clone(&now)));
        self.active.load()
    }
}

impl<S: Store> LimiterReader<S> {
    fn new(
        limiter: Arc<Limiter<S>>,
        custom: &[(Box<str>, AttributeSource)],
        logged: Arc<LoggedWarnings>,
    ) -> Self {
        let mut reader = AttributeReader::new(limiter.rules(), logged);
        for (name, source) in custom {
            reader.replace(name, source.clone());
        }
        Self { limiter, reader }
    }
}

impl<S: Store> Decider for RulesDecider<S> {
    fn check_now(&self, head: &Parts) -> Option<CheckResult> {
        // A check in memory never waits, so its future needs no allocation.
        if TypeId::of::<S>() != TypeId::of::<MemoryStore>() {
            return None;
        }
        let active = self.active();
        let check = pin!(decide(&active.limiter, &active.reader, head, self.settings));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(check) => Some(check),
            Poll::Pending => None,
        }
    }

    fn check_async(&self, head: Parts) -> BoxedCheck {
        let (active, settings) = (self.active(), self.settings);
        Box::pin(async move {
            let check = decide(&active.limiter, &active.reader, &head, settings).await;
            (head, check)
        })
    }

    fn set_max_wait(&mut self, max_wait: Span) {
        self.settings.max_wait = max_wait;
    }

    fn warn_of_missing(&self) {
        self.active().reader.warn_of_missing();
    }
}

async fn decide<S: Store>(
    limiter: &Limiter<S>,
    reader: &AttributeReader,
    head: &Parts,
    settings: CheckSettings,
) -> CheckResult {
    let mut request = reader.read(head, settings.encoded_slashes)?;
    let mut blocks_read = Ok(());
    limiter.blocks().attributes(|name| {
        let slashes = settings.encoded_slashes;
        let read = reader.read_for_block_list(name, head, slashes, &mut request);
        if let Err(error) = read {
            blocks_read = Err(error);
        }
    });
    blocks_read?;
    let (decision, admission) =
        limiter.admit(CheckRequest::from(&request), settings.max_wait).await;
    Ok(CheckOutcome { decision, at: limiter.clock().now(), start: RequestStart::new(admission) })
}

/// Decides by one limit for each key.
#[derive(Clone)]
pub struct KeyDecider {
    handle: PerKey,
    key: ReadAttribute,
    rule_name: Arc<str>,
    max_wait: Span,
}

impl fmt::Debug for KeyDecider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyDecider").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl KeyDecider {
    /// The name of the limit in decisions and headers, where rules have theirs.
    const RULE_NAME: &str = "default";

    pub(crate) fn new(handle: PerKey, key: ReadAttribute) -> Self {
        Self { handle, key, rule_name: Self::RULE_NAME.into(), max_wait: DEFAULT_MAX_WAIT }
    }

    fn decide(&self, head: &Parts) -> CheckResult {
        let key = (self.key)(head).unwrap_or_default();
        if key.len() > Request::MAX_VALUE {
            let error = RequestError::Value { name: "key".to_owned(), found: key.len() };
            return Err(RequestRejection::AttributeTooLong { in_uri: false, error });
        }
        let (outcome, admission) = self.handle.admit(key.as_bytes(), self.max_wait);
        let (at, start) = (self.handle.now(), RequestStart::new(admission));
        let (rule, limit) = (Arc::clone(&self.rule_name), Arc::clone(self.handle.limit()));
        let rule_index = RuleIndex(0);
        let outcome = RuleOutcome { rule_index, rule, limit, outcome, shadow: false };
        let decision = Decision::of(RuleOutcomes::from_iter([outcome]));
        Ok(CheckOutcome { decision, at, start })
    }
}

impl Decider for KeyDecider {
    fn check_now(&self, head: &Parts) -> Option<CheckResult> {
        Some(self.decide(head))
    }

    fn check_async(&self, head: Parts) -> BoxedCheck {
        let check = self.decide(&head);
        Box::pin(std::future::ready((head, check)))
    }

    fn set_max_wait(&mut self, max_wait: Span) {
        self.max_wait = max_wait;
    }
}
