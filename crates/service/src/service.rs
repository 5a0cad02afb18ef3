//! The one place where a call becomes a reply.
//!
//! Every listener decodes its bytes into a [`Call`], passes it to the [`Service`], and encodes the [`Reply`] or
//! [`CallError`]. The meaning of a call, its log line and its status are the same for all protocols.

/// Awaits a call to the limiter, inside the span of the listener if spans are enabled. A macro, because a function would
/// move the future.
macro_rules! in_call_span {
    ($protocol:expr, $call:expr) => {
        match tidegate_limiter::trace::is_enabled() {
            true => {
                let call = Box::pin($call);
                tidegate_limiter::trace::in_call_span($protocol.name(), call).await
            }
            false => $call.await,
        }
    };
}

mod acquire;
mod admitted;
mod check_batch;
pub mod internal_rules;
mod invalid_call;
mod readiness;
pub mod rls;
mod slot_token;
mod throttle;

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use futures_util::future::join_all;
use tidegate_core::{
    CallError, CallStatus, Decision, HeaderStyle, Limit, Reply, Request, RuleIndex, Span, Timestamp,
};
use tidegate_limiter::block::BlockAction;
use tidegate_limiter::{CheckRequest, CheckTarget, Clock, Limiter, Store, trace};
use tidegate_rules::RuleSet;

pub use self::acquire::{AcquireReply, UndeliveredSlots};
pub use self::admitted::AdmittedRequest;
pub use self::check_batch::CheckBatch;
pub use self::internal_rules::{internal_rules, unknown_rule};
use self::invalid_call::InvalidCallLog;
pub use self::invalid_call::OnInvalidCall;
pub use self::readiness::Readiness;
use self::rls::RlsContext;
use self::slot_token::SlotTokenCipher;
pub use crate::active_rules::{ActiveRules, CompiledRules, RulesVersion};
pub use crate::call::{Call, NamedClient, Protocol, request_for_rule};
use crate::call::{CallTiming, client_without_rule, log_reply, request_for_value};
use crate::identity::AttributePlan;
use crate::metrics::{self, MetricSources, MetricsFormat};
use crate::rules_version;
use crate::source_status::SourceStatus;
use crate::stats::{CounterIds, ServerCounters};
use crate::store::AnyStore;
use crate::top::TopClients;

/// Maximum number of rules of one check that the client ranking counts.
const MAX_RANKED_RULES: usize = 4;

/// The service behind all listeners: decides calls, and counts them.
#[derive(Debug)]
pub struct Service {
    active_rules: ArcSwap<ActiveRules>,
    store: Arc<AnyStore>,
    clock: Clock,
    style: HeaderStyle,
    rls: RlsContext,
    on_invalid_call: OnInvalidCall,
    invalid_call_log: InvalidCallLog,
    /// Encrypts the tokens of slots that callers hold.
    slot_tokens: SlotTokenCipher,
    stats: CallStats,
    readiness: Readiness,
}

impl Service {
    /// Returns a service that decides by the rules of a limiter until others are activated.
    pub fn new(limiter: Limiter<AnyStore>, style: HeaderStyle) -> Self {
        let (store, clock) = (Arc::clone(limiter.store()), limiter.clock().clone());
        let stats = CallStats::new();
        let counter_ids = stats.register_rules(limiter.rules());
        let version = RulesVersion {
            loaded: clock.now(),
            hash: rules_version::hash_rules(limiter.rules()),
            ..RulesVersion::default()
        };
        let attribute_plan = AttributePlan::default();
        let rules = ActiveRules { limiter, envoy: None, attribute_plan, counter_ids, version };
        let service = Self {
            active_rules: ArcSwap::from_pointee(rules),
            slot_tokens: SlotTokenCipher::new(&store.keyer()),
            store,
            clock,
            style,
            rls: RlsContext::default(),
            on_invalid_call: OnInvalidCall::default(),
            invalid_call_log: InvalidCallLog::default(),
            stats,
            readiness: Readiness::default(),
        };
        // A store that answers now makes the node ready, even if it fails before the first readiness check.
        let _ = service.not_ready_reason();
        service
    }

    /// Returns the service with other settings for calls of Envoy's rate limit service.
    pub fn with_rls(mut self, rls: RlsContext) -> Self {
        self.rls = rls;
        self
    }

    /// Returns the service with another answer to invalid calls of proxies.
    pub fn with_on_invalid_call(mut self, answer: OnInvalidCall) -> Self {
        self.on_invalid_call = answer;
        self
    }

