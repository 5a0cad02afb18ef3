//! `grpc.health.v1.Health`: reports if this node accepts calls.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::Span;
use tidegate_limiter::Clock;
use tidegate_service::service::Service;
use tokio::sync::{mpsc, watch};
use tonic::Status;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::grpc::body::encode_frame;

pub(crate) const CHECK: &str = "/grpc.health.v1.Health/Check";
pub(crate) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Service names with a health status: the whole server, each service, and the name that
/// envoyproxy/ratelimit uses.
const SERVICES: [&str; 4] =
    ["", "envoy.service.ratelimit.v3.RateLimitService", "tidegate.v1.RateLimiter", "ratelimit"];
/// Interval at which a watch reads the status again.
const WATCH_INTERVAL: Span = Span::from_millis(250);

/// Returns the status of a service.
///
/// # Errors
/// `NOT_FOUND`: the service does not exist.
pub(crate) fn check(
    service: &Service,
    request: &HealthCheckRequest,
) -> Result<HealthCheckResponse, Status> {
    if SERVICES.contains(&request.service.as_str()) {
        return Ok(health_response(serving_status(service)));
    }
    let found = tidegate_core::quote(&request.service);
    Err(Status::not_found(format!("service: found {found}, wanted {}", SERVICES[1..].join(", "))))
}

fn serving_status(service: &Service) -> ServingStatus {
    match service.not_ready_reason() {
        None => ServingStatus::Serving,
        Some(_) => ServingStatus::NotServing,
    }
}

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// Sends the status now and after each change, until the listener closes or the receiver is dropped.
///
/// The status of an unknown service is `SERVICE_UNKNOWN`, as the health protocol requires.
pub(crate) fn watch(
    service: Arc<Service>,
    request: &HealthCheckRequest,
    clock: Clock,
    mut closing: watch::Receiver<bool>,
) -> mpsc::Receiver<Bytes> {
    let (send, messages) = mpsc::channel(1);
    let known = SERVICES.contains(&request.service.as_str());
    tokio::spawn(async move {
        let mut last_sent = None;
        loop {
            let status =
                if known { serving_status(&service) } else { ServingStatus::ServiceUnknown };
            if last_sent != Some(status) {
                last_sent = Some(status);
                if send.send(encode_frame(&health_response(status))).await.is_err() {
                    return;
                }
            }
            if *closing.borrow_and_update() {
                return;
            }
            tokio::select! {
                () = send.closed() => return,
                () = clock.sleep_until(clock.now() + WATCH_INTERVAL) => {}
                changed = closing.changed() => if changed.is_err() { return },
            }
        }
    });
    messages
}
