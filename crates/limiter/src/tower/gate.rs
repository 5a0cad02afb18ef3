//! Who decides: rules, or one limit for each key.

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arc_swap::{ArcSwap, Guard};
use http::request::Parts;
use tidegate_core::{
    Decision, Request, RequestError, RuleIndex, RuleOutcome, RuleOutcomes, Span, Timestamp,
};

use super::attributes::{Reader, Warned};
use super::in_flight::Slots;
use super::refusal::Unreadable;
use super::source::Read;
use crate::limiter::{Admission, CheckRequest, Limiter};
use crate::live::LiveLimiter;
use crate::per_key::PerKey;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// How long a request waits for its turn at the most, unless the layer is told otherwise.
const MAX_WAIT: Span = Span::from_secs(30);

/// Decides about a request by its head. [`RulesDecider`] and [`KeyDecider`] do.
pub trait Decider: Send + Sync + 'static {
    /// The answer, if it takes no waiting.
    #[doc(hidden)]
    fn check_now(&self, head: &Parts) -> Option<Check>;

    /// The answer of a store that takes its time.
    #[doc(hidden)]
    fn check_later(&self, head: Parts) -> Later;

    /// Refuses from now on who would wait longer for its turn.
    #[doc(hidden)]
    fn wait_at_most(&mut self, max_wait: Span);

    /// Logs once what rules mention and no request will ever have.
    #[doc(hidden)]
    fn warn_of_gaps(&self) {}
}

/// What was decided, unless the request says more than can be looked at.
pub(crate) type Check = Result<Entry, Unreadable>;

/// What was decided and when, and how who may enter gets in.
#[derive(Debug)]
pub struct Entry {
    pub(crate) decision: Decision,
    pub(crate) at: Timestamp,
    pub(crate) way: Way,
}

/// How a request gets in.
#[derive(Debug)]
pub(crate) enum Way {
    /// At once, with what it holds while it is in flight.
    Open(Slots),
    /// When its turn has come.
    Queue(Queue),
}

/// An answer on its way, and the head that was asked about.
pub(crate) type Later = Pin<Box<dyn Future<Output = (Parts, Check)> + Send>>;

/// Ends when a request's turn has come, with what it holds while it is in flight. Dropped before, it
/// gives everything back.
pub(crate) struct Queue(Pin<Box<dyn Future<Output = Slots> + Send>>);

impl Queue {
    pub(crate) fn as_mut(&mut self) -> Pin<&mut (dyn Future<Output = Slots> + Send)> {
        self.0.as_mut()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl Way {
    fn by<S: Store>(admission: Admission<S>) -> Self {
        match admission.is_ready() {
            true => Self::Open(Slots::of(admission.start())),
            false => Self::Queue(Queue(Box::pin(async move { Slots::of(admission.wait().await) }))),
        }
    }
}

/// Decides by every rule that matches.
#[derive(Debug)]
pub struct RulesDecider<S = MemoryStore> {
    limiter: LiveLimiter<S>,
    /// What the caller reads itself.
    custom: Vec<(Box<str>, Custom)>,
    reading: Arc<ArcSwap<Reading<S>>>,
    max_wait: Span,
}

/// A read function, which prints as nothing.
#[derive(Clone)]
struct Custom(Read);

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Custom")
    }
}

/// What was made of the rules that were in force when somebody last looked.
#[derive(Debug)]
struct Reading<S> {
    limiter: Arc<Limiter<S>>,
    reader: Reader,
}

impl<S> Clone for RulesDecider<S> {
    fn clone(&self) -> Self {
        let (limiter, custom) = (self.limiter.clone(), self.custom.clone());
        Self { limiter, custom, reading: Arc::clone(&self.reading), max_wait: self.max_wait }
    }
}

impl<S: Store> RulesDecider<S> {
    pub(crate) fn new(limiter: LiveLimiter<S>) -> Self {
        let reading = Reading::of(Arc::clone(&limiter.current()), &[], Arc::default());
        let reading = Arc::new(ArcSwap::from_pointee(reading));
        Self { limiter, custom: Vec::new(), reading, max_wait: MAX_WAIT }
    }

    pub(crate) fn attribute(&mut self, name: &str, read: Read) {
        self.custom.push((name.into(), Custom(read)));
        let reading = self.read_anew(Arc::clone(&self.limiter.current()));
        // A clone made before goes on reading as it did.
        self.reading = Arc::new(ArcSwap::from(reading));
    }