    /// Returns the answer to invalid calls of proxies.
    pub fn on_invalid_call(&self) -> OnInvalidCall {
        self.on_invalid_call
    }

    /// Returns the active rules. A call loads them once and uses them to its end.
    #[inline]
    pub fn active_rules(&self) -> Guard<Arc<ActiveRules>> {
        self.active_rules.load()
    }

    /// Activates other rules for the calls that start from now on, and returns the previous ones.
    ///
    /// The thread that drops the last reference frees them, which is slow for very many rules.
    ///
    /// Callers serialise activations: two at the same time could end with the older rules.
    pub(crate) fn activate(&self, next: CompiledRules) -> Arc<ActiveRules> {
        let CompiledRules { set, envoy, attribute_plan, version } = next;
        let limiter = self.active_rules().limiter.with_rules(set);
        let counter_ids = self.stats.register_rules(limiter.rules());
        let rules = ActiveRules { limiter, envoy, attribute_plan, counter_ids, version };
        self.active_rules.swap(Arc::new(rules))
    }

    /// Returns the reason why calls should not be sent to this node, or `None` if it is ready.
    pub fn not_ready_reason(&self) -> Option<String> {
        self.readiness.missing(&self.store)
    }

    /// Returns whether this node accepts calls from load balancers.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Returns whether decisions never wait for another process.
    pub fn is_synchronous(&self) -> bool {
        matches!(*self.store, AnyStore::Memory(_))
    }

