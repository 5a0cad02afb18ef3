//! `/v1/acquire`, `/v1/renew` and `/v1/release`: slots in flight for who says when it is done.

use hyper::Response;
use serde::Serialize;
use tidegate_api::{ReleaseReply, RenewReply};
use tidegate_core::CallError;
use tidegate_net::http::json::Json;
use tidegate_net::http::response::{self, Body, HeldSlot, JSON};
use tidegate_net::listener::Peer;
use tidegate_service::call::Protocol;
use tidegate_service::identity;
use tidegate_service::service::Acquired;

use crate::caller;
use crate::http::{Door, decode};

impl Door {
    pub(super) async fn acquire(&self, body: &[u8], peer: &Peer) -> Response<Body> {
        let call = match Json::read(body).and_then(decode::check) {
            Ok(call) => identity::vouched(call, caller(peer)),
            Err(fault) => {
                return response::call_error(&self.service.count_rejected(Protocol::Http, fault));
            }
        };
        match self.service.acquire(Protocol::Http, call).await {
            Ok(acquired) => answer(acquired),
            Err(fault) => response::call_error(&fault),
        }
    }

    pub(super) async fn renew(&self, body: &[u8]) -> Response<Body> {
        let renewed = match Json::read(body).and_then(decode::slot) {
            Ok(slot) => self.service.renew(Protocol::Http, &slot).await,
            Err(fault) => Err(self.service.count_rejected(Protocol::Http, fault)),
        };
        told(
            renewed
                .map(|held| RenewReply { held: held.held as u64, hold_millis: held.hold_millis() }),
        )
    }

    pub(super) async fn release(&self, body: &[u8]) -> Response<Body> {
        let released = match Json::read(body).and_then(decode::slot) {
            Ok(slot) => self.service.release(Protocol::Http, &slot).await,
            Err(fault) => Err(self.service.count_rejected(Protocol::Http, fault)),
        };
        told(released.map(|released| ReleaseReply { released: released as u64 }))
    }
}

/// The answer to an acquire. From here on the connection has it, which does not tell whether somebody
/// still reads.
fn answer(acquired: Acquired) -> Response<Body> {
    let Acquired { reply, slot } = acquired;
    let Some(taken) = slot else { return response::reply(&reply) };
    let slot = HeldSlot { name: &taken.name, hold_millis: taken.hold_millis() };
    let response = response::reply_with_slot(&reply, Some(slot));
    taken.way.handed_over();
    response
}

fn told(answer: Result<impl Serialize, CallError>) -> Response<Body> {
    match answer {
        Ok(answer) => response::json(200, JSON, &answer),
        Err(fault) => response::call_error(&fault),
    }
}
