//! A client of a rule, and its state.

use std::borrow::Cow;

use hyper::{Response, StatusCode};
use tidegate_api::{ClientName, ClientStatus};
use tidegate_core::{CallError, Request, RuleIndex, quote};
use tidegate_limiter::{CheckRequest, CheckTarget, Limiter, StoreError};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_rules::Rule;
use tidegate_service::call::{NamedClient, request_for_rule};
use tidegate_service::service::unknown_rule;
use tidegate_service::store::AnyStore;
use tidegate_service::top;

/// A client of a rule.
#[derive(Debug)]
pub(crate) struct RuleClient<'a> {
    pub(crate) rule: &'a Rule,
    rule_index: RuleIndex,
    /// A request of the client. Its cost is the amount to charge or refund.
    pub(crate) request: Request<'a>,
}

impl<'a> RuleClient<'a> {
    /// Returns a client of a rule, with the cost of an operation on it.
    ///
    /// # Errors
    /// The client does not fit the rule.
    pub(crate) fn new(
        rule_index: RuleIndex,
        rule: &'a Rule,
        client: Option<NamedClient<'a>>,
        cost: u64,
    ) -> Result<Self, CallError> {
        let request = request_for_rule(rule, client, Request::new().cost(cost))?;
        Ok(Self { rule, rule_index, request })
    }

    /// Returns the check of this rule for the client.
    pub(crate) fn check(&self) -> CheckRequest<'_, 'a> {
        CheckRequest { request: &self.request, target: CheckTarget::Rule(self.rule_index) }
    }

    /// Returns the id of the client in the block list; `None` for a bucket that all clients share.
    pub(crate) fn id(&self, limiter: &Limiter<AnyStore>) -> Option<String> {
        let subject = limiter.blocks().client_of(self.rule, &self.request);
        subject.map(|subject| subject.to_string())
    }

    /// Returns the current state of the client, by a peek.
    pub(crate) async fn response(&self, limiter: &Limiter<AnyStore>) -> Response<Body> {
        let peek = limiter.peek_rules(self.check()).await;
        if !peek.undecided().is_empty() {
            let detail = "the store is unavailable, so the state of the client is unknown";
            return response::problem(StatusCode::SERVICE_UNAVAILABLE, detail);
        }
        let now = limiter.clock().now();
        let client = top::ClientIdentity::new(self.rule, &self.request, limiter.blocks());
        let entry = limiter.blocks().find(&self.request, now);
        let is_allow_listed = entry.as_ref().is_some_and(|entry| entry.allows(now));
        let block = entry.and_then(|entry| entry.block(now));
        let outcome = peek.rule_outcomes().first().map(|rule| rule.outcome);
        let wait = outcome.and_then(|outcome| outcome.retry_after());
        let wait = block.as_ref().map(|block| block.retry_after).max(wait);
        let wait = wait.filter(|_| !is_allow_listed);
        let status = ClientStatus {
            rule: Cow::from(self.rule.name()),
            id: client.as_ref().map(|client| client.id().into()),
            client: client.as_ref().and_then(|client| client.name.as_ref()).map(client_name),
            allowed: is_allow_listed
                || (block.is_none() && outcome.is_none_or(|outcome| outcome.is_allowed())),
            limit: outcome.map(|outcome| outcome.limit),
            remaining: outcome.map(|outcome| outcome.remaining),
            reset_time: outcome.map(|outcome| (now + outcome.reset_after).as_secs_ceil()),
            retry_after: wait.map(|wait| wait.as_secs_ceil()),
            blocked: block.is_some(),
        };
        response::json(200, JSON, &status)
    }
}

/// Returns the rule of this name, internal or not, and its index.
pub(crate) fn find_rule<'a>(
    limiter: &'a Limiter<AnyStore>,
    name: &str,
) -> Result<(RuleIndex, &'a Rule), CallError> {
    let rules = limiter.rules();
    if name.is_empty() {
        return Err(CallError::invalid("rule", quote(name), "/v1/clients/RULE/CLIENT"));
    }
    let index = rules.rule_index(name);
    let rule = index.and_then(|index| Some((index, rules.get(index)?)));
    rule.ok_or_else(|| unknown_rule(name, rules))
}

/// Returns the error of a change that the store did not confirm. The change may have been made.
pub(crate) fn unconfirmed(error: &StoreError) -> Response<Body> {
    let detail = format!("not confirmed by the store: {error}");
    response::problem(StatusCode::SERVICE_UNAVAILABLE, &detail)
}

/// Returns the JSON of a client's name.
pub(crate) fn client_name(name: &tidegate_rules::ClientName) -> ClientName<Cow<'_, str>> {
    match name {
        tidegate_rules::ClientName::Value(value) => ClientName::Value(Cow::from(&**value)),
        tidegate_rules::ClientName::Parts(parts) => {
            let pairs = parts.iter().map(|(name, value)| (Cow::from(&**name), Cow::from(&**value)));
            ClientName::Parts(pairs.collect())
        }
    }
}
