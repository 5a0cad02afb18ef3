//! `/v1/block`: who is blocked, and the ways onto the list and off it.

mod entries;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tidegate_core::quota::window_of;
use tidegate_core::{CallError, Span, Timestamp, quote};
use tidegate_limiter::Limiter;
use tidegate_limiter::block::{
    BlockError, BlockList, BlockOrigin, Entry, Reason, Subject, SubjectError,
};
use tidegate_net::http::json::{Json, fields, text};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_net::http1::read_body;
use tidegate_rules::NetworkError;
use tidegate_service::store::AnyStore;

use self::entries::{block_entry, list, of_id};

const ALLOWED: &str = "GET, HEAD, POST, DELETE, OPTIONS";

/// Longest body in bytes: a name, a value and a reason.
const MAX_BODY: usize = 16 * 1024;

/// Answers a request about the list.
pub(crate) async fn answer(
    limiter: &Limiter<AnyStore>,
    request: Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    let (blocks, now) = (&**limiter.blocks(), limiter.clock().now());
    match *request.method() {
        Method::GET | Method::HEAD => list(blocks, now, request.uri().query()),
        Method::POST | Method::DELETE => {
            let adding = *request.method() == Method::POST;
            let body = match read_body(request, MAX_BODY).await {
                Ok(body) => body,
                Err(refusal) => return refusal,
            };
            let json = match Json::read(&body) {
                Ok(json) => json,
                Err(fault) => return response::call_error(&fault),
            };
            let changed = match adding {
                true => add(blocks, now, json, from),
                false => remove(blocks, now, json, from),
            };
            match changed {
                Ok(entry) => response::json(200, JSON, &block_entry(&entry, now)),
                Err(refusal) => refusal.response(),
            }
        }
        Method::OPTIONS => response::options(ALLOWED),
        ref other => {
            let detail = format!("method: found {other}, wanted GET, POST or DELETE");
            response::wrong_method(&detail, ALLOWED)
        }
    }
}

/// Reads `{"ip": …, "for": …, "reason": …}`, `{"attribute": …, "value": …, "for": …}` or
/// `{"id": …, "for": …}`, and blocks.
fn add(
    blocks: &BlockList,
    now: Timestamp,
    json: Json<'_>,
    from: SocketAddr,
) -> Result<Arc<Entry>, Refusal> {
    const WANTED: &str = "ip, attribute, value, id, for or reason";
    let [ip, attribute, value, id, span, reason] =
        fields(json, ["ip", "attribute", "value", "id", "for", "reason"], WANTED)?;
    let subject = match id {
        Some(id) if ip.is_none() && attribute.is_none() && value.is_none() => {
            let id = text("id", id)?;
            let wanted = "an id as /v1/top and /v1/block show it";
            of_id(&id).ok_or_else(|| CallError::invalid("id", quote(&id), wanted))?
        }
        Some(_) => return Err(both_id_and_more()),
        None => named(blocks, ip, attribute, value)?,
    };
    let span = length(span)?;
    let reason = reason.map(|json| text("reason", json)).transpose()?.unwrap_or_default();
    let reason = Reason::new(&reason).map_err(|error| {
        let wanted = format!("at most {} bytes on one line", Reason::MAX_BYTES);
        CallError::invalid("reason", error.to_string(), wanted)
    })?;
    let origin = BlockOrigin::Operator;
    let entry = Entry { subject: subject.clone(), until: now + span, reason, origin, added: now };
    blocks.add(entry.clone(), now).map_err(|error| match error {
        BlockError::EveryAddress => {
            let wanted = "a network with a prefix of at least 1 bit, or everybody is blocked";
            Refusal::Invalid(CallError::invalid("ip", quote(&subject.to_string()), wanted))
        }
        error => Refusal::NoRoom(error),
    })?;
    tracing::info!(%from, %subject, %span, "blocked by an operator");
    Ok(Arc::new(entry))
}

/// Reads `{"ip": …}`, `{"attribute": …, "value": …}` or `{"id": …}`, and lets it off.
fn remove(
    blocks: &BlockList,
    now: Timestamp,
    json: Json<'_>,
    from: SocketAddr,
) -> Result<Arc<Entry>, Refusal> {
    let [ip, attribute, value, id] =
        fields(json, ["ip", "attribute", "value", "id"], "ip, attribute, value or id")?;
    let subject = match id {
        Some(id) if ip.is_none() && attribute.is_none() && value.is_none() => {
            let id = text("id", id)?;
            let entries = blocks.entries(now).into_iter();
            let subject = entries.map(|entry| entry.subject.clone());
            let mut subject = subject.filter(|subject| subject.to_string() == id);
            subject.next().ok_or_else(|| Refusal::Absent { name: id.into(), around: None })?
        }
        Some(_) => return Err(both_id_and_more()),
        None => named(blocks, ip, attribute, value)?,
    };
    let Some(entry) = blocks.remove(&subject, now) else {
        return Err(Refusal::absent(blocks, now, &subject));
    };
    tracing::info!(%from, %subject, "let off by an operator");
    Ok(entry)
}

fn both_id_and_more() -> Refusal {
    let wanted = "an id, or who it is about";
    CallError::invalid("body", "both an id and more", wanted).into()
}

/// Whom a body is about: an address or network, or a value of an attribute.
fn named(
    blocks: &BlockList,
    ip: Option<Json<'_>>,
    attribute: Option<Json<'_>>,
    value: Option<Json<'_>>,
) -> Result<Subject, CallError> {
    let (place, attribute, value) = match (ip, attribute, value) {
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
            place,
            quote(&value),
            format!("no bits after the prefix, as in {whole}"),
        ),
        SubjectError::Network(_) => {
            CallError::invalid(place, quote(&value), "an address or a network like 10.0.0.0/8")
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

fn length(json: Option<Json<'_>>) -> Result<Span, CallError> {
    let wanted = "a length of time like 10m or 1 hour";
    let json = json.ok_or_else(|| CallError::invalid("for", "nothing", wanted))?;
    let text = text("for", json)?;
    window_of(text.trim()).map_err(|_| CallError::invalid("for", quote(&text), wanted))
}

/// Why nothing was changed.
enum Refusal {
    Invalid(CallError),
    /// There is no such entry; perhaps there is a larger one.
    Absent {
        name: String,
        around: Option<String>,
    },
    NoRoom(BlockError),
}

impl From<CallError> for Refusal {
    fn from(fault: CallError) -> Self {
        Self::Invalid(fault)
    }
}

impl Refusal {
    fn absent(blocks: &BlockList, now: Timestamp, subject: &Subject) -> Self {
        let around = match subject {
            Subject::Network(network) => blocks.entries(now).into_iter().find(|entry| {
                matches!(&entry.subject, Subject::Network(larger) if larger.contains(network))
            }),
            Subject::Client { .. } => None,
        };
        let around = around.map(|entry| entry.subject.to_string());
        Self::Absent { name: subject.to_string(), around }
    }

    fn response(self) -> Response<Body> {
        match self {
            Self::Invalid(fault) => response::call_error(&fault),
            Self::Absent { name, around } => {
                let mut detail = format!("{} is not on the list", tidegate_core::truncate(&name));
                if let Some(around) = around {
                    detail.push_str(&format!(", but {around} is, which it belongs to"));
                }
                response::problem(StatusCode::NOT_FOUND, &detail)
            }
            Self::NoRoom(error) => {
                response::problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
            }
        }
    }
}
