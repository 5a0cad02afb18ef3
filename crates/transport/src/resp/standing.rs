//! What a decision looks like as numbers: the five of CL.THROTTLE, and a sixth for shapers.

use tidegate_core::{CallError, CallStatus, Outcome, Reply, Span};

use crate::resp::reply::{Refusal, Replies};

/// How a client stands, as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    limited: bool,
    /// The most that can be spent at once; -1 when no limit was counted.
    limit: i64,
    /// What can be spent now; -1 when no limit was counted.
    remaining: i64,
    /// Seconds to wait, rounded up; -1 when the request may pass, and when no wait helps.
    retry_after: i64,
    /// Seconds until all of the limit can be spent, rounded up.
    reset_after: i64,
    /// Milliseconds to hold an admitted request, rounded up.
    delay: i64,
}

impl Standing {
    /// What a reply says.
    ///
    /// # Errors
    /// The store did not answer and the rule does not allow then, or the call was not understood.
    pub(crate) fn of(reply: Result<Reply, CallError>) -> Result<Self, Refusal> {
        let reply = reply.map_err(|fault| refused(&fault))?;
        let (decision, limited) = (&reply.decision, reply.status() != CallStatus::Allowed);
        if reply.status() == CallStatus::Unavailable {
            return Err(Refusal::coded("UNAVAILABLE", UNKNOWN));
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
        let delay = signed(decision.delay().as_micros().div_ceil(1_000));
        Ok(match decision.strictest_rule() {
            Some(policy) => Self { limited, retry_after, delay, ..Self::counted(&policy.outcome) },
            None => Self { limited, limit: -1, remaining: -1, retry_after, reset_after: 0, delay },
        })
    }

    fn counted(outcome: &Outcome) -> Self {
        Self {
            limited: false,
            limit: signed(outcome.limit),
            remaining: signed(outcome.remaining),
            retry_after: -1,
            reset_after: seconds(outcome.reset_after),
            delay: 0,
        }
    }

    /// The same numbers for somebody who asked for nothing, and whom nothing was refused.
    pub(crate) fn unasked(self) -> Self {
        Self { limited: false, retry_after: -1, ..self }
    }

    /// Writes the numbers that redis-cell answers, in its order.
    pub(crate) fn write_five(&self, replies: &mut Replies) {
        replies.array(5);
        self.write_numbers(replies);
    }

    /// Writes the same five, then the delay.
    pub(crate) fn write_six(&self, replies: &mut Replies) {
        replies.array(6);
        self.write_numbers(replies);
        replies.integer(self.delay);
    }

    fn write_numbers(&self, replies: &mut Replies) {
        let limited = i64::from(self.limited);
        for number in [limited, self.limit, self.remaining, self.retry_after, self.reset_after] {
            replies.integer(number);
        }
    }
}

const UNKNOWN: &str = "the store does not answer, so nobody knows whether this fits";

fn refused(fault: &CallError) -> Refusal {
    match fault.status {
        CallStatus::Unavailable => Refusal::coded("UNAVAILABLE", fault),
        _ => Refusal::error(fault),
    }
}

fn seconds(span: Span) -> i64 {
    signed(span.as_secs_ceil())
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
