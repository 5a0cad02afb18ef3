//! Commands of one client that are in flight, in order.
//!
//! With a remote store, the commands of a pipeline are sent without waiting for replies, so all of them
//! take about one round trip. The store keeps their order. A refund uses another path to the store, so
//! it runs alone.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::resp::reply::{ReplyBuffer, RespError};
use crate::resp::throttle_reply::ThrottleReply;

/// The reply to a command that was decided.
pub(crate) enum CommandReply {
    /// The five numbers of redis-cell.
    Throttle(Result<ThrottleReply, RespError>),
    /// The same five numbers and the delay.
    Check(Result<ThrottleReply, RespError>),
}

impl CommandReply {
    /// Appends the reply to the buffer.
    pub(crate) fn write(&self, replies: &mut ReplyBuffer) {
        match self {
            Self::Throttle(Ok(reply)) => reply.write_throttle(replies),
            Self::Check(Ok(reply)) => reply.write_check(replies),
            Self::Throttle(Err(error)) | Self::Check(Err(error)) => replies.error(error),
        }
    }
}

/// The order of a command relative to its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandOrder {
    /// Sent after the previous commands were sent.
    Concurrent,
    /// Sent after the previous commands were decided, and decided before the next are sent.
    Exclusive,
}

/// Largest number of commands in flight for one client.
const MAX_IN_FLIGHT: usize = 128;

/// Commands that were sent, until their replies are written.
pub(crate) struct Pipeline<'b> {
    /// True if every decision is ready at the first poll.
    synchronous: bool,
    pending: Vec<PendingReply<'b>>,
}

/// A command in flight.
enum PendingReply<'b> {
    Ready(CommandReply),
    Waiting(Pin<Box<dyn Future<Output = CommandReply> + Send + 'b>>),
}

impl<'b> Pipeline<'b> {
    /// Returns an empty pipeline.
    pub(crate) fn new(synchronous: bool) -> Self {
        Self { synchronous, pending: Vec::new() }
    }

    /// Returns `true` if decisions never wait. The caller should then decide a command and write its reply
    /// directly: [`submit`](Self::submit) costs more than the decision.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.synchronous
    }

    /// Sends one command. A later [`finish`](Self::finish) writes its reply.
    pub(crate) async fn submit(
        &mut self,
        decision: impl Future<Output = CommandReply> + Send + 'b,
        order: CommandOrder,
        replies: &mut ReplyBuffer,
    ) {
        if order == CommandOrder::Exclusive || self.pending.len() == MAX_IN_FLIGHT {
            self.finish(replies).await;
        }
        let mut waiting: Pin<Box<dyn Future<Output = CommandReply> + Send + 'b>> =
            Box::pin(decision);
        // The first poll sends the command to the store.
        let first_poll = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
        self.pending.push(match first_poll {
            Poll::Ready(reply) => PendingReply::Ready(reply),
            Poll::Pending => PendingReply::Waiting(waiting),
        });
        if order == CommandOrder::Exclusive {
            self.finish(replies).await;
        }
    }

    /// Waits for every decision and writes the replies in the order of the commands.
    pub(crate) async fn finish(&mut self, replies: &mut ReplyBuffer) {
        for command in self.pending.drain(..) {
            match command {
                PendingReply::Ready(reply) => reply.write(replies),
                PendingReply::Waiting(decision) => decision.await.write(replies),
            }
        }
    }
}
