//! `/v1/block`: lists, adds and removes entries of the block list.

mod entries;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tidegate_core::quota::window_of;
use tidegate_core::{CallError, Span, Timestamp, quote};
use tidegate_limiter::Limiter;
use tidegate_limiter::block::{
    BlockAction, BlockError, BlockList, BlockOrigin, Entry, Reason, Subject, SubjectError,
};
use tidegate_net::http::json::{Json, fields, text};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_net::http1::read_body;
use tidegate_rules::NetworkError;
use tidegate_service::store::AnyStore;

use self::entries::{block_entry, list, parse_id};

const ALLOWED_METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";

/// Most bytes of a body: a name, a value and a reason.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// Handles a request to `/v1/block`.
pub(crate) async fn handle(
    limiter: &Limiter<AnyStore>,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    let (blocks, now) = (&**limiter.blocks(), limiter.clock().now());
    match *request.method() {
        Method::GET | Method::HEAD => list(blocks, now, request.uri().query()),
        Method::POST | Method::DELETE => {
            let is_post = *request.method() == Method::POST;
            let body = match read_body(request, MAX_BODY_BYTES).await {
                Ok(body) => body,
                Err(rejection) => return rejection,
            };
            let json = match Json::read(&body) {
                Ok(json) => json,
                Err(error) => return response::call_error(&error),
            };
            let changed = match is_post {
                true => add(blocks, now, json, from),
                false => remove(blocks, now, json, from),
            };
            match changed {
                Ok(entry) => response::json(200, JSON, &block_entry(&entry, now)),
                Err(error) => error.response(),
            }
        }
        Method::OPTIONS => response::options(ALLOWED_METHODS),
        ref other => {
            let detail = format!("method: found {other}, wanted GET, POST or DELETE");
            response::wrong_method(&detail, ALLOWED_METHODS)
        }
    }
}

/// Adds the entry of a body: `{"ip": …, "for": …, "reason": …}`, `{"attribute": …, "value": …, "for": …}` or
/// `{"id": …, "for": …}`. It blocks, or with `"action": "allow"` it allows.
fn add(
    blocks: &BlockList,
    now: Timestamp,
    json: Json<'_>,
    from: SocketAddr,
) -> Result<Arc<Entry>, BlockChangeError> {
    const WANTED: &str = "ip, attribute, value, id, action, for or reason";
    let [ip, attribute, value, id, action, span, reason] =
        fields(json, ["ip", "attribute", "value", "id", "action", "for", "reason"], WANTED)?;
    let subject = match id {
        Some(id) if ip.is_none() && attribute.is_none() && value.is_none() => {
            let id = text("id", id)?;
            let wanted = "an id as /v1/top and /v1/block show it";
            parse_id(&id).ok_or_else(|| CallError::invalid("id", quote(&id), wanted))?
        }
        Some(_) => return Err(both_id_and_more()),
        None => subject_of_fields(blocks, ip, attribute, value)?,
    };
    let action = parse_action(action)?;
    let span = parse_duration(span)?;
    let reason = reason.map(|json| text("reason", json)).transpose()?.unwrap_or_default();
    let reason = Reason::new(&reason).map_err(|error| {
        let wanted = format!("at most {} bytes on one line", Reason::MAX_BYTES);
        CallError::invalid("reason", error.to_string(), wanted)
    })?;
    let origin = BlockOrigin::Operator;
    let (subject_of_entry, until) = (subject.clone(), now + span);
    let entry = Entry { subject: subject_of_entry, action, until, reason, origin, added: now };
    blocks.add(entry.clone(), now).map_err(|error| match error {
        BlockError::EveryAddress => {
            let wanted =
                "a network with a prefix of at least 1 bit, because /0 contains all clients";
            BlockChangeError::Invalid(CallError::invalid("ip", quote(&subject.to_string()), wanted))
        }
        error => BlockChangeError::ListFull(error),
    })?;
    tracing::info!(%from, %subject, %span, action = action.name(), "block list entry added by operator");
    Ok(Arc::new(entry))
}

/// Removes the entry of a body: `{"ip": …}`, `{"attribute": …, "value": …}` or `{"id": …}`.
fn remove(
    blocks: &BlockList,
    now: Timestamp,
    json: Json<'_>,
    from: SocketAddr,
) -> Result<Arc<Entry>, BlockChangeError> {
    let [ip, attribute, value, id] =
        fields(json, ["ip", "attribute", "value", "id"], "ip, attribute, value or id")?;
    let subject = match id {
        Some(id) if ip.is_none() && attribute.is_none() && value.is_none() => {
            let id = text("id", id)?;
            let entries = blocks.entries(now).into_iter();
            let subject = entries.map(|entry| entry.subject.clone());
            let mut subject = subject.filter(|subject| subject.to_string() == id);
            subject
                .next()
                .ok_or_else(|| BlockChangeError::NotFound { name: id.into(), larger: None })?
        }
        Some(_) => return Err(both_id_and_more()),
        None => subject_of_fields(blocks, ip, attribute, value)?,
    };
    let Some(entry) = blocks.remove(&subject, now) else {
        return Err(BlockChangeError::not_found(blocks, now, &subject));
    };
    tracing::info!(%from, %subject, action = entry.action.name(), "block list entry removed by operator");
    Ok(entry)
}

