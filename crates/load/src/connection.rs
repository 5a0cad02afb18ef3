//! A connection that carries one request after another.

use crate::reply::{ConnectionError, LoadReply};
use crate::request::LoadRequest;
use crate::target::{ListenerKind, LoadTarget};
use crate::{grpc, http, resp};

/// A request in the form of its protocol.
pub(crate) enum LoadMessage {
    Http(http::HttpMessage),
    Grpc(grpc::GrpcMessage),
    Resp(resp::RespMessage),
}

impl LoadMessage {
    pub(crate) fn new(
        target: &LoadTarget,
        ask: &LoadRequest,
        headers: &[(String, String)],
    ) -> Self {
        match target.listener() {
            ListenerKind::Http => Self::Http(http::HttpMessage::check(target, ask)),
            ListenerKind::Get => Self::Http(http::HttpMessage::get(target, headers)),
            ListenerKind::Grpc => Self::Grpc(grpc::GrpcMessage::new(ask)),
            ListenerKind::Resp => Self::Resp(resp::RespMessage::new(ask)),
        }
    }
}

/// A connection to a listener.
pub(crate) enum LoadConnection {
    Http(http::HttpConnection),
    Grpc(grpc::GrpcConnection),
    Resp(resp::RespConnection),
}

impl LoadConnection {
    pub(crate) async fn open(target: &LoadTarget) -> Result<Self, ConnectionError> {
        let opened = match target.listener() {
            ListenerKind::Http | ListenerKind::Get => {
                http::HttpConnection::open(target).await.map(Self::Http)
            }
            ListenerKind::Grpc => grpc::GrpcConnection::open(target).await.map(Self::Grpc),
            ListenerKind::Resp => resp::RespConnection::open(target).await.map(Self::Resp),
        };
        opened.map_err(ConnectionError::Unreachable)
    }

    /// Returns whether it can carry another request; one that its server has closed can't.
    pub(crate) async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http(link) => link.is_ready().await,
            // They fail when they are used.
            Self::Grpc(_) | Self::Resp(_) => true,
        }
    }

    pub(crate) async fn ask(
        &mut self,
        message: &LoadMessage,
        client: &str,
    ) -> Result<LoadReply, ConnectionError> {
        match (self, message) {
            (Self::Http(link), LoadMessage::Http(message)) => link.ask(message, client).await,
            (Self::Grpc(link), LoadMessage::Grpc(message)) => link.ask(message, client).await,
            (Self::Resp(link), LoadMessage::Resp(message)) => link.ask(message, client).await,
            _ => Err(ConnectionError::broken("it is of another kind than what is to be sent")),
        }
    }
}
