//! `tidegate.v1.RateLimiter`: calls and replies as messages.

use std::collections::HashMap;

use tidegate::Request;
use tidegate_core::retry_after_seconds;
use tonic::{Code, Status};

use crate::identity::{Caller, vouched};
use crate::proto::tidegate::v1::check_batch_response::{Answer, answer};
use crate::proto::tidegate::v1::check_request::Named;
use crate::proto::tidegate::v1::{
    self as wire, CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse,
};
use crate::service::{Call, Client, Ending, Fault, Reply, Service, Via, cut};

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
    let call = call(asked).map_err(|fault| service.refused(Via::Grpc, fault))?;
    let reply = service.check(Via::Grpc, vouched(call, caller)).await?;
    decided(&reply)
}

/// The answer to a check that has one.
pub(super) fn decided(reply: &Reply) -> Result<CheckResponse, Status> {
    if reply.ending() == Ending::Unavailable {
        let undecided = reply.decision.undecided().join(", ");
        let code = Code::from(Ending::Unavailable.grpc());
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
        let fault = Fault::invalid("checks", format!("{found} checks"), wanted);
        return Err(service.refused(Via::Grpc, fault).into());
    }
    let calls = asked.checks.iter().map(|check| Ok(vouched(call(check)?, caller)));
    let replies = service.check_each(Via::Grpc, calls.collect()).await;
    let answers = replies.iter().enumerate().map(|(index, reply)| {
        let answer = match reply {
            Ok(reply) => answer::Answer::Decision(response(reply)),
            Err(fault) => answer::Answer::Fault(explained(fault, index)),
        };
        Answer { answer: Some(answer) }
    });
    Ok(CheckBatchResponse { answers: answers.collect() })
}

fn explained(fault: &Fault, index: usize) -> wire::Fault {
    let code = u32::try_from(fault.ending.grpc()).unwrap_or_default();
    let Fault { place, found, wanted, .. } = fault.clone().within(&format!("checks[{index}]"));
    wire::Fault { code, r#where: place, found, wanted }
}

/// What a message asks.
pub(super) fn call(asked: &CheckRequest) -> Result<Call<'_>, Fault> {
    if asked.rule.is_empty() && asked.attributes.is_empty() {
        return Err(Fault::invalid("message", "neither rule nor attributes", "one of them"));
    }
    let mut request = Request::new().cost(asked.cost.unwrap_or(1));
    for (name, value) in &asked.attributes {
        let place = || format!("attributes.{}", cut(name));
        request
            .insert(name.as_str(), value.as_str())
            .map_err(|error| Fault::refused(&place(), &error))?;
    }
    let client = asked.named.as_ref().map(|named| match named {
        Named::Client(value) => Client::Value(value.as_str().into()),
        Named::Parts(parts) => Client::Parts(borrowed(&parts.values)),
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
        unavailable: reply.ending() == Ending::Unavailable,
        retry_after: retry_after_seconds(decision),
        ..CheckResponse::default()
    };
    let Some(policy) = decision.decisive() else { return response };
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
