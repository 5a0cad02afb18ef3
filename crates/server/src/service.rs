//! The narrow waist: the one place where a call becomes a reply.
//!
//! Every transport decodes its bytes into a [`Call`], hands it over, and encodes the [`Reply`] or
//! [`Fault`] it gets. What a call means, what is logged about it, and which status goes with which
//! ending is settled here once for all of them.

mod books;
mod client;
mod fault;
mod own_rules;
pub(crate) mod rls;
mod throttle;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use tidegate::{Claim, Decision, HeaderStyle, Limiter, Request, Timestamp, Under};
use tidegate_core::Header;

use self::books::{Answered, Books};
use self::client::insert;
pub(crate) use self::client::{Client, addressed};
pub(crate) use self::fault::{Ending, Fault, cut, quoted};
use self::own_rules::is_written;
pub(crate) use self::own_rules::{internal_rules, unknown_rule, written};
use self::rls::Rls;
use crate::metrics::Format;
use crate::rules::envoy::EnvoyRules;
use crate::store::AnyStore;

/// What is asked.
#[derive(Debug, Default)]
pub(crate) struct Call<'a> {
    /// The rule to check alone, whatever its `match` says; without one, every rule that matches.
    pub(crate) rule: Option<Cow<'a, str>>,
    /// Who comes, in the terms of that rule.
    pub(crate) client: Option<Client<'a>>,
    /// Everything else that is known of the request, and what it costs.
    pub(crate) request: Request<'a>,
}

/// Which door a call came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Http,
    Grpc,
    Resp,
}

impl Via {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Resp];

    /// What the door is called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
        }
    }
}

/// Decides calls. Shared by every transport.
#[derive(Debug)]
pub(crate) struct Service {
    limiter: Limiter<AnyStore>,
    /// Finds the limits of envoyproxy/ratelimit files, if there are any.
    envoy: Option<Arc<EnvoyRules>>,
    style: HeaderStyle,
    rls: Rls,
    books: Books,
    /// Whether the store has ever been there.
    ready: AtomicBool,
    /// Whether no more calls should be sent here.
    draining: AtomicBool,
}

impl Service {
    pub(crate) fn new(limiter: Limiter<AnyStore>, style: HeaderStyle) -> Self {
        let (ready, draining) = (AtomicBool::new(false), AtomicBool::new(false));
        let (books, rls) = (Books::new(&limiter), Rls::default());
        let service = Self { limiter, envoy: None, style, rls, books, ready, draining };
        // What was there at the start counts, also if nobody asks before it goes away.
        let _ = service.unready();
        service
    }

    /// The same service, with what calls of Envoy need.
    pub(crate) fn with_rls(mut self, rls: Rls) -> Self {
        self.rls = rls;
        self
    }

    /// The same service with the limits of envoyproxy/ratelimit files, whose rules the limiter has.
    pub(crate) fn with_envoy(self, envoy: Option<Arc<EnvoyRules>>) -> Self {
        Self { envoy, ..self }
    }

