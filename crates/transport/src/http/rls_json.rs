//! `POST /json`: a call of Envoy's rate limit service as JSON, for callers without gRPC.
//!
//! Field names, numbers and units follow the JSON mapping of protocol buffers.

use std::borrow::Cow;

use hyper::Response;
use tidegate_api::{DescriptorLimit, DescriptorStatus, HeaderPair, RateLimitReply};
use tidegate_core::{CallError, Span, escape_text};
use tidegate_net::http::json::{Json, fields, text};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_service::service::rls::{
    self, CurrentLimit, Descriptor, Hits, RlsCall, RlsReply, Unit,
};

/// Parses `{"domain": …, "descriptors": [{"entries": [{"key": …, "value": …}]}], "hitsAddend": …}`.
pub(crate) fn decode(json: Json<'_>) -> Result<RlsCall<'_>, CallError> {
    const CALL_FIELDS: [(&str, &str); 3] =
        [("domain", "domain"), ("descriptors", "descriptors"), ("hitsAddend", "hits_addend")];
    let [domain, descriptors, hits] = fields_by_either_name(json, CALL_FIELDS)?;
    let hits = hits.map(|json| number::<u32>("hitsAddend", &json)).transpose()?.unwrap_or(0);
    let descriptors = items("descriptors", descriptors)?;
    let descriptors = descriptors.into_iter().enumerate().map(|(index, json)| {
        descriptor(json, hits).map_err(|error| error.within(&format!("descriptors[{index}]")))
    });
    Ok(RlsCall {
        domain: optional_text("domain", domain)?,
        descriptors: descriptors.collect::<Result<_, CallError>>()?,
    })
}

fn descriptor(json: Json<'_>, hits: u32) -> Result<Descriptor<'_>, CallError> {
    const DESCRIPTOR_FIELDS: [(&str, &str); 4] = [
        ("entries", "entries"),
        ("limit", "limit"),
        ("hitsAddend", "hits_addend"),
        ("isNegativeHits", "is_negative_hits"),
    ];
    let [entries, limit, descriptor_hits, negative] =
        fields_by_either_name(json, DESCRIPTOR_FIELDS)?;
    let entries = items("entries", entries)?.into_iter().enumerate().map(|(index, json)| {
        entry(json).map_err(|error| error.within(&format!("entries[{index}]")))
    });
    let descriptor_hits = descriptor_hits.map(|json| number("hitsAddend", &json)).transpose()?;
    let negative = match negative {
        None => false,
        Some(Json::Bool(negative)) => negative,
        Some(other) => {
            return Err(CallError::invalid("isNegativeHits", other.shown(), "true or false"));
        }
    };
    Ok(Descriptor {
        entries: entries.collect::<Result<_, CallError>>()?,
        hits: Hits::new(descriptor_hits, hits, negative),
        limit: limit.map(descriptor_limit).transpose().map_err(|error| error.within("limit"))?,
    })
}

fn entry(json: Json<'_>) -> Result<(Cow<'_, str>, Cow<'_, str>), CallError> {
    let [key, value] = fields(json, ["key", "value"], "key and value")?;
    Ok((optional_text("key", key)?, optional_text("value", value)?))
}

/// Parses the limit that a descriptor carries.
fn descriptor_limit(json: Json<'_>) -> Result<(u32, Unit), CallError> {
    const LIMIT_FIELDS: [(&str, &str); 2] =
        [("requestsPerUnit", "requests_per_unit"), ("unit", "unit")];
    const UNITS: [Unit; 6] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];
    let [amount, unit] = fields_by_either_name(json, LIMIT_FIELDS)?;
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

/// Returns the values of fields. Each field may have its camel-case or its snake-case name.
fn fields_by_either_name<'a, const N: usize>(
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

fn items<'a>(path: &str, json: Option<Json<'a>>) -> Result<Vec<Json<'a>>, CallError> {
    match json {
        None => Ok(Vec::new()),
        Some(Json::List(items)) => Ok(items),
        Some(other) => Err(CallError::invalid(path, other.shown(), "a list")),
    }
}

fn optional_text<'a>(path: &str, json: Option<Json<'a>>) -> Result<Cow<'a, str>, CallError> {
    json.map_or(Ok(Cow::Borrowed("")), |json| text(path, json).map(escape_text))
}

/// Parses a whole number, with or without quotes.
fn number<T: TryFrom<u64>>(path: &str, json: &Json<'_>) -> Result<T, CallError> {
    let found = match json {
        Json::Whole(number) => Some(*number),
        Json::Text(text) => text.parse().ok(),
        _ => None,
    };
    found.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        let max = u64::MAX >> (64 - 8 * size_of::<T>());
        CallError::invalid(path, json.shown(), format!("a whole number from 0 to {max}"))
    })
}

/// Returns the response: 200, or 429 when the request is over the limit.
pub(crate) fn encode(reply: &RlsReply) -> Response<Body> {
    let status = if reply.over_limit { 429 } else { 200 };
    response::json(status, JSON, &reply_json(reply))
}

/// The JSON body of a reply.
type ReplyJson<'a> = RateLimitReply<Cow<'a, str>, &'a serde_json::Map<String, serde_json::Value>>;

fn reply_json(reply: &RlsReply) -> ReplyJson<'_> {
    RateLimitReply {
        overall_code: code(reply.over_limit).into(),
        statuses: reply.statuses.iter().map(status_json).collect(),
        response_headers_to_add: reply.headers.iter().map(header_json).collect(),
        dynamic_metadata: reply.metadata.as_ref(),
    }
}

fn header_json<'a>((key, value): &'a (&'static str, String)) -> HeaderPair<Cow<'a, str>> {
    HeaderPair { key: Cow::from(*key), value: Cow::from(value.as_str()) }
}

fn status_json(status: &rls::DescriptorStatus) -> DescriptorStatus<Cow<'_, str>> {
    DescriptorStatus {
        code: code(status.over_limit).into(),
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

/// Formats a duration in whole seconds, rounded up as in the gRPC response.
fn seconds(span: Span) -> String {
    format!("{}s", span.as_secs_ceil())
}
