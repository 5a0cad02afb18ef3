//! The reply to a request, or the reason why there is none.

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadReply {
    Allowed,
    Denied,
    /// The server could not decide.
    Unavailable,
    /// Any other reply, with its text.
    Other(String),
}

/// The reason why there is no reply. The connection can't be used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionError {
    /// The connection could not be opened.
    Unreachable(String),
    /// The connection was lost after it was opened.
    Broken(String),
}

impl ConnectionError {
    pub(crate) fn broken(error: impl std::fmt::Display) -> Self {
        Self::Broken(format!("the connection was lost: {error}"))
    }

    pub(crate) fn into_text(self) -> String {
        match self {
            Self::Unreachable(text) | Self::Broken(text) => text,
        }
    }
}
