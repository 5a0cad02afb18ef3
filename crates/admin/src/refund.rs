//! `/v1/refund`: gives a client something back.

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

use crate::standing::{Asked, found, unconfirmed};

/// Longest body in bytes: a rule, a client and a cost.
const MAX_BODY: usize = 64 * 1024;

/// Answers `POST /v1/refund`. Never more than is spent is given back.
pub(crate) async fn answer(
    limiter: &Limiter<AnyStore>,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    if let Some(refusal) = response::require_post(request.method()) {
        return refusal;
    }
    let body = match read_body(request, MAX_BODY).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let asked = match Json::read(&body).and_then(|json| read(limiter, json)) {
        Ok(asked) => asked,
        Err(fault) => return response::call_error(&fault),
    };
    if let Err(error) = limiter.refund_latest(asked.claim()).await {
        return unconfirmed(&error);
    }
    let (rule, client, cost) = (asked.rule.name(), asked.id(limiter), asked.request.costs());
    tracing::info!(%from, rule, client, cost, "a client was given something back");
    asked.response(limiter).await
}

/// Reads `{"rule": …, "client": …, "cost": …}`.
fn read<'a>(limiter: &'a Limiter<AnyStore>, json: Json<'a>) -> Result<Asked<'a>, CallError> {
    let [rule, client, cost] = fields(json, ["rule", "client", "cost"], "rule, client or cost")?;
    let rule = rule.ok_or_else(|| CallError::invalid("rule", "nothing", "the name of a rule"))?;
    let (rule_index, rule) = found(limiter, &text("rule", rule)?)?;
    let cost = cost.map_or(Ok(1), |cost| whole_number("cost", &cost))?;
    if cost == 0 {
        return Err(CallError::invalid("cost", "0", "what to give back, 1 or more"));
    }
    Asked::of(rule_index, rule, client.map(NamedClient::from_json).transpose()?, cost)
}
