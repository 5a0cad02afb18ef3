//! HTTP responses for replies, errors and plain texts.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Body as _;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use tidegate_api::{ErrorDetail, ProblemBody};
use tidegate_core::{CallError, Problem, Reply, RuleOutcome, Timestamp, retry_after_seconds};

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The value of `X-Content-Type-Options`. Every response that this process makes itself has it, so that a browser never
/// guesses another type.
pub const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
pub(crate) const PROBLEM: HeaderValue = HeaderValue::from_static(Problem::MEDIA_TYPE);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

pub type Body = Full<Bytes>;

/// Returns the response to one check, with its rate-limit headers.
pub fn reply(reply: &Reply) -> Response<Body> {
    reply_with_slot(reply, None)
}

/// Returns the response to one check, with the slots that it holds.
pub fn reply_with_slot(reply: &Reply, slot: Option<HeldSlot<'_>>) -> Response<Body> {
    let problem = Problem::of(&reply.decision);
    let kind = if problem.is_some() { PROBLEM } else { JSON };
    let mut response = json(reply.status().http(), kind, &ReplyBody { reply, problem, slot });
    for (name, value) in reply.headers() {
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Returns the response to a batch of checks.
pub fn batch<'a>(results: &'a [Result<Reply, CallError>]) -> Response<Body> {
    #[derive(Serialize)]
    struct Batch<'a> {
        decisions: Vec<Item<'a>>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Item<'a> {
        Decision(ReplyBody<'a>),
        Error { error: ErrorDetail<&'a str> },
    }
    let item = |result: &'a Result<Reply, CallError>| match result {
        Ok(reply) => Item::Decision(ReplyBody { reply, problem: None, slot: None }),
        Err(error) => Item::Error { error: error_detail(error) },
    };
    json(200, JSON, &Batch { decisions: results.iter().map(item).collect() })
}

/// Returns the response to an invalid or failed call, with the path, the found and the wanted value.
pub fn call_error(error: &CallError) -> Response<Body> {
    let status =
        StatusCode::from_u16(error.status.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let detail = error.to_string();
    let problem = ProblemBody { error: Some(error_detail(error)), ..problem_body(status, &detail) };
    problem_json(status, &problem)
}

/// Returns a problem response (RFC 9457) with this detail.
pub fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    problem_json(status, &problem_body(status, detail))
}

/// Returns the response to a method that the path does not allow.
pub fn wrong_method(detail: &str, allowed: &'static str) -> Response<Body> {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, detail);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Returns the response of a path that allows only POST; `None` for POST.
pub fn require_post(method: &Method) -> Option<Response<Body>> {
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

/// Returns the response to a request that is rejected because of load: 503 with `Retry-After: 1`.
pub fn overloaded(detail: &str) -> Response<Body> {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Returns the response to OPTIONS, with the allowed methods.
pub fn options(allowed: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Returns a text with a status, for a health probe. It is not cached.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = text_no_store(text);
    *response.status_mut() = status;
    response
}

/// Returns a text with status 200. It is not cached.
pub fn text_no_store(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns the body of a problem without further members.
pub fn problem_body(status: StatusCode, detail: &str) -> ProblemBody<&str> {
    let title = status.canonical_reason().unwrap_or("Error");
    ProblemBody {
        kind: "about:blank",
        title,
        status: status.as_u16(),
        detail,
        ..ProblemBody::default()
    }
}

/// Returns a response with a problem body.
pub fn problem_json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    json(status.as_u16(), PROBLEM, body)
}

/// Returns a response with a JSON body.
pub fn json(status: u16, kind: HeaderValue, body: &impl Serialize) -> Response<Body> {
    let mut bytes = Vec::with_capacity(192);
    let mut status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Err(error) = serde_json::to_writer(&mut bytes, body) {
        tracing::error!(%error, "cannot encode a response, returning status 500");
        status = StatusCode::INTERNAL_SERVER_ERROR;
    }
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    // With space for the rate-limit headers, so that the map does not grow.
    response.headers_mut().reserve(10);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn error_detail(error: &CallError) -> ErrorDetail<&str> {
    ErrorDetail { place: &error.path, found: &error.found, wanted: &error.wanted }
}

/// The token of the slots that a request holds, and the time after which they expire.
#[derive(Clone, Copy)]
pub struct HeldSlot<'a> {
    pub name: &'a str,
    pub hold_millis: u64,
}

/// Encodes the body of the response to one check. Returns whether it is a problem.
///
/// # Errors
/// A bug of the encoder.
pub(crate) fn write_reply_body(body: &mut Vec<u8>, reply: &Reply) -> serde_json::Result<bool> {
    let problem = Problem::of(&reply.decision);
    let is_problem = problem.is_some();
    serde_json::to_writer(body, &ReplyBody { reply, problem, slot: None })?;
    Ok(is_problem)
}

/// Encodes a reply: `{"allowed":true,"limit":100,"remaining":45,"resetTime":1699123500,"retryAfter":0,"rule":"api"}`,
/// The members of a problem come first, those of held slots last.
struct ReplyBody<'a> {
    reply: &'a Reply,
    problem: Option<Problem>,
    slot: Option<HeldSlot<'a>>,
}

impl Serialize for ReplyBody<'_> {
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
            Some(rule) => self.encode_limits(rule, &mut map)?,
            None => {
                if decision.block().is_some() {
                    map.serialize_entry("blocked", &true)?;
                }
                if decision.is_allow_listed() {
                    map.serialize_entry("allowListed", &true)?;
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

impl ReplyBody<'_> {
    /// Encodes the state of the strictest rule.
    fn encode_limits<M: SerializeMap>(
        &self,
        rule: &RuleOutcome,
        map: &mut M,
    ) -> Result<(), M::Error> {
        let (decision, outcome) = (&self.reply.decision, &rule.outcome);
        map.serialize_entry("limit", &outcome.limit)?;
        map.serialize_entry("remaining", &outcome.remaining)?;
        let reset = (self.reply.at + outcome.reset_after).as_secs_ceil();
        map.serialize_entry("resetTime", &reset)?;
        if decision.is_allowed() {
            map.serialize_entry("retryAfter", &0)?;
        } else {
            // Null if the request can never be admitted.
            map.serialize_entry("retryAfter", &retry_after_seconds(decision))?;
        }
        map.serialize_entry("rule", &*rule.rule)?;
        let delay = decision.delay();
        if !delay.is_zero() {
            map.serialize_entry("delayMillis", &delay.as_micros().div_ceil(1_000))?;
        }
        Ok(())
    }
}

/// Encoded responses that are not sent yet. Their bytes are those that hyper would send.
#[derive(Debug, Default)]
pub struct ResponseBuffer {
    bytes: Vec<u8>,
    /// The body of the current response. Its length is part of the head.
    body: Vec<u8>,
    date: DateText,
}

impl ResponseBuffer {
    /// Returns the bytes of all responses.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends the response to one check, as [`reply`] returns it.
    pub fn push_reply(&mut self, reply: &Reply) {
        self.body.clear();
        let is_problem = match write_reply_body(&mut self.body, reply) {
            Ok(is_problem) => is_problem,
            Err(_) => return self.push(&mut self::reply(reply), reply.at),
        };
        let status = StatusCode::from_u16(reply.status().http());
        self.push_status(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
        let kind = if is_problem { PROBLEM } else { JSON };
        self.push_header(&CONTENT_TYPE, kind.as_bytes());
        reply.visit_headers(|name, value| push_line(&mut self.bytes, name, value.as_bytes()));
        self.push_end(reply.at);
    }

    /// Appends any response, with the time that its `Date` has.
    pub fn push(&mut self, response: &mut Response<Body>, at: Timestamp) {
        self.body.clear();
        // The body is in memory, so that it is ready at once.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(frame))) =
            Pin::new(response.body_mut()).poll_frame(&mut context)
        {
            self.body.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        }
        self.push_status(response.status());
        for (name, value) in response.headers() {
            self.push_header(name, value.as_bytes());
        }
        self.push_end(at);
    }

    fn push_status(&mut self, status: StatusCode) {
        self.bytes.extend_from_slice(b"HTTP/1.1 ");
        self.bytes.extend_from_slice(status.as_str().as_bytes());
        self.bytes.push(b' ');
        let reason = status.canonical_reason().unwrap_or("<none>");
        self.bytes.extend_from_slice(reason.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn push_header(&mut self, name: &HeaderName, value: &[u8]) {
        push_line(&mut self.bytes, name.as_str(), value);
    }

    /// Appends the last headers and the body.
    fn push_end(&mut self, at: Timestamp) {
        self.push_header(&X_CONTENT_TYPE_OPTIONS, NOSNIFF.as_bytes());
        let mut length = itoa::Buffer::new();
        push_line(&mut self.bytes, "content-length", length.format(self.body.len()).as_bytes());
        push_line(&mut self.bytes, "date", self.date.at(at));
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes.extend_from_slice(&self.body);
    }
}

fn push_line(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

/// The text of a `Date` header, formatted once per second.
#[derive(Debug, Default)]
pub struct DateText {
    second: u64,
    text: String,
}

impl DateText {
    /// Returns the text for this time.
    pub fn at(&mut self, time: Timestamp) -> &[u8] {
        let second = time.as_micros() / 1_000_000;
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        }
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use serde::de::DeserializeOwned;
    use tidegate_api::{AcquireReply, BatchReply, DecisionBody, DenialBody};
    use tidegate_core::{
        Algorithm, Block, Decision, HeaderStyle, Limit, Outcome, Quota, RuleIndex, RuleOutcomes,
        Span, Timestamp, UndecidedRule, Verdict,
    };

    use super::*;

    fn outcomes(verdict: Verdict) -> RuleOutcomes {
        let limit = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_second(5)).unwrap());
        let outcome = Outcome { limit: 5, remaining: 2, reset_after: Span::SECOND, verdict };
        let rule = RuleOutcome {
            rule_index: RuleIndex(0),
            rule: "api".into(),
            limit,
            outcome,
            shadow: false,
        };
        RuleOutcomes::from_vec(vec![rule])
    }

    fn replied(decision: Decision) -> Reply {
        Reply { decision, at: Timestamp::from_secs(1_780_000_000), style: HeaderStyle::default() }
    }

    async fn text(response: Response<Body>) -> String {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[track_caller]
    fn assert_rewritten<T: Serialize + DeserializeOwned>(body: &str) {
        let read: T = serde_json::from_str(body).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), body);
    }

    /// The encoder is written by hand because every check passes through it.
    #[tokio::test]
    async fn encoded_replies_are_the_bytes_of_their_api_types() {
        let allow = |delay| Decision::of(outcomes(Verdict::Allow { delay, refund_token: None }));
        for decision in
            [allow(Span::ZERO), allow(Span::from_micros(1_500)), Decision::of(RuleOutcomes::new())]
        {
            let reply = replied(decision);
            assert_rewritten::<DecisionBody>(&text(super::reply(&reply)).await);
            let slot = HeldSlot { name: "AbC-1", hold_millis: 60_000 };
            assert_rewritten::<AcquireReply>(&text(reply_with_slot(&reply, Some(slot))).await);
            assert_rewritten::<BatchReply>(
                &text(batch(&[Ok(reply), Err(CallError::invalid("cost", "-1", "0"))])).await,
            );
        }
        let deny = |retry_after| Decision::of(outcomes(Verdict::Deny { retry_after }));
        let block = |rule: Option<&str>| {
            Decision::blocked(Block { rule: rule.map(Into::into), retry_after: Span::SECOND })
        };
        let undecided = UndecidedRule { rule_index: RuleIndex(0), rule: "api".into() };
        let unavailable = Decision::of(RuleOutcomes::new()).with_undecided(vec![undecided], true);
        for decision in
            [deny(Some(Span::SECOND)), deny(None), block(None), block(Some("login")), unavailable]
        {
            let reply = replied(decision);
            let body = text(super::reply(&reply)).await;
            assert_rewritten::<DenialBody>(&body);
            assert!(!serde_json::from_str::<DenialBody>(&body).unwrap().decision.allowed, "{body}");
        }
    }

    #[tokio::test]
    async fn problems_are_the_bytes_of_their_api_type() {
        let invalid = CallError::invalid("cost", "-1", "a whole number");
        assert_rewritten::<ProblemBody>(&text(call_error(&invalid)).await);
        let body = text(problem(StatusCode::NOT_FOUND, "no such path")).await;
        assert_rewritten::<ProblemBody>(&body);
        assert_eq!(
            body,
            r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"no such path"}"#
        );
    }
}
