//! A call, in the form that all protocols share.

use std::borrow::Cow;

use tidegate_core::{CallError, Reply, Request, Timestamp, escape_text, truncate};
use tidegate_net::http::json::{Json, text_pairs};
use tidegate_rules::{AttributeChain, Rule};

/// A request to check, decoded from any protocol.
#[derive(Debug, Default)]
pub struct Call<'a> {
    /// The only rule to check, regardless of its `match`. `None` checks every rule that matches.
    pub rule: Option<Cow<'a, str>>,
    /// The client, in the terms of that rule.
    pub client: Option<NamedClient<'a>>,
    /// The other attributes of the request, and its cost.
    pub request: Request<'a>,
}

/// The listener that a call arrived at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The HTTP listener.
    Http,
    /// The gRPC listener.
    Grpc,
    /// The RESP listener.
    Resp,
    /// The gateway.
    Gateway,
}

impl Protocol {
    pub(crate) const ALL: [Self; 4] = [Self::Http, Self::Grpc, Self::Resp, Self::Gateway];

    /// Returns the name of the listener.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Gateway => "gateway",
        }
    }
}

/// The client in a call that names a rule.
#[derive(Debug)]
pub enum NamedClient<'a> {
    /// The value of the first alternative of the rule's only `per` entry.
    Value(Cow<'a, str>),
    /// Attributes that the rule counts by, one for each `per` entry.
    Parts(Vec<(Cow<'a, str>, Cow<'a, str>)>),
}

impl<'a> NamedClient<'a> {
    /// Parses a client from JSON: a string, or an object of strings.
    ///
    /// # Errors
    /// The value is neither.
    pub fn from_json(json: Json<'a>) -> Result<Self, CallError> {
        match json {
            Json::Text(value) => Ok(Self::Value(value)),
            Json::Object(_) => text_pairs("client", json).map(Self::Parts),
            other => {
                Err(CallError::invalid("client", other.shown(), "a text or an object of texts"))
            }
        }
    }

    /// Returns the same client with its values [escaped](escape_text), as those of a request are.
    pub fn escaped(self) -> Self {
        match self {
            Self::Value(value) => Self::Value(escape_text(value)),
            Self::Parts(parts) => {
                let parts = parts.into_iter().map(|(name, value)| (name, escape_text(value)));
                Self::Parts(parts.collect())
            }
        }
    }
}

/// Returns the request of a call with one value and no attributes, in the terms of a rule that counts by it. Returns
/// `None` for any other call, and for one that is invalid: [`request_for_rule`] handles all of them.
#[inline]
pub(crate) fn request_for_value<'r>(rule: &'r Rule, call: &'r Call<'_>) -> Option<Request<'r>> {
    let (Some(NamedClient::Value(value)), [chain]) = (&call.client, rule.per()) else {
        return None;
    };
    if call.request.attributes().next().is_some() {
        return None;
    }
    let mut request = Request::new().cost(call.request.costs());
    request.insert(chain.attributes().next()?, &**value).ok()?;
    Some(request)
}

/// Returns a request of the client that one value names, in the terms of a rule that counts by one attribute.
pub(crate) fn request_of_client<'r>(rule: &'r Rule, value: &'r str) -> Option<Request<'r>> {
    let attribute = rule.per().first()?.attributes().next()?;
    Request::new().with(attribute, value).ok()
}

/// Returns the request in the terms of a rule: its client under the attributes that the rule counts by.
///
/// The bucket is the same as for a request that has those attributes.
///
/// # Errors
/// The client does not fit the rule.
pub fn request_for_rule<'r, 'c: 'r>(
    rule: &'r Rule,
    client: Option<NamedClient<'c>>,
    request: Request<'c>,
) -> Result<Request<'r>, CallError> {
    let mut named = Request::new().cost(request.costs());
    match client {
        None if rule.per().is_empty() || request.attributes().next().is_some() => {
            return Ok(request.within());
        }
        None => return Err(CallError::invalid("client", "nothing", wanted_client(rule))),
        Some(NamedClient::Value(value)) => match rule.per() {
            // A rule without `per` has one bucket, so the client makes no difference.
            [] => {}
            [chain] => {
                let first = chain.attributes().next().unwrap_or_default();
                insert(&mut named, "client", first, value)?;
            }
            _ => return Err(CallError::invalid("client", "a text", wanted_client(rule))),
        },
        Some(NamedClient::Parts(parts)) => {
            for (name, value) in parts {
                let known = rule
                    .per()
                    .iter()
                    .any(|chain| chain.attributes().any(|attribute| attribute == name));
                let path = || format!("client.{}", truncate(&name));
                if !known {
                    return Err(CallError::invalid(path(), "a value", wanted_client(rule)));
                }
                if named.get(&name).is_some() {
                    return Err(CallError::invalid(path(), "it twice", "it once"));
                }
                let path = path();
                insert(&mut named, &path, name, value)?;
            }
            if rule.per().iter().any(|chain| chain.pick(&named).is_none()) {
                return Err(CallError::invalid("client", "too little", wanted_client(rule)));
            }
        }
    }
    for (name, value) in request.attributes() {
        let path = format!("attributes.{}", truncate(name));
        if named.get(name).is_some() {
            return Err(CallError::invalid(path, "another value", "none, because client names it"));
        }
        insert(&mut named, &path, name.to_owned(), value.to_owned())?;
    }
    Ok(named)
}

pub(crate) fn insert<'a>(
    request: &mut Request<'a>,
    path: &str,
    name: impl Into<Cow<'a, str>>,
    value: impl Into<Cow<'a, str>>,
) -> Result<(), CallError> {
    request.insert(name, value).map_err(|error| CallError::rejected_attribute(path, &error))
}

/// Returns the wanted part of an error: `the value of api_key`, or `an object with user | ip and path`.
fn wanted_client(rule: &Rule) -> String {
    match rule.per() {
        [] => format!("none, because rule {:?} has one bucket for all", rule.name()),
        [chain] if chain.attributes().len() == 1 => {
            format!("the value of {chain}, by which rule {:?} counts", rule.name())
        }
        chains => {
            let names: Vec<&str> = chains.iter().map(AttributeChain::as_str).collect();
            let names = names.join(" and ");
            format!("an object with {names}, by which rule {:?} counts", rule.name())
        }
    }
}

/// The listener of a call, its start and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTiming {
    pub(crate) protocol: Protocol,
    pub(crate) began: Timestamp,
    pub(crate) at: Timestamp,
}

/// Returns whether [`log_reply`] logs anything.
#[inline]
pub(crate) fn logs_replies() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

/// Logs one line about a call, without the client: its identity may be a secret.
#[inline]
pub(crate) fn log_reply(reply: &Reply) {
    if logs_replies() {
        log_debug(reply);
    }
}

#[cold]
fn log_debug(reply: &Reply) {
    let strictest = reply.decision.strictest_rule();
    tracing::debug!(
        status = ?reply.status(),
        rule = strictest.map(|outcome| &*outcome.rule),
        remaining = strictest.map(|outcome| outcome.outcome.remaining),
        blocked = reply.decision.block().is_some(),
        "checked"
    );
}

/// Returns the error of a call that has a client and no rule.
pub(crate) fn client_without_rule() -> CallError {
    CallError::invalid("rule", "nothing", "the rule that client belongs to")
}
