//! Methods `Check`, `CheckBatch` and `Peek` of `tidegate.v1.RateLimiter`.

use std::collections::HashMap;

use tidegate_core::{
    CallError, CallStatus, InvalidReason, Reply, Request, escape_text, retry_after_seconds,
    truncate,
};
use tidegate_proto::tidegate::v1 as wire;
use tidegate_proto::tidegate::v1::check_batch_response::{Answer, answer};
use tidegate_proto::tidegate::v1::check_request::Named;
use tidegate_proto::tidegate::v1::{
    CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse,
};
use tidegate_service::call::{Call, NamedClient, Protocol};
use tidegate_service::identity::{Caller, with_peer_identity};
use tidegate_service::service::Service;
use tonic::{Code, Status};

use crate::grpc::error_status;

pub(crate) const CHECK: &str = "/tidegate.v1.RateLimiter/Check";
pub(crate) const CHECK_BATCH: &str = "/tidegate.v1.RateLimiter/CheckBatch";
pub(crate) const PEEK: &str = "/tidegate.v1.RateLimiter/Peek";

/// Largest number of checks in one batch.
const MAX_CHECKS: usize = 1_000;

/// Decides one check.
pub(crate) async fn check(
    service: &Service,
    caller: Caller<'_>,
    message: &CheckRequest,
) -> Result<CheckResponse, Status> {
    let call = decode_call(message)
        .map_err(|error| error_status(service.count_rejected(Protocol::Grpc, error)))?;
    let reply = service
        .check(Protocol::Grpc, with_peer_identity(call, caller))
        .await
        .map_err(error_status)?;
    decision_response(&reply)
}

/// Returns the response to a check.
///
/// # Errors
/// `UNAVAILABLE` if a rule could not be decided because the store is unreachable.
pub(crate) fn decision_response(reply: &Reply) -> Result<CheckResponse, Status> {
    if reply.status() == CallStatus::Unavailable {
        let undecided = reply.decision.undecided().iter().map(|undecided| &*undecided.rule);
        let undecided = undecided.collect::<Vec<_>>().join(", ");
        let code = Code::from(CallStatus::Unavailable.grpc());
        return Err(Status::new(code, format!("{undecided}: the store can't be reached")));
    }
    Ok(encode_reply(reply))
}

/// Returns the state of a limit without spending: a check of cost 0.
pub(crate) async fn peek(
    service: &Service,
    caller: Caller<'_>,
    mut message: CheckRequest,
) -> Result<CheckResponse, Status> {
    message.cost = Some(0);
    check(service, caller, &message).await
}

/// Decides a batch. Each check has its own reply or error, in the order of the checks.
pub(crate) async fn batch(
    service: &Service,
    caller: Caller<'_>,
    message: &CheckBatchRequest,
) -> Result<CheckBatchResponse, Status> {
    let count = message.checks.len();
    if count > MAX_CHECKS {
        let wanted = format!("at most {MAX_CHECKS}");
        let error = CallError::invalid("checks", format!("{count} checks"), wanted)
            .because(InvalidReason::TooLarge);
        return Err(error_status(service.count_rejected(Protocol::Grpc, error)));
    }
    let calls =
        message.checks.iter().map(|check| Ok(with_peer_identity(decode_call(check)?, caller)));
    let replies = service.check_each(Protocol::Grpc, calls.collect()).await;
    let answers = replies.iter().enumerate().map(|(index, reply)| {
        let answer = match reply {
            Ok(reply) => answer::Answer::Decision(encode_reply(reply)),
            Err(error) => answer::Answer::Fault(batch_fault(error, index)),
        };
        Answer { answer: Some(answer) }
    });
    Ok(CheckBatchResponse { answers: answers.collect() })
}

/// Returns the error of one check of a batch, with its index in the path.
fn batch_fault(error: &CallError, index: usize) -> wire::Fault {
    let code = u32::try_from(error.status.grpc()).unwrap_or_default();
    let CallError { path, found, wanted, .. } = error.clone().within(&format!("checks[{index}]"));
    wire::Fault { code, r#where: path, found, wanted }
}

/// Decodes a message into a call.
///
/// # Errors
/// The message has neither rule nor attributes, or an attribute is invalid.
pub(crate) fn decode_call(message: &CheckRequest) -> Result<Call<'_>, CallError> {
    if message.rule.is_empty() && message.attributes.is_empty() {
        return Err(CallError::invalid("message", "neither rule nor attributes", "one of them"));
    }
    let mut request = Request::new().cost(message.cost.unwrap_or(1));
    for (name, value) in &message.attributes {
        let path = || format!("attributes.{}", truncate(name));
        request
            .insert(name.as_str(), escape_text(value.as_str().into()))
            .map_err(|error| CallError::rejected_attribute(&path(), &error))?;
    }
    let client = message.named.as_ref().map(|named| match named {
        Named::Client(value) => NamedClient::Value(value.as_str().into()),
        Named::Parts(parts) => NamedClient::Parts(borrowed_pairs(&parts.values)),
    });
    let client = client.map(NamedClient::escaped);
    let rule = Some(message.rule.as_str()).filter(|rule| !rule.is_empty()).map(Into::into);
    Ok(Call { rule, client, request })
}

fn borrowed_pairs<'a, T: From<&'a str>>(values: &'a HashMap<String, String>) -> Vec<(T, T)> {
    let pairs = values.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    pairs.collect()
}

fn encode_reply(reply: &Reply) -> CheckResponse {
    let decision = &reply.decision;
    let mut response = CheckResponse {
        allowed: decision.is_allowed(),
        blocked: decision.block().is_some(),
        delay_millis: decision.delay().as_micros().div_ceil(1_000),
        unavailable: reply.status() == CallStatus::Unavailable,
        allow_listed: decision.is_allow_listed(),
        retry_after: retry_after_seconds(decision),
        ..CheckResponse::default()
    };
    let Some(strictest) = decision.strictest_rule() else { return response };
    let outcome = &strictest.outcome;
    if response.allowed {
        response.retry_after = Some(0);
    }
    strictest.rule.as_ref().clone_into(&mut response.rule);
    response.limit = Some(outcome.limit);
    response.remaining = Some(outcome.remaining);
    response.reset_time = Some((reply.at + outcome.reset_after).as_secs_ceil());
    response
}
