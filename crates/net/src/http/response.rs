//! From replies and problems to responses.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use tidegate_core::{CallError, Problem, Reply, RuleOutcome, retry_after_seconds};

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static(Problem::MEDIA_TYPE);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

pub type Body = Full<Bytes>;

/// The answer to one check, with its rate-limit headers.
pub fn reply(reply: &Reply) -> Response<Body> {
    reply_and(reply, None)
}

/// As [`reply`], with slots in flight that the request took.
pub fn reply_and(reply: &Reply, slot: Option<Slot<'_>>) -> Response<Body> {
    let problem = Problem::of(&reply.decision);
    let kind = if problem.is_some() { PROBLEM } else { JSON };
    let mut response = json(reply.status().http(), kind, &Answer { reply, problem, slot });
    for (name, value) in reply.headers() {
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// The answer to a batch.
pub fn batch<'a>(answers: &'a [Result<Reply, CallError>]) -> Response<Body> {
    #[derive(Serialize)]
    struct Batch<'a> {
        decisions: Vec<Item<'a>>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Item<'a> {
        Decision(Answer<'a>),
        Error { error: Explained<'a> },
    }
    let item = |answer: &'a Result<Reply, CallError>| match answer {
        Ok(reply) => Item::Decision(Answer { reply, problem: None, slot: None }),
        Err(fault) => Item::Error { error: Explained::of(fault) },
    };
    json(200, JSON, &Batch { decisions: answers.iter().map(item).collect() })
}

/// The answer to a call that can't be decided.
pub fn fault(fault: &CallError) -> Response<Body> {
    let explained = Explained::of(fault);
    problem_with(fault.status.http(), &fault.to_string(), Some(&explained))
}

/// The answer to a request that is no call at all.
pub fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    problem_with(status.as_u16(), detail, None::<&Explained<'_>>)
}

/// As [`problem`], with members of its own.
pub fn problem_and(status: StatusCode, detail: &str, more: &impl Serialize) -> Response<Body> {
    problem_with(status.as_u16(), detail, Some(more))
}

/// As [`problem`], for a method that the path does not have.
pub fn wrong_method(detail: &str, allowed: &'static str) -> Response<Body> {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, detail);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// What a path that only takes POST answers to everything else.
pub fn unless_post(method: &Method) -> Option<Response<Body>> {
    const ALLOWED: &str = "POST, OPTIONS";
    match *method {
        Method::POST => None,
        Method::OPTIONS => Some(options(ALLOWED)),
        ref other => {
            let detail = format!("method: found {other}, wanted POST");
            Some(wrong_method(&detail, ALLOWED))
        }
    }
}

/// The answer to a request that we have no room for right now.
pub fn overloaded(detail: &str) -> Response<Body> {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Which methods a path has.
pub fn options(allowed: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// A word for a probe.
pub fn word(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = plain(text);
    *response.status_mut() = status;
    response
}

/// A text that is not to be kept.
pub fn plain(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn problem_with(status: u16, detail: &str, more: Option<&impl Serialize>) -> Response<Body> {
    #[derive(Serialize)]
    struct Plain<'a, M> {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: &'a str,
        #[serde(flatten)]
        more: Option<&'a M>,
    }
    let title = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let title = title.unwrap_or("Error");
    json(status, PROBLEM, &Plain { kind: "about:blank", title, status, detail, more })
}

/// A body of JSON.
pub fn json(status: u16, kind: HeaderValue, body: &impl Serialize) -> Response<Body> {
    let mut bytes = Vec::with_capacity(192);
    let mut status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Err(error) = serde_json::to_writer(&mut bytes, body) {
        tracing::error!(%error, "reply not written");
        status = StatusCode::INTERNAL_SERVER_ERROR;
    }
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    // Room for the rate-limit headers too, so that the map need not grow.
    response.headers_mut().reserve(10);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Where a fault is, what was found and what is wanted.
#[derive(Serialize)]
struct Explained<'a> {
    #[serde(rename = "where")]
    place: &'a str,
    found: &'a str,
    wanted: &'a str,
}

impl<'a> Explained<'a> {
    fn of(fault: &'a CallError) -> Self {
        Self { place: &fault.path, found: &fault.found, wanted: &fault.wanted }
    }
}

/// Slots in flight by their name, and how long they are held.
#[derive(Clone, Copy)]
pub struct Slot<'a> {
    pub name: &'a str,
    pub hold_millis: u64,
}

/// `{"allowed":true,"limit":100,"remaining":45,"resetTime":1699123500,"retryAfter":0,"rule":"api"}`,
/// after the members of the problem if there is one, and before those of slots that were taken.
struct Answer<'a> {
    reply: &'a Reply,
    problem: Option<Problem>,
    slot: Option<Slot<'a>>,
}

impl Serialize for Answer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let decision = &self.reply.decision;
        let mut map = serializer.serialize_map(None)?;
        if let Some(problem) = &self.problem {
            map.serialize_entry("type", problem.kind)?;
            map.serialize_entry("title", problem.title)?;
            map.serialize_entry("status", &problem.status)?;
            map.serialize_entry("detail", &problem.detail)?;
            if !problem.violated_policies.is_empty() {
                map.serialize_entry("violated-policies", &problem.violated_policies)?;
            }
        }
        map.serialize_entry("allowed", &decision.is_allowed())?;
        match decision.strictest_rule() {
            Some(policy) => self.limits(policy, &mut map)?,
            None => {
                if decision.block().is_some() {
                    map.serialize_entry("blocked", &true)?;
                }
                if !decision.is_allowed() {
                    map.serialize_entry("retryAfter", &retry_after_seconds(decision))?;
                }
            }
        }
        if let Some(slot) = &self.slot {
            map.serialize_entry("slot", slot.name)?;
            map.serialize_entry("holdMillis", &slot.hold_millis)?;
        }
        map.end()
    }
}

impl Answer<'_> {
    /// How the rule stands that decided.
    fn limits<M: SerializeMap>(&self, policy: &RuleOutcome, map: &mut M) -> Result<(), M::Error> {
        let (decision, outcome) = (&self.reply.decision, &policy.outcome);
        map.serialize_entry("limit", &outcome.limit)?;
        map.serialize_entry("remaining", &outcome.remaining)?;
        let reset = (self.reply.at + outcome.reset_after).as_secs_ceil();
        map.serialize_entry("resetTime", &reset)?;
        if decision.is_allowed() {
            map.serialize_entry("retryAfter", &0)?;
        } else {
            // Null when no wait would make it fit.
            map.serialize_entry("retryAfter", &retry_after_seconds(decision))?;
        }
        map.serialize_entry("rule", &*policy.rule)?;
        let delay = decision.delay();
        if !delay.is_zero() {
            map.serialize_entry("delayMillis", &delay.as_micros().div_ceil(1_000))?;
        }
        Ok(())
    }
}
