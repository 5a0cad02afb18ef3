//! `POST /json`: a call of Envoy's rate limit service as JSON, for callers that speak no gRPC.
//!
//! Field names, numbers and units are read and written as the JSON mapping of protocol buffers has
//! them.

use std::borrow::Cow;

use hyper::Response;
use tidegate_api::{DescriptorLimit, DescriptorStatus, HeaderPair, RateLimitReply};
use tidegate_core::{CallError, Span};
use tidegate_net::http::json::{Json, fields, text};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_service::service::rls::{
    CurrentLimit, Descriptor, Hits, RlsCall, RlsReply, Status, Unit,
};

/// Reads `{"domain": …, "descriptors": [{"entries": [{"key": …, "value": …}]}], "hitsAddend": …}`.
pub(super) fn decode(json: Json<'_>) -> Result<RlsCall<'_>, CallError> {
    const CALL: [(&str, &str); 3] =
        [("domain", "domain"), ("descriptors", "descriptors"), ("hitsAddend", "hits_addend")];
    let [domain, descriptors, hits] = either(json, CALL)?;
    let hits = hits.map(|json| number::<u32>("hitsAddend", &json)).transpose()?.unwrap_or(0);
    let descriptors = items("descriptors", descriptors)?;
    let descriptors = descriptors.into_iter().enumerate().map(|(index, json)| {
        descriptor(json, hits).map_err(|fault| fault.within(&format!("descriptors[{index}]")))
    });
    Ok(RlsCall {
        domain: optional_text("domain", domain)?,
        descriptors: descriptors.collect::<Result<_, CallError>>()?,
    })
}

fn descriptor(json: Json<'_>, hits: u32) -> Result<Descriptor<'_>, CallError> {
    const DESCRIPTOR: [(&str, &str); 4] = [
        ("entries", "entries"),
        ("limit", "limit"),
        ("hitsAddend", "hits_addend"),
        ("isNegativeHits", "is_negative_hits"),
    ];
    let [entries, limit, own_hits, negative] = either(json, DESCRIPTOR)?;
    let entries = items("entries", entries)?.into_iter().enumerate().map(|(index, json)| {
        entry(json).map_err(|fault| fault.within(&format!("entries[{index}]")))
    });
    let own_hits = own_hits.map(|json| number("hitsAddend", &json)).transpose()?;
    let negative = match negative {
        None => false,
        Some(Json::Bool(negative)) => negative,
        Some(other) => {
            return Err(CallError::invalid("isNegativeHits", other.shown(), "true or false"));
        }
    };
    Ok(Descriptor {
        entries: entries.collect::<Result<_, CallError>>()?,
        hits: Hits::of(own_hits, hits, negative),
        limit: limit.map(brought).transpose().map_err(|fault| fault.within("limit"))?,
    })
}

fn entry(json: Json<'_>) -> Result<(Cow<'_, str>, Cow<'_, str>), CallError> {
    let [key, value] = fields(json, ["key", "value"], "key and value")?;
    Ok((optional_text("key", key)?, optional_text("value", value)?))
}

/// The limit that a descriptor brings along.
fn brought(json: Json<'_>) -> Result<(u32, Unit), CallError> {
    const LIMIT: [(&str, &str); 2] = [("requestsPerUnit", "requests_per_unit"), ("unit", "unit")];
    const UNITS: [Unit; 6] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];
    let [amount, unit] = either(json, LIMIT)?;
    let amount = amount.map(|json| number("requestsPerUnit", &json)).transpose()?.unwrap_or(0);
    let unit = unit.unwrap_or(Json::Null);
    let known = match &unit {
        Json::Text(name) => UNITS.iter().find(|unit| unit.to_string() == *name),
        Json::Whole(number) => {
            usize::try_from(*number).ok().and_then(|number| UNITS.get(number.checked_sub(1)?))
        }
        _ => None,
    };
    match known {
        Some(unit) => Ok((amount, *unit)),
        None => Err(CallError::invalid("unit", unit.shown(), "a unit from SECOND to YEAR")),
    }
}

/// The values of fields, each under either of its two names.
fn either<'a, const N: usize>(
    json: Json<'a>,
    names: [(&str, &str); N],
) -> Result<[Option<Json<'a>>; N], CallError> {
    let wanted = names.map(|(name, _)| name);
    let Json::Object(mut entries) = json else {
        let wanted = format!("an object of {}", wanted.join(", "));
        return Err(CallError::invalid("body", json.shown(), wanted));
    };
    for (name, _) in &mut entries {
        if let Some((camel, _)) = names.iter().find(|(_, snake)| snake == name) {
            *name = Cow::Owned((*camel).to_owned());
        }
    }
    fields(Json::Object(entries), wanted, &wanted.join(", "))
}

fn items<'a>(place: &str, json: Option<Json<'a>>) -> Result<Vec<Json<'a>>, CallError> {
    match json {
        None => Ok(Vec::new()),
        Some(Json::List(items)) => Ok(items),
        Some(other) => Err(CallError::invalid(place, other.shown(), "a list")),
    }
}

fn optional_text<'a>(place: &str, json: Option<Json<'a>>) -> Result<Cow<'a, str>, CallError> {
    json.map_or(Ok(Cow::Borrowed("")), |json| text(place, json))
}

/// A whole number, which may stand in quotes.
fn number<T: TryFrom<u64>>(place: &str, json: &Json<'_>) -> Result<T, CallError> {
    let found = match json {
        Json::Whole(number) => Some(*number),
        Json::Text(text) => text.parse().ok(),
        _ => None,
    };
    found.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        let most = u64::MAX >> (64 - 8 * size_of::<T>());
        CallError::invalid(place, json.shown(), format!("a whole number from 0 to {most}"))
    })
}

/// The answer: 200, or 429 when the request may not pass.
pub(super) fn encode(reply: &RlsReply) -> Response<Body> {
    let status = if reply.over { 429 } else { 200 };
    response::json(status, JSON, &reply_json(reply))
}

type ReplyJson<'a> = RateLimitReply<Cow<'a, str>, &'a serde_json::Map<String, serde_json::Value>>;

fn reply_json(reply: &RlsReply) -> ReplyJson<'_> {
    RateLimitReply {
        overall_code: code(reply.over).into(),
        statuses: reply.statuses.iter().map(status_json).collect(),
        response_headers_to_add: reply.headers.iter().map(header_json).collect(),
        dynamic_metadata: reply.metadata.as_ref(),
    }
}

fn header_json<'a>((key, value): &'a (&'static str, String)) -> HeaderPair<Cow<'a, str>> {
    HeaderPair { key: Cow::from(*key), value: Cow::from(value.as_str()) }
}

fn status_json(status: &Status) -> DescriptorStatus<Cow<'_, str>> {
    DescriptorStatus {
        code: code(status.over).into(),
        current_limit: status.limit.as_ref().map(limit_json),
        limit_remaining: status.remaining,
        duration_until_reset: status.reset_after.map(|span| seconds(span).into()),
    }
}

fn limit_json(limit: &CurrentLimit) -> DescriptorLimit<Cow<'_, str>> {
    let known = limit.unit != Unit::Unknown;
    DescriptorLimit {
        requests_per_unit: limit.requests_per_unit,
        unit: known.then(|| limit.unit.to_string().into()),
        name: Some(Cow::from(&*limit.name)).filter(|name| !name.is_empty()),
    }
}

fn code(over: bool) -> &'static str {
    if over { "OVER_LIMIT" } else { "OK" }
}

/// Rounded up, as over gRPC.
fn seconds(span: Span) -> String {
    format!("{}s", span.as_secs_ceil())
}
