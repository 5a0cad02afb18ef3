//! `/v1/acquire`, `/v1/renew` and `/v1/release`: in-flight slots that the caller releases itself.

use hyper::Response;
use serde::Serialize;
use tidegate_api::{ReleaseReply, RenewReply};
use tidegate_core::CallError;
use tidegate_net::http::json::Json;
use tidegate_net::http::response::{self, Body, HeldSlot, JSON};
use tidegate_net::listener::Peer;
use tidegate_service::call::Protocol;
use tidegate_service::identity;
use tidegate_service::service::AcquireReply;

use crate::caller;
use crate::http::{HttpApi, decode_check, decode_slot};

impl HttpApi {
    /// Checks a request and returns a token for the slots that it takes.
    pub(crate) async fn acquire(&self, body: &[u8], peer: &Peer) -> Response<Body> {
        let call = match Json::read(body).and_then(decode_check) {
            Ok(call) => identity::with_peer_identity(call, caller(peer)),
            Err(error) => {
                return response::call_error(&self.service.count_rejected(Protocol::Http, error));
            }
        };
        match self.service.acquire(Protocol::Http, call).await {
            Ok(acquired) => acquire_response(acquired),
            Err(error) => response::call_error(&error),
        }
    }

    /// Extends the hold of slots.
    pub(crate) async fn renew(&self, body: &[u8]) -> Response<Body> {
        let renewed = match Json::read(body).and_then(decode_slot) {
            Ok(slot) => self.service.renew(Protocol::Http, &slot).await,
            Err(error) => Err(self.service.count_rejected(Protocol::Http, error)),
        };
        json_response(
            renewed
                .map(|held| RenewReply { held: held.held as u64, hold_millis: held.hold_millis() }),
        )
    }

    /// Releases slots. A second release of the same token is harmless.
    pub(crate) async fn release(&self, body: &[u8]) -> Response<Body> {
        let released = match Json::read(body).and_then(decode_slot) {
            Ok(slot) => self.service.release(Protocol::Http, &slot).await,
            Err(error) => Err(self.service.count_rejected(Protocol::Http, error)),
        };
        json_response(released.map(|released| ReleaseReply { released: released as u64 }))
    }
}

/// Returns the response to an acquire and marks its slots as delivered.
///
/// The connection does not report if the client still reads: after this point only the client, or the
/// end of the hold, releases the slots.
fn acquire_response(acquired: AcquireReply) -> Response<Body> {
    let AcquireReply { reply, slot } = acquired;
    let Some(taken) = slot else { return response::reply(&reply) };
    let slot = HeldSlot { name: &taken.token, hold_millis: taken.hold_millis() };
    let response = response::reply_with_slot(&reply, Some(slot));
    taken.undelivered.mark_delivered();
    response
}

fn json_response(result: Result<impl Serialize, CallError>) -> Response<Body> {
    match result {
        Ok(reply) => response::json(200, JSON, &reply),
        Err(error) => response::call_error(&error),
    }
}