fn both_id_and_more() -> BlockChangeError {
    let wanted = "an id, or ip, or attribute and value";
    CallError::invalid("body", "an id and other fields", wanted).into()
}

/// Returns the subject of a body: an address or network, or a value of an attribute.
fn subject_of_fields(
    blocks: &BlockList,
    ip: Option<Json<'_>>,
    attribute: Option<Json<'_>>,
    value: Option<Json<'_>>,
) -> Result<Subject, CallError> {
    let (path, attribute, value) = match (ip, attribute, value) {
        (Some(ip), None, None) => ("ip", "ip".into(), text("ip", ip)?),
        (None, Some(attribute), Some(value)) => {
            ("value", text("attribute", attribute)?, text("value", value)?)
        }
        (None, Some(_), None) => {
            return Err(CallError::invalid("value", "nothing", "the value of the attribute"));
        }
        (None, None, Some(_)) => {
            return Err(CallError::invalid("attribute", "nothing", "the attribute of the value"));
        }
        (Some(_), ..) => {
            return Err(CallError::invalid("body", "both ip and another attribute", "one of them"));
        }
        (None, None, None) => {
            return Err(CallError::invalid("body", "neither ip nor attribute", "one of them"));
        }
    };
    blocks.client(&attribute, &value).map_err(|error| match error {
        SubjectError::Network(NetworkError::HostBits(whole)) => CallError::invalid(
            path,
            quote(&value),
            format!("no bits after the prefix, as in {whole}"),
        ),
        SubjectError::Network(_) => {
            CallError::invalid(path, quote(&value), "an address or a network like 10.0.0.0/8")
        }
        SubjectError::Value { found } => {
            let wanted = format!("1 to {} bytes", tidegate_core::Request::MAX_VALUE);
            CallError::invalid("value", format!("{found} bytes"), wanted)
        }
        _ => {
            let wanted = format!("1 to {} bytes of text", tidegate_core::Request::MAX_NAME);
            CallError::invalid("attribute", quote(&attribute), wanted)
        }
    })
}

fn parse_action(json: Option<Json<'_>>) -> Result<BlockAction, CallError> {
    let Some(json) = json else { return Ok(BlockAction::Block) };
    let text = text("action", json)?;
    [BlockAction::Block, BlockAction::Allow]
        .into_iter()
        .find(|action| action.name() == text)
        .ok_or_else(|| CallError::invalid("action", quote(&text), "block or allow"))
}

fn parse_duration(json: Option<Json<'_>>) -> Result<Span, CallError> {
    let wanted = "a duration like 10m or 1 hour";
    let json = json.ok_or_else(|| CallError::invalid("for", "nothing", wanted))?;
    let text = text("for", json)?;
    window_of(text.trim()).map_err(|_| CallError::invalid("for", quote(&text), wanted))
}

/// The reason why the block list was not changed.
enum BlockChangeError {
    Invalid(CallError),
    /// The list has no such entry, but may have a larger network that contains it.
    NotFound {
        name: String,
        larger: Option<String>,
    },
    ListFull(BlockError),
}

impl From<CallError> for BlockChangeError {
    fn from(error: CallError) -> Self {
        Self::Invalid(error)
    }
}

impl BlockChangeError {
    fn not_found(blocks: &BlockList, now: Timestamp, subject: &Subject) -> Self {
        let larger = match subject {
            Subject::Network(network) => blocks.entries(now).into_iter().find(|entry| {
                matches!(&entry.subject, Subject::Network(larger) if larger.contains(network))
            }),
            Subject::Client { .. } => None,
        };
        let larger = larger.map(|entry| entry.subject.to_string());
        Self::NotFound { name: subject.to_string(), larger }
    }

    fn response(self) -> Response<Body> {
        match self {
            Self::Invalid(error) => response::call_error(&error),
            Self::NotFound { name, larger } => {
                let mut detail = format!("{} is not on the list", tidegate_core::truncate(&name));
                if let Some(larger) = larger {
                    detail.push_str(&format!(", but {larger} is, which contains it"));
                }
                response::problem(StatusCode::NOT_FOUND, &detail)
            }
            Self::ListFull(error) => {
                response::problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
            }
        }
    }
}
