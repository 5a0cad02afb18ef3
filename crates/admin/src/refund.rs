//! `/v1/refund`: refunds tokens to a client.

use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tidegate_core::CallError;
use tidegate_limiter::Limiter;
use tidegate_net::http::json::{Json, fields, text, whole_number};
use tidegate_net::http::response::{self, Body};
use tidegate_net::http1::read_body;
use tidegate_service::call::NamedClient;
use tidegate_service::store::AnyStore;

use crate::rule_client::{RuleClient, find_rule, unconfirmed};

/// Most bytes of a body: a rule, a client and a cost.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Handles `POST /v1/refund`. At most what the client has spent is refunded.
pub(crate) async fn handle(
    limiter: &Limiter<AnyStore>,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    if let Some(rejection) = response::require_post(request.method()) {
        return rejection;
    }
    let body = match read_body(request, MAX_BODY_BYTES).await {
        Ok(body) => body,
        Err(rejection) => return rejection,
    };
    let client = match Json::read(&body).and_then(|json| parse_body(limiter, json)) {
        Ok(client) => client,
        Err(error) => return response::call_error(&error),
    };
    if let Err(error) = limiter.refund_latest(client.check()).await {
        return unconfirmed(&error);
    }
    let (rule, id, cost) = (client.rule.name(), client.id(limiter), client.request.costs());
    tracing::info!(%from, rule, client = id, cost, "client refunded by operator");
    client.response(limiter).await
}

/// Parses `{"rule": …, "client": …, "cost": …}`.
fn parse_body<'a>(
    limiter: &'a Limiter<AnyStore>,
    json: Json<'a>,
) -> Result<RuleClient<'a>, CallError> {
    let [rule, client, cost] = fields(json, ["rule", "client", "cost"], "rule, client or cost")?;
    let rule = rule.ok_or_else(|| CallError::invalid("rule", "nothing", "the name of a rule"))?;
    let (rule_index, rule) = find_rule(limiter, &text("rule", rule)?)?;
    let cost = cost.map_or(Ok(1), |cost| whole_number("cost", &cost))?;
    if cost == 0 {
        return Err(CallError::invalid("cost", "0", "the tokens to refund, 1 or more"));
    }
    RuleClient::new(rule_index, rule, client.map(NamedClient::from_json).transpose()?, cost)
}
