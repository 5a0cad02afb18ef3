//! Methods `Acquire`, `Renew` and `Release` of `tidegate.v1.RateLimiter`: in-flight slots that the
//! caller releases itself.

use hyper::Response;
use tidegate_proto::tidegate::v1::{
    AcquireResponse, CheckRequest, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use tidegate_service::call::Protocol;
use tidegate_service::identity::{Caller, with_peer_identity};
use tidegate_service::service::{AcquireReply, Service};
use tonic::Status;

use crate::grpc::body::{self, GrpcBody};
use crate::grpc::check::{decision_response, decode_call};
use crate::grpc::error_status;

pub(crate) const ACQUIRE: &str = "/tidegate.v1.RateLimiter/Acquire";
pub(crate) const RENEW: &str = "/tidegate.v1.RateLimiter/Renew";
pub(crate) const RELEASE: &str = "/tidegate.v1.RateLimiter/Release";

/// Checks a request and returns a token for the slots that it takes.
pub(crate) async fn acquire(
    service: &Service,
    caller: Caller<'_>,
    message: &CheckRequest,
) -> Result<Response<GrpcBody>, Status> {
    let call = decode_call(message)
        .map_err(|error| error_status(service.count_rejected(Protocol::Grpc, error)))?;
    let AcquireReply { reply, slot } = service
        .acquire(Protocol::Grpc, with_peer_identity(call, caller))
        .await
        .map_err(error_status)?;
    let mut response =
        AcquireResponse { decision: Some(decision_response(&reply)?), ..Default::default() };
    let Some(taken) = slot else { return Ok(body::message_response(&response)) };
    response.hold_millis = taken.hold_millis();
    response.slot = taken.token;
    Ok(body::slot_response(&response, taken.undelivered))
}

/// Extends the hold of slots.
pub(crate) async fn renew(
    service: &Service,
    message: &RenewRequest,
) -> Result<RenewResponse, Status> {
    let renewed = service.renew(Protocol::Grpc, &message.slot).await.map_err(error_status)?;
    Ok(RenewResponse { held: to_u32(renewed.held), hold_millis: renewed.hold_millis() })
}

/// Releases slots. A second release of the same token is harmless.
pub(crate) async fn release(
    service: &Service,
    message: &ReleaseRequest,
) -> Result<ReleaseResponse, Status> {
    let released = service.release(Protocol::Grpc, &message.slot).await.map_err(error_status)?;
    Ok(ReleaseResponse { released: to_u32(released) })
}

fn to_u32(rules: usize) -> u32 {
    u32::try_from(rules).unwrap_or(u32::MAX)
}