    /// Answers independent calls, each as [`check`](Self::check) does.
    ///
    /// All of them are sent before the first answer is awaited, so a remote store costs one round trip.
    pub async fn check_each<'a>(
        &'a self,
        protocol: Protocol,
        calls: Vec<Result<Call<'a>, CallError>>,
    ) -> Vec<Result<Reply, CallError>> {
        let decide = async |call: Result<Call<'a>, CallError>| match call {
            Ok(call) => self.check(protocol, call).await,
            Err(error) => Err(self.count_rejected(protocol, error)),
        };
        join_all(calls.into_iter().map(decide)).await
    }

    /// Answers one call, and charges it if it is admitted.
    ///
    /// # Errors
    /// The call is invalid, or names a rule that does not exist; nothing was charged.
    pub async fn check(&self, protocol: Protocol, call: Call<'_>) -> Result<Reply, CallError> {
        let rules = self.active_rules();
        self.check_with_rules(&rules, protocol, call).await
    }

    /// Answers a call that names a rule and the value that the rule counts by, if nothing has to be awaited. Returns
    /// `None` for all other calls, and nothing was charged or counted: [`check`](Self::check) answers them.
    pub fn check_now(&self, protocol: Protocol, call: &Call<'_>) -> Option<Reply> {
        self.check_now_with_rules(&self.active_rules(), protocol, call)
    }

    fn check_now_with_rules(
        &self,
        rules: &ActiveRules,
        protocol: Protocol,
        call: &Call<'_>,
    ) -> Option<Reply> {
        if !self.is_synchronous() {
            return None;
        }
        let set = rules.limiter.rules();
        let index = set.user_rule_index(call.rule.as_deref()?)?;
        let request = request_for_value(set.get(index)?, call)?;
        let check = CheckRequest { request: &request, target: CheckTarget::Rule(index) };
        self.decide_now(rules, protocol, check)
    }

    /// Decides a check without waiting; `None` if it may have to wait, or if spans are enabled.
    #[inline]
    fn decide_now(
        &self,
        rules: &ActiveRules,
        protocol: Protocol,
        check: CheckRequest<'_, '_>,
    ) -> Option<Reply> {
        if trace::is_enabled() {
            return None;
        }
        let began = self.clock.now();
        let decision = rules.limiter.check_now(check)?;
        Some(self.reply(rules, protocol, began, check.request, decision))
    }

    /// Answers one call by the rules that were active when it was read.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub async fn check_with_rules(
        &self,
        rules: &ActiveRules,
        protocol: Protocol,
        call: Call<'_>,
    ) -> Result<Reply, CallError> {
        match self.check_now_with_rules(rules, protocol, &call) {
            Some(reply) => Ok(reply),
            // Boxed, so that the future of a call that never waits stays small. It is moved several times.
            None => Box::pin(self.check_waiting(rules, protocol, call)).await,
        }
    }

    /// Answers one call that may have to wait for the store.
    async fn check_waiting(
        &self,
        rules: &ActiveRules,
        protocol: Protocol,
        call: Call<'_>,
    ) -> Result<Reply, CallError> {
        let (began, limiter) = (self.clock.now(), &rules.limiter);
        match &call.rule {
            Some(name) => {
                let resolved = self.resolve_rule(rules, protocol, name, call.client, call.request);
                let (index, request) = resolved?;
                let check = CheckRequest { request: &request, target: CheckTarget::Rule(index) };
                let decision = in_call_span!(protocol, limiter.check(check));
                Ok(self.reply(rules, protocol, began, &request, decision))
            }
            None if call.client.is_some() => {
                Err(self.count_rejected(protocol, client_without_rule()))
            }
            None => {
                let decision = in_call_span!(protocol, limiter.check(&call.request));
                Ok(self.reply(rules, protocol, began, &call.request, decision))
            }
        }
    }

    /// Checks a request that this process is about to serve.
    ///
    /// The admission includes the place in a queue, with a wait of at most `max_wait`, and slots in flight.
    pub async fn admit(
        &self,
        rules: &ActiveRules,
        protocol: Protocol,
        request: &Request<'_>,
        max_wait: Span,
    ) -> (Reply, AdmittedRequest) {
        let began = self.clock.now();
        let (decision, admission) = in_call_span!(protocol, rules.limiter.admit(request, max_wait));
        (self.reply(rules, protocol, began, request, decision), AdmittedRequest::new(admission))
    }

    /// Charges a key under a limit of the caller. A cost of 0 is a peek.
    ///
    /// # Errors
    /// The key is too long; nothing was charged.
    pub async fn throttle(
        &self,
        protocol: Protocol,
        key: &str,
        limit: &Arc<Limit>,
        cost: u64,
    ) -> Result<Reply, CallError> {
        if let Some(reply) = self.throttle_now(protocol, key, limit, cost) {
            return Ok(reply);
        }
        let (began, request) = (self.clock.now(), self.throttle_request(protocol, key, cost)?);
        let rules = self.active_rules();
        let check = CheckRequest { request: &request, target: throttle::target(&rules, limit)? };
        let decision = in_call_span!(protocol, rules.limiter.check(check));
        Ok(self.reply(&rules, protocol, began, &request, decision))
    }

    /// Charges a key as [`throttle`](Self::throttle) does, if nothing has to be awaited. Returns `None` otherwise, and
    /// nothing was charged or counted.
    fn throttle_now(
        &self,
        protocol: Protocol,
        key: &str,
        limit: &Arc<Limit>,
        cost: u64,
    ) -> Option<Reply> {
        if !self.is_synchronous() {
            return None;
        }
        let (request, rules) = (throttle::request(key, cost).ok()?, self.active_rules());
        let target = throttle::target(&rules, limit).ok()?;
        self.decide_now(&rules, protocol, CheckRequest { request: &request, target })
    }

    /// Refunds `cost` to a key, at most what it has spent, and reports its state afterwards.
    ///
    /// # Errors
    /// The key is too long, or the store did not confirm the refund.
    pub async fn refund_throttle(
        &self,
        protocol: Protocol,
        key: &str,
        limit: &Arc<Limit>,
        cost: u64,
    ) -> Result<Reply, CallError> {
        let (began, request) = (self.clock.now(), self.throttle_request(protocol, key, cost)?);
        let rules = self.active_rules();
        let check = CheckRequest { request: &request, target: throttle::target(&rules, limit)? };
        let decision = rules.limiter.refund_latest(check).await;
        let decision = decision
            .map_err(|error| self.count_rejected(protocol, throttle::unconfirmed(&error)))?;
        // The reply describes a peek after the refund.
        Ok(self.reply(&rules, protocol, began, &request.cost(0), decision))
    }

    fn throttle_request<'k>(
        &self,
        protocol: Protocol,
        key: &'k str,
        cost: u64,
    ) -> Result<Request<'k>, CallError> {
        throttle::request(key, cost).map_err(|error| self.count_rejected(protocol, error))
    }

    /// Returns the index of the rule of this name, and the request in the terms of that rule.
    fn resolve_rule<'r, 'c: 'r>(
        &self,
        rules: &'r ActiveRules,
        protocol: Protocol,
        name: &str,
        client: Option<NamedClient<'c>>,
        request: Request<'c>,
    ) -> Result<(RuleIndex, Request<'r>), CallError> {
        let rules = rules.limiter.rules();
        let index = rules.user_rule_index(name);
        let Some((index, rule)) = index.and_then(|index| Some((index, rules.get(index)?))) else {
            return Err(self.count_rejected(protocol, unknown_rule(name, rules)));
        };
        let request = request_for_rule(rule, client, request);
        Ok((index, request.map_err(|error| self.count_rejected(protocol, error))?))
    }

    /// Returns the reply to a call, and records the call.
    fn reply(
        &self,
        rules: &ActiveRules,
        protocol: Protocol,
        began: Timestamp,
        request: &Request<'_>,
        decision: Decision,
    ) -> Reply {
        let at = self.clock.now();
        self.stats.record(rules, CallTiming { protocol, began, at }, [(request, &decision)]);
        let reply = Reply { decision, at, style: self.style };
        log_reply(&reply);
        reply
    }

    /// Counts a call that was not decided, logs it if it is invalid, and returns its error.
    pub fn count_rejected(&self, protocol: Protocol, error: CallError) -> CallError {
        self.stats.counters.record_rejected(protocol, &error);
        self.invalid_call_log.log(self.clock.now(), protocol, &error);
        error
    }

    /// Counts and logs a proxied request that no rule can be checked for. `detail` has the form "where: found X, wanted
    /// Y", without text of the client.
    pub fn count_malformed(&self, protocol: Protocol, detail: &'static str) {
        let (path, rest) = detail.split_once(": found ").unwrap_or(("request", detail));
        let (found, wanted) = rest.rsplit_once(", wanted ").unwrap_or((rest, "another request"));
        self.count_rejected(protocol, CallError::invalid(path, found, wanted));
    }

    /// Returns the clock of decisions.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the statistics of calls.
    pub fn stats(&self) -> &CallStats {
        &self.stats
    }

    /// Returns the metrics of this moment.
    pub fn metrics(&self, format: MetricsFormat, source_status: &SourceStatus) -> String {
        let ready = self.not_ready_reason().is_none();
        let rules = self.active_rules();
        let sources = self.stats.sources(&rules, source_status, ready);
        metrics::write(&self.stats.counters, sources, format)
    }
}