    fn read_anew(&self, limiter: Arc<Limiter<S>>) -> Arc<Reading<S>> {
        let warned = Arc::clone(self.reading.load().reader.warned());
        Arc::new(Reading::of(limiter, &self.custom, warned))
    }

    /// How requests are read and decided by the rules in force.
    fn reading(&self) -> Guard<Arc<Reading<S>>> {
        let (reading, now) = (self.reading.load(), self.limiter.current());
        if Arc::ptr_eq(&reading.limiter, &now) {
            return reading;
        }
        self.reading.store(self.read_anew(Arc::clone(&now)));
        self.reading.load()
    }
}

impl<S: Store> Reading<S> {
    fn of(limiter: Arc<Limiter<S>>, custom: &[(Box<str>, Custom)], warned: Arc<Warned>) -> Self {
        let mut reader = Reader::new(limiter.rules(), warned);
        for (name, Custom(read)) in custom {
            reader.replace(name, Arc::clone(read));
        }
        Self { limiter, reader }
    }
}

impl<S: Store> Decider for RulesDecider<S> {
    fn check_now(&self, head: &Parts) -> Option<Check> {
        // A check in memory never waits, so it needs no place on the heap to wait in.
        if TypeId::of::<S>() != TypeId::of::<MemoryStore>() {
            return None;
        }
        let reading = self.reading();
        let check = pin!(decide(&reading.limiter, &reading.reader, head, self.max_wait));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(check) => Some(check),
            Poll::Pending => None,
        }
    }

    fn check_later(&self, head: Parts) -> Later {
        let (reading, max_wait) = (self.reading(), self.max_wait);
        Box::pin(async move {
            let check = decide(&reading.limiter, &reading.reader, &head, max_wait).await;
            (head, check)
        })
    }

    fn wait_at_most(&mut self, max_wait: Span) {
        self.max_wait = max_wait;
    }

    fn warn_of_gaps(&self) {
        self.reading().reader.warn_of_gaps();
    }
}

async fn decide<S: Store>(
    limiter: &Limiter<S>,
    reader: &Reader,
    head: &Parts,
    max_wait: Span,
) -> Check {
    let mut request = reader.read(head)?;
    limiter.blocks().attributes(|name| reader.read_also(name, head, &mut request));
    let (decision, admission) = limiter.admit(CheckRequest::from(&request), max_wait).await;
    Ok(Entry { decision, at: limiter.clock().now(), way: Way::by(admission) })
}

/// Decides by one limit for each key.
#[derive(Clone)]
pub struct KeyDecider {
    handle: PerKey,
    key: Read,
    name: Arc<str>,
    max_wait: Span,
}

impl fmt::Debug for KeyDecider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyDecider").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl KeyDecider {
    /// What the limit is called where rules have names.
    const NAME: &str = "default";

    pub(crate) fn new(handle: PerKey, key: Read) -> Self {
        Self { handle, key, name: Self::NAME.into(), max_wait: MAX_WAIT }
    }

    fn decide(&self, head: &Parts) -> Check {
        let key = (self.key)(head).unwrap_or_default();
        if key.len() > Request::MAX_VALUE {
            let error = RequestError::Value { name: "key".to_owned(), found: key.len() };
            return Err(Unreadable { in_uri: false, error });
        }
        let (outcome, admission) = self.handle.admit(key.as_bytes(), self.max_wait);
        let (at, way) = (self.handle.now(), Way::by(admission));
        let (rule, limit) = (Arc::clone(&self.name), Arc::clone(self.handle.limit()));
        let rule_index = RuleIndex(0);
        let outcome = RuleOutcome { rule_index, rule, limit, outcome, shadow: false };
        Ok(Entry { decision: Decision::of(RuleOutcomes::from_iter([outcome])), at, way })
    }
}

impl Decider for KeyDecider {
    fn check_now(&self, head: &Parts) -> Option<Check> {
        Some(self.decide(head))
    }

    fn check_later(&self, head: Parts) -> Later {
        let check = self.decide(&head);
        Box::pin(std::future::ready((head, check)))
    }

    fn wait_at_most(&mut self, max_wait: Span) {
        self.max_wait = max_wait;
    }
}
