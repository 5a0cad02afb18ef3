//! Whether calls should be sent here: `grpc.health.v1.Health`.

use std::sync::Arc;

use crate::grpc::body::framed;
use bytes::Bytes;
use tidegate_core::Span;
use tidegate_limiter::Clock;
use tidegate_service::service::Service;
use tokio::sync::{mpsc, watch};
use tonic::Status;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// What can be asked about: everything, each service, and the name that envoyproxy/ratelimit goes by.
const SERVICES: [&str; 4] =
    ["", "envoy.service.ratelimit.v3.RateLimitService", "tidegate.v1.RateLimiter", "ratelimit"];
/// How often somebody who watches learns whether anything has changed.
const LOOK: Span = Span::from_millis(250);

/// Answers whether calls should be sent here now.
///
/// # Errors
/// There is no such service.
pub(super) fn check(
    service: &Service,
    request: &HealthCheckRequest,
) -> Result<HealthCheckResponse, Status> {
    if SERVICES.contains(&request.service.as_str()) {
        return Ok(saying(serving(service)));
    }
    let found = tidegate_core::quote(&request.service);
    Err(Status::not_found(format!("service: found {found}, wanted {}", SERVICES[1..].join(", "))))
}

fn serving(service: &Service) -> ServingStatus {
    match service.not_ready_reason() {
        None => ServingStatus::Serving,
        Some(_) => ServingStatus::NotServing,
    }
}

fn saying(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// Says how things are, and again whenever they change, until the door closes or nobody listens.
pub(super) fn watch(
    service: Arc<Service>,
    request: &HealthCheckRequest,
    clock: Clock,
    mut closing: watch::Receiver<bool>,
) -> mpsc::Receiver<Bytes> {
    let (send, messages) = mpsc::channel(1);
    let known = SERVICES.contains(&request.service.as_str());
    tokio::spawn(async move {
        let mut said = None;
        loop {
            let now = if known { serving(&service) } else { ServingStatus::ServiceUnknown };
            if said != Some(now) {
                said = Some(now);
                if send.send(framed(&saying(now))).await.is_err() {
                    return;
                }
            }
            if *closing.borrow_and_update() {
                return;
            }
            tokio::select! {
                () = send.closed() => return,
                () = clock.sleep_until(clock.now() + LOOK) => {}
                changed = closing.changed() => if changed.is_err() { return },
            }
        }
    });
    messages
}
