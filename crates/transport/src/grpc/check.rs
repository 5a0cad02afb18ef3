//! `tidegate.v1.RateLimiter`: calls and replies as messages.

use std::collections::HashMap;

use tidegate_core::{CallError, CallStatus, Reply, Request, retry_after_seconds, truncate};
use tidegate_proto::tidegate::v1 as wire;
use tidegate_proto::tidegate::v1::check_batch_response::{Answer, answer};
use tidegate_proto::tidegate::v1::check_request::Named;
use tidegate_proto::tidegate::v1::{
    CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse,
};
use tidegate_service::call::{Call, NamedClient, Protocol};
use tidegate_service::identity::{Caller, vouched};
use tidegate_service::service::Service;
use tonic::{Code, Status};

use crate::grpc::error_status;

pub(super) const CHECK: &str = "/tidegate.v1.RateLimiter/Check";
pub(super) const CHECK_BATCH: &str = "/tidegate.v1.RateLimiter/CheckBatch";
pub(super) const PEEK: &str = "/tidegate.v1.RateLimiter/Peek";

/// Most checks of one batch.
const MAX_CHECKS: usize = 1_000;

pub(super) async fn check(
    service: &Service,
    caller: Caller<'_>,
    asked: &CheckRequest,
) -> Result<CheckResponse, Status> {
    let call =
        call(asked).map_err(|error| error_status(service.count_rejected(Protocol::Grpc, error)))?;
    let reply = service.check(Protocol::Grpc, vouched(call, caller)).await.map_err(error_status)?;
    decided(&reply)
}

/// The answer to a check that has one.
pub(super) fn decided(reply: &Reply) -> Result<CheckResponse, Status> {
    if reply.status() == CallStatus::Unavailable {
        let undecided = reply.decision.undecided().iter().map(|undecided| &*undecided.rule);
        let undecided = undecided.collect::<Vec<_>>().join(", ");
        let code = Code::from(CallStatus::Unavailable.grpc());
        return Err(Status::new(code, format!("{undecided}: the store can't be reached")));
    }
    Ok(response(reply))
}

pub(super) async fn peek(
    service: &Service,
    caller: Caller<'_>,
    mut asked: CheckRequest,
) -> Result<CheckResponse, Status> {
    asked.cost = Some(0);
    check(service, caller, &asked).await
}

pub(super) async fn batch(
    service: &Service,
    caller: Caller<'_>,
    asked: &CheckBatchRequest,
) -> Result<CheckBatchResponse, Status> {
    let found = asked.checks.len();
    if found > MAX_CHECKS {
        let wanted = format!("at most {MAX_CHECKS}");
        let fault = CallError::invalid("checks", format!("{found} checks"), wanted);
        return Err(error_status(service.count_rejected(Protocol::Grpc, fault)));
    }
    let calls = asked.checks.iter().map(|check| Ok(vouched(call(check)?, caller)));
    let replies = service.check_each(Protocol::Grpc, calls.collect()).await;
    let answers = replies.iter().enumerate().map(|(index, reply)| {
        let answer = match reply {
            Ok(reply) => answer::Answer::Decision(response(reply)),
            Err(fault) => answer::Answer::Fault(explained(fault, index)),
        };
        Answer { answer: Some(answer) }
    });
    Ok(CheckBatchResponse { answers: answers.collect() })
}

fn explained(fault: &CallError, index: usize) -> wire::Fault {
    let code = u32::try_from(fault.status.grpc()).unwrap_or_default();
    let CallError { path, found, wanted, .. } = fault.clone().within(&format!("checks[{index}]"));
    wire::Fault { code, r#where: path, found, wanted }
}

/// What a message asks.
pub(super) fn call(asked: &CheckRequest) -> Result<Call<'_>, CallError> {
    if asked.rule.is_empty() && asked.attributes.is_empty() {
        return Err(CallError::invalid("message", "neither rule nor attributes", "one of them"));
    }
    let mut request = Request::new().cost(asked.cost.unwrap_or(1));
    for (name, value) in &asked.attributes {
        let place = || format!("attributes.{}", truncate(name));
        request
            .insert(name.as_str(), value.as_str())
            .map_err(|error| CallError::rejected_attribute(&place(), &error))?;
    }
    let client = asked.named.as_ref().map(|named| match named {
        Named::Client(value) => NamedClient::Value(value.as_str().into()),
        Named::Parts(parts) => NamedClient::Parts(borrowed(&parts.values)),
    });
    let rule = Some(asked.rule.as_str()).filter(|rule| !rule.is_empty()).map(Into::into);
    Ok(Call { rule, client, request })
}

fn borrowed<'a, T: From<&'a str>>(values: &'a HashMap<String, String>) -> Vec<(T, T)> {
    let pairs = values.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    pairs.collect()
}

fn response(reply: &Reply) -> CheckResponse {
    let decision = &reply.decision;
    let mut response = CheckResponse {
        allowed: decision.is_allowed(),
        blocked: decision.block().is_some(),
        delay_millis: decision.delay().as_micros().div_ceil(1_000),
        unavailable: reply.status() == CallStatus::Unavailable,
        retry_after: retry_after_seconds(decision),
        ..CheckResponse::default()
    };
    let Some(policy) = decision.strictest_rule() else { return response };
    let outcome = &policy.outcome;
    if response.allowed {
        response.retry_after = Some(0);
    }
    policy.rule.as_ref().clone_into(&mut response.rule);
    response.limit = Some(outcome.limit);
    response.remaining = Some(outcome.remaining);
    response.reset_time = Some((reply.at + outcome.reset_after).as_secs_ceil());
    response
}
