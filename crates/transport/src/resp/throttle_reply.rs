//! A decision as numbers: the five of CL.THROTTLE, and the delay for rules that shape traffic.

use tidegate_core::{CallError, CallStatus, Outcome, Reply, Span};

use crate::resp::reply::{ReplyBuffer, RespError};

/// The numbers of a reply to CL.THROTTLE or TG.CHECK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrottleReply {
    limited: bool,
    /// The capacity of the limit; -1 if no limit was counted.
    limit: i64,
    /// The amount that can be spent now; -1 if no limit was counted.
    remaining: i64,
    /// Seconds until a retry can succeed, rounded up; -1 if the request is allowed or can never succeed.
    retry_after: i64,
    /// Seconds until the whole limit is available, rounded up.
    reset_after: i64,
    /// Milliseconds to delay an allowed request, rounded up.
    delay: i64,
}

impl ThrottleReply {
    /// Converts the result of a call.
    ///
    /// # Errors
    /// The store is unreachable and the rule does not allow requests then, or the call is invalid.
    pub(crate) fn from_result(result: Result<Reply, CallError>) -> Result<Self, RespError> {
        Self::from_reply(&result.map_err(|error| call_error(&error))?)
    }

    /// Converts the reply to a call.
    ///
    /// # Errors
    /// The store is unreachable and the rule does not allow requests then.
    pub(crate) fn from_reply(reply: &Reply) -> Result<Self, RespError> {
        let (decision, limited) = (&reply.decision, reply.status() != CallStatus::Allowed);
        if reply.status() == CallStatus::Unavailable {
            return Err(RespError::coded("UNAVAILABLE", STORE_UNREACHABLE));
        }
        if let Some(block) = decision.block() {
            let wait = seconds(block.retry_after);
            let (limit, remaining, delay) = (-1, 0, 0);
            return Ok(Self {
                limited,
                limit,
                remaining,
                retry_after: wait,
                reset_after: wait,
                delay,
            });
        }
        let retry_after = decision.retry_after().map_or(-1, seconds);
        let delay = milliseconds(decision.delay());
        Ok(match decision.strictest_rule() {
            Some(rule) => Self { limited, retry_after, delay, ..Self::from_outcome(&rule.outcome) },
            None => Self { limited, limit: -1, remaining: -1, retry_after, reset_after: 0, delay },
        })
    }

    /// Converts the outcome of a request that one rule decided alone.
    #[inline]
    pub(crate) fn from_single_outcome(outcome: &Outcome) -> Self {
        Self {
            limited: !outcome.is_allowed(),
            retry_after: outcome.retry_after().map_or(-1, seconds),
            delay: milliseconds(outcome.delay()),
            ..Self::from_outcome(outcome)
        }
    }

    #[inline]
    fn from_outcome(outcome: &Outcome) -> Self {
        Self {
            limited: false,
            limit: signed(outcome.limit),
            remaining: signed(outcome.remaining),
            retry_after: -1,
            reset_after: seconds(outcome.reset_after),
            delay: 0,
        }
    }

    /// Returns the same numbers without a denial. For peeks and refunds, which are never limited.
    pub(crate) fn never_limited(self) -> Self {
        Self { limited: false, retry_after: -1, ..self }
    }

    /// Writes the five numbers of CL.THROTTLE in the order of redis-cell.
    pub(crate) fn write_throttle(&self, replies: &mut ReplyBuffer) {
        replies.integers([
            i64::from(self.limited),
            self.limit,
            self.remaining,
            self.retry_after,
            self.reset_after,
        ]);
    }

    /// Writes the six numbers of TG.CHECK: the five of CL.THROTTLE and the delay.
    pub(crate) fn write_check(&self, replies: &mut ReplyBuffer) {
        replies.integers([
            i64::from(self.limited),
            self.limit,
            self.remaining,
            self.retry_after,
            self.reset_after,
            self.delay,
        ]);
    }
}

const STORE_UNREACHABLE: &str = "the store does not reply, so it is unknown whether this fits";

/// Converts the error of a call to an error reply.
fn call_error(error: &CallError) -> RespError {
    match error.status {
        CallStatus::Unavailable => RespError::coded("UNAVAILABLE", error),
        _ => RespError::error(error),
    }
}

fn seconds(span: Span) -> i64 {
    signed(span.as_secs_ceil())
}

/// Returns a delay in milliseconds, rounded up.
fn milliseconds(delay: Span) -> i64 {
    signed(delay.as_micros().div_ceil(1_000))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
