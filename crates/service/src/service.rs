//! The narrow waist: the one place where a call becomes a reply.
//!
//! Every transport decodes its bytes into a [`Call`], hands it over, and encodes the [`Reply`] or
//! [`CallError`] it gets. What a call means, what is logged about it, and which status goes with which
//! ending is settled here once for all of them.

mod acquire;
mod admitted;
mod books;
mod client;
mod in_force;
pub mod internal_rules;
pub mod rls;
mod seal;
mod throttle;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tidegate_core::{CallError, Decision, HeaderStyle, Reply, Request, RuleIndex, Span, Timestamp};
use tidegate_limiter::{CheckRequest, CheckTarget, Clock, Limiter, Store};

pub use self::acquire::{Acquired, OnItsWay};
pub use self::admitted::Admitted;
use self::books::{Answered, Books};
use self::client::insert;
pub use self::client::{Client, addressed};
pub use self::in_force::{InForce, Next, Version};
pub use self::internal_rules::{internal_rules, unknown_rule};
use self::rls::Rls;
use self::seal::Seal;
use crate::identity::Known;
use crate::metrics::Format;
use crate::rules::Standing;
use crate::rules_version;
use crate::store::AnyStore;

/// What is asked.
#[derive(Debug, Default)]
pub struct Call<'a> {
    /// The rule to check alone, whatever its `match` says; without one, every rule that matches.
    pub rule: Option<Cow<'a, str>>,
    /// Who comes, in the terms of that rule.
    pub client: Option<Client<'a>>,
    /// Everything else that is known of the request, and what it costs.
    pub request: Request<'a>,
}

/// Which door a call came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The HTTP listener.
    Http,
    /// The gRPC listener.
    Grpc,
    /// The RESP listener.
    Resp,
    /// The gateway.
    Gateway,
}

impl Via {
    pub(crate) const ALL: [Self; 4] = [Self::Http, Self::Grpc, Self::Resp, Self::Gateway];

    /// What the door is called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Gateway => "gateway",
        }
    }
}

/// Decides calls. Shared by every transport.
#[derive(Debug)]
pub struct Service {
    in_force: ArcSwap<InForce>,
    store: Arc<AnyStore>,
    clock: Clock,
    style: HeaderStyle,
    rls: Rls,
    /// Makes the names of slots in flight for those outside.
    seal: Seal,
    books: Books,
    /// Whether the store has ever been there.
    ready: AtomicBool,
    /// Whether no more calls should be sent here.
    draining: AtomicBool,
    /// The rules that are still to come, if there were none to start with.
    awaited: Mutex<Option<String>>,
}

impl Service {
    /// Decides by the rules of a limiter, until there are others.
    pub fn new(limiter: Limiter<AnyStore>, style: HeaderStyle) -> Self {
        let (store, clock) = (Arc::clone(limiter.store()), limiter.clock().clone());
        let (ready, draining) = (AtomicBool::new(false), AtomicBool::new(false));
        let (books, rls) = (Books::new(), Rls::default());
        let seal = Seal::new(&store.keyer());
        let (lines, known) = (books.enlist(limiter.rules()), Known::default());
        let (loaded, hash) = (clock.now(), rules_version::of(limiter.rules()));
        let version = Version { loaded, hash, ..Version::default() };
        let in_force = InForce { limiter, envoy: None, known, lines, version };
        let in_force = ArcSwap::from_pointee(in_force);
        let service = Self {
            in_force,
            store,
            clock,
            style,
            rls,
            seal,
            books,
            ready,
            draining,
            awaited: Mutex::default(),
        };
        // What was there at the start counts, also if nobody asks before it goes away.
        let _ = service.unready();
        service
    }

    /// The same service, with what calls of Envoy need.
    pub fn with_rls(mut self, rls: Rls) -> Self {
        self.rls = rls;
        self
    }

    /// What calls are decided by at this moment.
    #[inline]
    pub fn now(&self) -> Guard<Arc<InForce>> {
        self.in_force.load()
    }

    /// Decides by other rules from the next call on. What had been in force is handed back: whoever
    /// drops the last of it frees the rules, which for very many takes a moment.
    ///
    /// To be called by one at a time.
    pub(crate) fn enforce(&self, next: Next) -> Arc<InForce> {
        let Next { set, envoy, known, version } = next;
        let limiter = self.now().limiter.with_rules(set);
        let lines = self.books.enlist(limiter.rules());
        self.in_force.swap(Arc::new(InForce { limiter, envoy, known, lines, version }))
    }