/// Counters and client ranking of the calls that this process has answered.
#[derive(Debug)]
pub struct CallStats {
    /// Counters of calls, rules and listeners.
    pub counters: ServerCounters,
    /// The clients with most requests and denials.
    pub top: TopClients,
}

impl CallStats {
    pub(crate) fn new() -> Self {
        Self { counters: ServerCounters::new(), top: TopClients::new() }
    }

    /// Assigns counters to rules that become active.
    pub(crate) fn register_rules(&self, rules: &RuleSet) -> CounterIds {
        self.counters.register_rules(rules, |number| self.top.clear_rule(number))
    }

    /// Records a call: one request and its decision, or several that were decided together. The strictest status of
    /// them is the status of the call.
    #[inline]
    pub(crate) fn record<'d, 'q: 'd>(
        &self,
        rules: &ActiveRules,
        timing: CallTiming,
        decisions: impl IntoIterator<Item = (&'d Request<'q>, &'d Decision)>,
    ) {
        let (mut status, mut blocked, mut allow_listed) = (CallStatus::Allowed, false, true);
        for (request, decision) in decisions {
            status = status.stricter(CallStatus::of(decision.status()));
            blocked |= decision.block().is_some();
            allow_listed &= decision.is_allow_listed();
            self.record_decision(rules, request, decision, timing.at);
        }
        let took = timing.at.since(timing.began);
        let listed = match (blocked, allow_listed) {
            (true, _) => Some(BlockAction::Block),
            (false, true) => Some(BlockAction::Allow),
            (false, false) => None,
        };
        self.counters.record_call(timing.protocol, status, listed, took);
    }

    #[inline]
    fn record_decision(
        &self,
        active: &ActiveRules,
        request: &Request<'_>,
        decision: &Decision,
        at: Timestamp,
    ) {
        let (rules, counter_ids) = (active.limiter().rules(), active.counter_ids());
        self.counters.record_decision(counter_ids, rules, decision);
        for outcome in decision.rule_outcomes().iter().take(MAX_RANKED_RULES) {
            if let Some(number) = counter_ids.number(outcome.rule_index)
                && let Some(rule) = rules.get(outcome.rule_index)
            {
                let denied = !outcome.outcome.is_allowed();
                self.top.record(number, rule, request, denied, at, active.limiter().blocks());
            }
        }
    }

    /// Returns the inputs of the metrics beside the counters.
    pub(crate) fn sources<'a>(
        &self,
        active_rules: &'a ActiveRules,
        source_status: &'a SourceStatus,
        ready: bool,
    ) -> MetricSources<'a> {
        MetricSources { active_rules, source_status, ready, missed: self.top.missed() }
    }
}
