//! `/v1/clients`: how one client stands under a rule, without charging it, and a way to start it over.

use std::borrow::Cow;
use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tidegate_core::CallError;
use tidegate_limiter::{ForgetError, Limiter};
use tidegate_net::http::json::Json;
use tidegate_net::http::response::{self, Body};
use tidegate_service::call::NamedClient;
use tidegate_service::store::AnyStore;

use crate::query;
use crate::standing::{Asked, found, unconfirmed};

/// What the path of a client begins with.
pub(crate) const PATH: &str = "/v1/clients/";

/// Answers `GET` and `DELETE /v1/clients/{rule}/{client}`.
pub(crate) async fn answer(
    limiter: &Limiter<AnyStore>,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    const ALLOWED: &str = "GET, HEAD, DELETE, OPTIONS";
    let forgets = match *request.method() {
        Method::GET | Method::HEAD => false,
        Method::DELETE => true,
        Method::OPTIONS => return response::options(ALLOWED),
        ref other => {
            let detail = format!("method: found {other}, wanted GET or DELETE");
            return response::wrong_method(&detail, ALLOWED);
        }
    };
    let rest = request.uri().path().strip_prefix(PATH).unwrap_or_default();
    let asked = match in_path(limiter, rest, request.uri().query()) {
        Ok(asked) => asked,
        Err(fault) => return response::call_error(&fault),
    };
    if forgets {
        match limiter.forget(asked.rule.name(), &asked.request).await {
            Ok(()) => {}
            Err(ForgetError::Store(error)) => return unconfirmed(&error),
            Err(error) => return response::problem(StatusCode::NOT_FOUND, &error.to_string()),
        }
        let (rule, client) = (asked.rule.name(), asked.id(limiter));
        tracing::info!(%from, rule, client, "what a client has spent was forgotten");
    }
    asked.response(limiter).await
}

/// Reads `{rule}/{client}`, or `{rule}?user=alice&path=/` for a rule that counts by several.
fn in_path<'a>(
    limiter: &'a Limiter<AnyStore>,
    rest: &'a str,
    query: Option<&'a str>,
) -> Result<Asked<'a>, CallError> {
    let (rule, client) = match rest.split_once('/') {
        Some((rule, client)) => (rule, Some(query::part("client", client)?)),
        None => (rest, None),
    };
    let (rule_index, rule) = found(limiter, &query::part("rule", rule)?)?;
    let parts = query::pairs(query)?;
    let client = match client {
        Some(_) if !parts.is_empty() => {
            return Err(CallError::invalid("query", "a client as in the path", "one of them"));
        }
        None if parts.is_empty() => None,
        None => Some(NamedClient::Parts(parts)),
        // A client of a rule that counts by one attribute may be called anything.
        Some(client) if rule.per().len() > 1 && client.starts_with('{') => Some(object(&client)?),
        Some(client) => Some(NamedClient::Value(client)),
    };
    Asked::of(rule_index, rule, client, 0)
}

fn object(text: &str) -> Result<NamedClient<'static>, CallError> {
    let client = NamedClient::from_json(Json::read(text.as_bytes())?)?;
    let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
    Ok(match client {
        NamedClient::Value(value) => NamedClient::Value(owned(value)),
        NamedClient::Parts(parts) => NamedClient::Parts(
            parts.into_iter().map(|(name, value)| (owned(name), owned(value))).collect(),
        ),
    })
}