    /// Why calls should not be sent to this node; nothing once it is ready.
    ///
    /// Ready once means ready for good, whatever becomes of the store. It goes away for all nodes of
    /// a fleet at once, and a load balancer that then took them all out would turn every rule that
    /// allows or goes on locally into an outage. Without the store, rules answer as they say.
    pub fn unready(&self) -> Option<String> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("it is about to stop".to_owned());
        }
        if let Some(rules) = &*self.awaited.lock() {
            return Some(format!("waiting for {rules}"));
        }
        if self.ready.load(Ordering::Relaxed) {
            return None;
        }
        let missing = self.store.waits_for();
        if missing.is_none() {
            self.ready.store(true, Ordering::Relaxed);
        }
        missing.map(|missing| format!("waiting for {missing}"))
    }

    /// Says which rules are still to come before calls should be sent here.
    pub(crate) fn await_rules(&self, rules: Option<String>) {
        *self.awaited.lock() = rules;
    }

    /// Says from now on that calls should go elsewhere. Those that come are still answered.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether calls should go elsewhere.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether a decision is there as soon as it is asked for, without waiting for another process.
    pub fn decides_at_once(&self) -> bool {
        matches!(*self.store, AnyStore::Memory(_))
    }

    /// Answers calls that have nothing to do with each other, each as [`check`](Self::check) does.
    ///
    /// They are asked in their order and at the same time, so that a store that is far away is waited
    /// for once.
    pub async fn check_each<'a>(
        &'a self,
        via: Via,
        calls: Vec<Result<Call<'a>, CallError>>,
    ) -> Vec<Result<Reply, CallError>> {
        let decide = async |call: Result<Call<'a>, CallError>| match call {
            Ok(call) => self.check(via, call).await,
            Err(fault) => Err(self.refused(via, fault)),
        };
        join_all(calls.into_iter().map(decide)).await
    }

    /// Answers one call, and charges it if it is admitted.
    ///
    /// # Errors
    /// The call can't be understood, or names a rule that is not there; nothing was charged.
    pub async fn check(&self, via: Via, call: Call<'_>) -> Result<Reply, CallError> {
        let by = self.now();
        self.check_by(&by, via, call).await
    }

    /// As [`check`](Self::check), by rules that were in force when the call was read.
    ///
    /// # Errors
    /// As there.
    pub async fn check_by(
        &self,
        by: &InForce,
        via: Via,
        call: Call<'_>,
    ) -> Result<Reply, CallError> {
        let (began, limiter) = (self.clock.now(), &by.limiter);
        match &call.rule {
            Some(name) => {
                let named = self.named(by, via, name, call.client, call.request);
                let (index, request) = named?;
                let check = CheckRequest { request: &request, target: CheckTarget::Rule(index) };
                let decision = limiter.check(check).await;
                Ok(self.reply(by, via, began, &request, decision))
            }
            None if call.client.is_some() => Err(self.refused(via, client_without_rule())),
            None => {
                let decision = limiter.check(&call.request).await;
                Ok(self.reply(by, via, began, &call.request, decision))
            }
        }
    }

    /// Asks every rule that matches a request which is about to be served here, and takes for it what it
    /// needs while it is: a turn, not later than after `max_wait`, and slots in flight.
    pub async fn admit(
        &self,
        by: &InForce,
        via: Via,
        request: &Request<'_>,
        max_wait: Span,
    ) -> (Reply, Admitted) {
        let began = self.clock.now();
        let (decision, admission) = by.limiter.admit(request, max_wait).await;
        (self.reply(by, via, began, request, decision), Admitted::new(admission))
    }

    /// Where the rule of this name is, and the request as it sees it.
    fn named<'r, 'c: 'r>(
        &self,
        by: &'r InForce,
        via: Via,
        name: &str,
        client: Option<Client<'c>>,
        request: Request<'c>,
    ) -> Result<(RuleIndex, Request<'r>), CallError> {
        let rules = by.limiter.rules();
        let index = rules.user_rule_index(name);
        let Some((index, rule)) = index.and_then(|index| Some((index, rules.get(index)?))) else {
            return Err(self.refused(via, unknown_rule(name, rules)));
        };
        let request = addressed(rule, client, request);
        Ok((index, request.map_err(|fault| self.refused(via, fault))?))
    }

    /// The reply to a call that began at `began`, which is entered into the books.
    fn reply(
        &self,
        by: &InForce,
        via: Via,
        began: Timestamp,
        request: &Request<'_>,
        decision: Decision,
    ) -> Reply {
        let at = self.clock.now();
        let answered = Answered { via, began, at };
        self.books.enter(by, answered, [(request, &decision)]);
        let reply = Reply { decision, at, style: self.style };
        log(&reply);
        reply
    }

    /// Counts a call that can't be decided, or not even be read.
    pub fn refused(&self, via: Via, fault: CallError) -> CallError {
        self.books.metrics.refused(via, fault.status);
        fault
    }

    /// What tells the time; for the admin door.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What was answered so far; for the admin door.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// The metrics of this moment; for the admin door.
    pub fn metrics(&self, format: Format, standing: &Standing) -> String {
        let ready = self.unready().is_none();
        self.books.metrics.write(self.books.sources(&self.now(), standing, ready), format)
    }
}

/// Logs one line about a call. The client is not named: that may be a secret.
fn log(reply: &Reply) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let policy = reply.decision.strictest_rule();
    tracing::debug!(
        ending = ?reply.status(),
        rule = policy.map(|policy| &*policy.rule),
        remaining = policy.map(|policy| policy.outcome.remaining),
        blocked = reply.decision.block().is_some(),
        "checked"
    );
}

/// The error of a client that is given without a rule.
fn client_without_rule() -> CallError {
    CallError::invalid("rule", "nothing", "the rule that client belongs to")
}
