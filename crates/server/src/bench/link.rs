//! A connection that carries one request after another.

use super::ask::Ask;
use super::target::{Door, Target};
use super::{grpc, http, resp};

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Allowed,
    Denied,
    /// It could not be decided.
    Unavailable,
    /// Anything else; what it was.
    Other(String),
}

/// Why nothing came back. The connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// It was not even there.
    Unreachable(String),
    Broken(String),
}

impl Lost {
    pub(super) fn broken(error: impl std::fmt::Display) -> Self {
        Self::Broken(format!("the connection was lost: {error}"))
    }

    pub(super) fn into_text(self) -> String {
        match self {
            Self::Unreachable(text) | Self::Broken(text) => text,
        }
    }
}

/// What is sent through links, whichever they are.
pub(super) enum Message {
    Http(http::Message),
    Grpc(grpc::Message),
    Resp(resp::Message),
}

impl Message {
    pub(super) fn new(target: &Target, ask: &Ask, headers: &[(String, String)]) -> Self {
        match target.door() {
            Door::Http => Self::Http(http::Message::check(target, ask)),
            Door::Get => Self::Http(http::Message::get(target, headers)),
            Door::Grpc => Self::Grpc(grpc::Message::new(ask)),
            Door::Resp => Self::Resp(resp::Message::new(ask)),
        }
    }
}

/// A connection to a door.
pub(super) enum Link {
    Http(http::Link),
    Grpc(grpc::Link),
    Resp(resp::Link),
}

impl Link {
    pub(super) async fn open(target: &Target) -> Result<Self, Lost> {
        let opened = match target.door() {
            Door::Http | Door::Get => http::Link::open(target).await.map(Self::Http),
            Door::Grpc => grpc::Link::open(target).await.map(Self::Grpc),
            Door::Resp => resp::Link::open(target).await.map(Self::Resp),
        };
        opened.map_err(Lost::Unreachable)
    }

    /// Whether it can carry another request; one that its server has closed can't.
    pub(super) async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http(link) => link.is_ready().await,
            // They notice when they are used.
            Self::Grpc(_) | Self::Resp(_) => true,
        }
    }

    pub(super) async fn ask(&mut self, message: &Message, client: &str) -> Result<Answer, Lost> {
        match (self, message) {
            (Self::Http(link), Message::Http(message)) => link.ask(message, client).await,
            (Self::Grpc(link), Message::Grpc(message)) => link.ask(message, client).await,
            (Self::Resp(link), Message::Resp(message)) => link.ask(message, client).await,
            _ => Err(Lost::broken("it is of another kind than what is to be sent")),
        }
    }
}
