//! Invalid calls: the answer that a proxy gets, and the log.

use tidegate_core::{CallError, Timestamp};
use tidegate_net::log_interval::LogInterval;

use crate::call::Protocol;

/// The answer to an invalid call of a proxy: bytes that can't be decoded, a call over a size limit, a missing field.
///
/// A client can cause such calls, and many proxies forward a request if the call fails. So the default is a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalidCall {
    /// Denies the request.
    #[default]
    Deny,
    /// Admits the request.
    Allow,
    /// Fails the call. The proxy decides.
    Error,
}

/// Logs invalid calls, at most one line per listener in ten seconds.
#[derive(Debug, Default)]
pub(crate) struct InvalidCallLog {
    /// By [`Protocol`], so that calls to one listener do not hide those to another.
    listeners: [LogInterval; Protocol::ALL.len()],
}

impl InvalidCallLog {
    /// Logs the error of an invalid call. Values of the caller are left out, because they may be secrets.
    pub(crate) fn log(&self, now: Timestamp, protocol: Protocol, error: &CallError) {
        let Some(reason) = error.reason else { return };
        let Some(suppressed) = self.listeners[protocol as usize].permit(now) else { return };
        tracing::warn!(
            listener = protocol.name(),
            reason = reason.label(),
            place = ?error.path,
            wanted = ?error.wanted,
            suppressed,
            "invalid call"
        );
    }
}
