//! `/v1/clients`: reads the state of one client under a rule without a charge, and resets it.

use std::borrow::Cow;
use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tidegate_core::CallError;
use tidegate_limiter::{Limiter, ResetError};
use tidegate_net::http::json::Json;
use tidegate_net::http::response::{self, Body};
use tidegate_service::call::NamedClient;
use tidegate_service::store::AnyStore;

use crate::query;
use crate::rule_client::{RuleClient, find_rule, unconfirmed};

/// The prefix of the paths.
pub(crate) const PATH: &str = "/v1/clients/";

/// Handles `GET` and `DELETE /v1/clients/{rule}/{client}`.
pub(crate) async fn handle(
    limiter: &Limiter<AnyStore>,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    const ALLOWED_METHODS: &str = "GET, HEAD, DELETE, OPTIONS";
    let is_reset = match *request.method() {
        Method::GET | Method::HEAD => false,
        Method::DELETE => true,
        Method::OPTIONS => return response::options(ALLOWED_METHODS),
        ref other => {
            let detail = format!("method: found {other}, wanted GET or DELETE");
            return response::wrong_method(&detail, ALLOWED_METHODS);
        }
    };
    let rest = request.uri().path().strip_prefix(PATH).unwrap_or_default();
    let client = match parse_path(limiter, rest, request.uri().query()) {
        Ok(client) => client,
        Err(error) => return response::call_error(&error),
    };
    if is_reset {
        match limiter.reset(client.rule.name(), &client.request).await {
            Ok(()) => {}
            Err(ResetError::Store(error)) => return unconfirmed(&error),
            Err(error) => return response::problem(StatusCode::NOT_FOUND, &error.to_string()),
        }
        let (rule, id) = (client.rule.name(), client.id(limiter));
        tracing::info!(%from, rule, client = id, "client reset by operator");
    }
    client.response(limiter).await
}

/// Parses `{rule}/{client}`, or `{rule}?user=alice&path=/` for a rule that counts by several attributes.
fn parse_path<'a>(
    limiter: &'a Limiter<AnyStore>,
    rest: &'a str,
    query: Option<&'a str>,
) -> Result<RuleClient<'a>, CallError> {
    let (rule, client) = match rest.split_once('/') {
        Some((rule, client)) => (rule, Some(query::decode_segment("client", client)?)),
        None => (rest, None),
    };
    let (rule_index, rule) = find_rule(limiter, &query::decode_segment("rule", rule)?)?;
    let parts = query::pairs(query)?;
    let client = match client {
        Some(_) if !parts.is_empty() => {
            return Err(CallError::invalid("query", "a client, as in the path", "one of them"));
        }
        None if parts.is_empty() => None,
        None => Some(NamedClient::Parts(parts)),
        // For a rule that counts by one attribute, a leading brace is part of the value.
        Some(client) if rule.per().len() > 1 && client.starts_with('{') => {
            Some(parse_object(&client)?)
        }
        Some(client) => Some(NamedClient::Value(client)),
    };
    RuleClient::new(rule_index, rule, client, 0)
}

fn parse_object(text: &str) -> Result<NamedClient<'static>, CallError> {
    let client = NamedClient::from_json(Json::read(text.as_bytes())?)?;
    let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
    Ok(match client {
        NamedClient::Value(value) => NamedClient::Value(owned(value)),
        NamedClient::Parts(parts) => NamedClient::Parts(
            parts.into_iter().map(|(name, value)| (owned(name), owned(value))).collect(),
        ),
    })
}
