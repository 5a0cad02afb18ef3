//! `envoy.service.ratelimit.v3.RateLimitService`: decodes calls and encodes replies.

use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};
use tidegate_core::{CallError, Span, escape_bytes};
use tidegate_proto::envoy::config::core::v3::HeaderValue;
use tidegate_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as WireUnit;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tidegate_proto::envoy::r#type::v3::RateLimitUnit;
use tidegate_service::call::Protocol;
use tidegate_service::service::Service;
use tidegate_service::service::rls::{self, Descriptor, Hits, RlsCall, RlsReply, Unit};
use tonic::Status;

use crate::grpc::error_status;
use crate::grpc::rls_message::{RawDescriptor, RawRateLimitRequest};

pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Decides a request. Every reason to deny it becomes `OVER_LIMIT`, because Envoy allows a request on
/// an error.
///
/// # Errors
/// The message is invalid, and `on_invalid_call` is `error`.
pub(crate) async fn should_rate_limit(
    service: &Service,
    message: &RawRateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let decided = match decode_call(message) {
        Ok(call) => service.should_rate_limit(Protocol::Grpc, &call).await,
        Err(error) => Err(service.count_rejected(Protocol::Grpc, error)),
    };
    match decided {
        Ok(reply) => Ok(encode_reply(reply)),
        Err(error) => invalid_call_reply(service, error_status(error)),
    }
}

/// Returns the reply to a call that is not valid: the one of `on_invalid_call`, or the error.
///
/// # Errors
/// `on_invalid_call` is `error`.
pub(crate) fn invalid_call_reply(
    service: &Service,
    error: Status,
) -> Result<RateLimitResponse, Status> {
    RlsReply::to_invalid_call(service.on_invalid_call()).map(encode_reply).ok_or(error)
}

/// Returns the call of a message. Strings that are not UTF-8 are escaped.
pub(crate) fn decode_call(message: &RawRateLimitRequest) -> Result<RlsCall<'_>, CallError> {
    let descriptors = message.descriptors.iter().enumerate().map(|(index, descriptor)| {
        let limit = descriptor_limit(descriptor);
        Ok(Descriptor {
            entries: descriptor
                .entries
                .iter()
                .map(|entry| (escape_bytes(&entry.key), escape_bytes(&entry.value)))
                .collect(),
            hits: Hits::new(
                descriptor.hits_addend,
                message.hits_addend,
                descriptor.is_negative_hits,
            ),
            limit: limit.map_err(|error| error.within(&format!("descriptors[{index}]")))?,
        })
    });
    let descriptors = descriptors.collect::<Result<_, CallError>>()?;
    Ok(RlsCall { domain: escape_bytes(&message.domain), descriptors })
}

/// Returns the limit that a descriptor carries.
fn descriptor_limit(descriptor: &RawDescriptor) -> Result<Option<(u32, Unit)>, CallError> {
    let Some(limit) = &descriptor.limit else { return Ok(None) };
    let unit = match limit.unit() {
        RateLimitUnit::Unknown => {
            let wanted = "a unit from SECOND to YEAR";
            return Err(CallError::invalid("limit.unit", limit.unit.to_string(), wanted));
        }
        RateLimitUnit::Second => Unit::Second,
        RateLimitUnit::Minute => Unit::Minute,
        RateLimitUnit::Hour => Unit::Hour,
        RateLimitUnit::Day => Unit::Day,
        RateLimitUnit::Month => Unit::Month,
        RateLimitUnit::Year => Unit::Year,
    };
    Ok(Some((limit.requests_per_unit, unit)))
}

fn encode_reply(reply: RlsReply) -> RateLimitResponse {
    let header = |(name, value): (&str, String)| HeaderValue {
        key: name.to_owned(),
        value,
        ..HeaderValue::default()
    };
    RateLimitResponse {
        overall_code: code(reply.over_limit),
        statuses: reply.statuses.into_iter().map(status).collect(),
        response_headers_to_add: reply.headers.into_iter().map(header).collect(),
        dynamic_metadata: reply.metadata.map(to_struct),
        ..RateLimitResponse::default()
    }
}

fn status(status: rls::DescriptorStatus) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.over_limit),
        current_limit: status.limit.map(|limit| RateLimit {
            requests_per_unit: limit.requests_per_unit,
            unit: unit(limit.unit).into(),
            name: limit.name,
        }),
        limit_remaining: status.remaining,
        duration_until_reset: status.reset_after.map(duration),
    }
}

fn code(over: bool) -> i32 {
    if over { Code::OverLimit.into() } else { Code::Ok.into() }
}

fn unit(unit: Unit) -> WireUnit {
    match unit {
        Unit::Unknown => WireUnit::Unknown,
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
        Unit::Week => WireUnit::Week,
        Unit::Month => WireUnit::Month,
        Unit::Year => WireUnit::Year,
    }
}

/// Converts a duration to whole seconds, rounded up. Envoy truncates fractions, so a wait of less than
/// a second would become 0.
fn duration(span: Span) -> Duration {
    Duration { seconds: i64::try_from(span.as_secs_ceil()).unwrap_or(i64::MAX), nanos: 0 }
}

fn to_struct(map: serde_json::Map<String, serde_json::Value>) -> Struct {
    let fields = map.into_iter().map(|(name, json)| (name, to_value(json)));
    Struct { fields: fields.collect() }
}

fn to_value(json: serde_json::Value) -> Value {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    let kind = match json {
        Null => Kind::NullValue(0),
        Bool(value) => Kind::BoolValue(value),
        Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        String(text) => Kind::StringValue(text),
        Array(items) => {
            Kind::ListValue(ListValue { values: items.into_iter().map(to_value).collect() })
        }
        Object(map) => Kind::StructValue(to_struct(map)),
    };
    Value { kind: Some(kind) }
}
