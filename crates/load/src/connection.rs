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
        request: &LoadRequest,
        headers: &[(String, String)],
    ) -> Self {
        match target.listener() {
            ListenerKind::Http => Self::Http(http::HttpMessage::check(target, request)),
            ListenerKind::Get => Self::Http(http::HttpMessage::get(target, headers)),
            ListenerKind::Grpc => Self::Grpc(grpc::GrpcMessage::new(request)),
            ListenerKind::Resp => Self::Resp(resp::RespMessage::new(request)),
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

    /// Returns whether it can carry another request; a connection that the server has closed can't.
    pub(crate) async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http(connection) => connection.is_ready().await,
            // A closed connection of these protocols fails the next request.
            Self::Grpc(_) | Self::Resp(_) => true,
        }
    }

    /// Sends a message and returns the reply.
    pub(crate) async fn send(
        &mut self,
        message: &LoadMessage,
        client: &str,
    ) -> Result<LoadReply, ConnectionError> {
        match (self, message) {
            (Self::Http(connection), LoadMessage::Http(message)) => {
                connection.send(message, client).await
            }
            (Self::Grpc(connection), LoadMessage::Grpc(message)) => {
                connection.send(message, client).await
            }
            (Self::Resp(connection), LoadMessage::Resp(message)) => {
                connection.send(message, client).await
            }
            _ => {
                Err(ConnectionError::broken("the message has another protocol than the connection"))
            }
        }
    }
}
