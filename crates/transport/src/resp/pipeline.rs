//! What one client asked and has not been answered yet, in order.
//!
//! With a store that is far away, the commands of a pipeline are asked one right after another and
//! answered one after another, so that all of them wait for about one round trip. The store keeps their
//! order. A command that gives back goes another way, so nothing else is under way while it is.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use super::reply::{Refusal, Replies};
use super::standing::Standing;

/// What a command that was decided is answered with.
pub(super) enum Answer {
    /// The numbers of redis-cell, or why there are none.
    Throttle(Result<Standing, Refusal>),
    /// The same, and how long to hold the request.
    Check(Result<Standing, Refusal>),
}

impl Answer {
    pub(super) fn write(&self, replies: &mut Replies) {
        match self {
            Self::Throttle(Ok(standing)) => standing.write_five(replies),
            Self::Check(Ok(standing)) => standing.write_six(replies),
            Self::Throttle(Err(refusal)) | Self::Check(Err(refusal)) => replies.error(refusal),
        }
    }
}

/// When a command may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// After those before it were asked.
    Next,
    /// After those before it were answered, and before those after it are asked.
    Alone,
}

/// Most commands of one client that are asked at once.
const MOST: usize = 128;

/// Commands that were asked and whose answers are to come.
pub(super) struct Pipeline<'b> {
    /// Whether every answer is there as soon as it is asked for.
    at_once: bool,
    under_way: Vec<UnderWay<'b>>,
}

enum UnderWay<'b> {
    Answered(Answer),
    Waiting(Pin<Box<dyn Future<Output = Answer> + Send + 'b>>),
}

impl<'b> Pipeline<'b> {
    pub(super) fn new(at_once: bool) -> Self {
        Self { at_once, under_way: Vec::new() }
    }

    /// Whether answers need not be waited for. Whoever asks then does best to write them itself: handing
    /// a question over costs more than answering it.
    pub(super) fn is_at_once(&self) -> bool {
        self.at_once
    }

    /// Asks one command. Its answer is written by a later [`settle`](Self::settle).
    pub(super) async fn ask(
        &mut self,
        deciding: impl Future<Output = Answer> + Send + 'b,
        turn: Turn,
        replies: &mut Replies,
    ) {
        if turn == Turn::Alone || self.under_way.len() == MOST {
            self.settle(replies).await;
        }
        let mut waiting: Pin<Box<dyn Future<Output = Answer> + Send + 'b>> = Box::pin(deciding);
        // The first poll hands the question to the store.
        let asked = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
        self.under_way.push(match asked {
            Poll::Ready(answer) => UnderWay::Answered(answer),
            Poll::Pending => UnderWay::Waiting(waiting),
        });
        if turn == Turn::Alone {
            self.settle(replies).await;
        }
    }

    /// Waits for every answer and writes it, in the order in which they were asked.
    pub(super) async fn settle(&mut self, replies: &mut Replies) {
        for under_way in self.under_way.drain(..) {
            match under_way {
                UnderWay::Answered(answer) => answer.write(replies),
                UnderWay::Waiting(answer) => answer.await.write(replies),
            }
        }
    }
}
