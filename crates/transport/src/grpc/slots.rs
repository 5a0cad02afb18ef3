//! `tidegate.v1.RateLimiter`: slots in flight for who says when it is done.

use hyper::Response;
use tidegate_proto::tidegate::v1::{
    AcquireResponse, CheckRequest, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use tidegate_service::call::Protocol;
use tidegate_service::identity::{Caller, vouched};
use tidegate_service::service::{Acquired, Service};
use tonic::Status;

use super::body::{self, Body};
use super::check::{call, decided};
use crate::grpc::error_status;

pub(super) const ACQUIRE: &str = "/tidegate.v1.RateLimiter/Acquire";
pub(super) const RENEW: &str = "/tidegate.v1.RateLimiter/Renew";
pub(super) const RELEASE: &str = "/tidegate.v1.RateLimiter/Release";

pub(super) async fn acquire(
    service: &Service,
    caller: Caller<'_>,
    asked: &CheckRequest,
) -> Result<Response<Body>, Status> {
    let call =
        call(asked).map_err(|error| error_status(service.count_rejected(Protocol::Grpc, error)))?;
    let Acquired { reply, slot } =
        service.acquire(Protocol::Grpc, vouched(call, caller)).await.map_err(error_status)?;
    let mut answer = AcquireResponse { decision: Some(decided(&reply)?), ..Default::default() };
    let Some(taken) = slot else { return Ok(body::message(&answer)) };
    answer.hold_millis = taken.hold_millis();
    answer.slot = taken.name;
    Ok(body::slot(&answer, taken.way))
}

pub(super) async fn renew(
    service: &Service,
    asked: &RenewRequest,
) -> Result<RenewResponse, Status> {
    let renewed = service.renew(Protocol::Grpc, &asked.slot).await.map_err(error_status)?;
    Ok(RenewResponse { held: count(renewed.held), hold_millis: renewed.hold_millis() })
}

pub(super) async fn release(
    service: &Service,
    asked: &ReleaseRequest,
) -> Result<ReleaseResponse, Status> {
    let released = service.release(Protocol::Grpc, &asked.slot).await.map_err(error_status)?;
    Ok(ReleaseResponse { released: count(released) })
}

fn count(rules: usize) -> u32 {
    u32::try_from(rules).unwrap_or(u32::MAX)
}