    /// Why calls should not be sent to this node; nothing once it is ready.
    ///
    /// Ready once means ready for good, whatever becomes of the store. It goes away for all nodes of
    /// a fleet at once, and a load balancer that then took them all out would turn every rule that
    /// allows or goes on locally into an outage. Without the store, rules answer as they say.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("it is about to stop".to_owned());
        }
        if self.ready.load(Ordering::Relaxed) {
            return None;
        }
        let missing = self.limiter.store().waits_for();
        if missing.is_none() {
            self.ready.store(true, Ordering::Relaxed);
        }
        missing.map(|missing| format!("waiting for {missing}"))
    }

    /// Says from now on that calls should go elsewhere. Those that come are still answered.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether a decision is there as soon as it is asked for, without waiting for another process.
    pub(crate) fn decides_at_once(&self) -> bool {
        matches!(**self.limiter.store(), AnyStore::Memory(_))
    }

    /// Answers calls that have nothing to do with each other, each as [`check`](Self::check) does.
    ///
    /// They are asked in their order and at the same time, so that a store that is far away is waited
    /// for once.
    pub(crate) async fn check_each<'a>(
        &'a self,
        via: Via,
        calls: Vec<Result<Call<'a>, Fault>>,
    ) -> Vec<Result<Reply, Fault>> {
        let decide = async |call: Result<Call<'a>, Fault>| match call {
            Ok(call) => self.check(via, call).await,
            Err(fault) => Err(self.refused(via, fault)),
        };
        join_all(calls.into_iter().map(decide)).await
    }

    /// Answers one call, and charges it if it is admitted.
    ///
    /// # Errors
    /// The call can't be understood, or names a rule that is not there; nothing was charged.
    pub(crate) async fn check<'a>(&'a self, via: Via, call: Call<'a>) -> Result<Reply, Fault> {
        let began = self.limiter.clock().now();
        let (request, decision) = match &call.rule {
            Some(name) => {
                let rules = self.limiter.rules();
                let place = rules.place(name).filter(|place| is_written(&rules.rules()[*place]));
                let Some(place) = place else {
                    return Err(self.refused(via, unknown_rule(name, rules)));
                };
                let request = addressed(&rules.rules()[place], call.client, call.request);
                let request = request.map_err(|fault| self.refused(via, fault))?;
                let claim = Claim { request: &request, under: Under::Rule(place) };
                let decision = self.limiter.check_claim(claim).await;
                (request, decision)
            }
            None if call.client.is_some() => {
                let wanted = "the rule that client belongs to";
                return Err(self.refused(via, Fault::invalid("rule", "nothing", wanted)));
            }
            None => {
                let decision = self.limiter.check(&call.request).await;
                (call.request, decision)
            }
        };
        Ok(self.reply(via, began, &request, decision))
    }

    /// The reply to a call that began at `began`, which is entered into the books.
    fn reply(
        &self,
        via: Via,
        began: Timestamp,
        request: &Request<'_>,
        decision: Decision,
    ) -> Reply {
        let at = self.limiter.clock().now();
        let answered = Answered { via, began, at };
        self.books.enter(&self.limiter, answered, [(request, &decision)]);
        let reply = Reply { decision, at, style: self.style };
        reply.log();
        reply
    }

    /// Counts a call that can't be decided, or not even be read.
    pub(crate) fn refused(&self, via: Via, fault: Fault) -> Fault {
        self.books.metrics.refused(via, fault.ending);
        fault
    }

    /// What decides; for the admin door.
    pub(crate) fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    /// The limits of envoyproxy/ratelimit files; for the admin door.
    pub(crate) fn envoy(&self) -> Option<&EnvoyRules> {
        self.envoy.as_deref()
    }

    /// What was answered so far; for the admin door.
    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    /// The metrics of this moment; for the admin door.
    pub(crate) fn metrics(&self, format: Format) -> String {
        let ready = self.unready().is_none();
        self.books.metrics.write(self.books.sources(&self.limiter, ready), format)
    }
}

/// A decision, and what the client is told about it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) decision: Decision,
    /// When it was made.
    pub(crate) at: Timestamp,
    style: HeaderStyle,
}

impl Reply {
    pub(crate) fn ending(&self) -> Ending {
        Ending::of(self.decision.ruling())
    }

    /// The rate-limit headers, names in lower case.
    pub(crate) fn headers(&self) -> Vec<Header> {
        self.style.headers(&self.decision, self.at)
    }

    /// The one line about a call. It never says who came: that may be a secret.
    fn log(&self) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let policy = self.decision.decisive();
        tracing::debug!(
            ending = ?self.ending(),
            rule = policy.map(|policy| &*policy.rule),
            remaining = policy.map(|policy| policy.outcome.remaining),
            blocked = self.decision.block().is_some(),
            "checked"
        );
    }
}
