//! What can happen next, in words.

use core::fmt;

use crate::state::{Message, NODES, Report};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time goes on by a tick of the store's clock, and by so many of each node's.
    Tick([u8; NODES]),
    /// A node admits a request with a token that it holds.
    Spend(u8),
    /// A node sends a question.
    Ask(Message),
    /// A node no longer waits for its answer.
    GiveUp(u8),
    /// A node forgets everything.
    Crash(u8),
    /// A message comes. `again`: and will once more. A store grants so many tokens.
    Deliver {
        /// What comes.
        message: Message,
        /// Whether it stays in flight as well.
        again: bool,
        /// What the store holds of what is wanted.
        granted: u8,
    },
    /// A message is lost.
    Lose(Message),
    /// From here on the store's writes reach no replica.
    Detach,
    /// The store goes back to what its replica knows.
    Fail,
    /// The store's clock goes on by a tick, and time does not.
    Leap,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, spent, closed } = self;
        write!(f, ", hold {id}: {spent} spent{}", if *closed { " and closed" } else { "" })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Question { node, id, cost, want, reports } => {
                write!(f, "question of node {node} (cost {cost}, hold {id} of up to {want}")?;
                for report in reports.iter().filter(|report| report.id > 0) {
                    report.fmt(f)?;
                }
                f.write_str(")")
            }
            Self::Answer { node, id, amount, life } => {
                write!(f, "answer to node {node} (hold {id} of {amount} for {life} ticks)")
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick(ticks) if ticks.iter().all(|ticks| *ticks == 1) => f.write_str("a tick"),
            Self::Tick(ticks) => write!(f, "a tick, on the clocks of the nodes {ticks:?}"),
            Self::Spend(node) => write!(f, "node {node} admits one from what it holds"),
            Self::Ask(message) => write!(f, "sent: {message}"),
            Self::GiveUp(node) => write!(f, "node {node} waits no longer"),
            Self::Crash(node) => write!(f, "node {node} crashes"),
            Self::Deliver { message, again, granted } => {
                write!(f, "comes: {message}")?;
                if matches!(message, Message::Question { .. }) {
                    write!(f, ", {granted} held")?;
                }
                f.write_str(if *again { ", and stays in flight" } else { "" })
            }
            Self::Lose(message) => write!(f, "lost: {message}"),
            Self::Detach => f.write_str("the replica hears no more"),
            Self::Fail => f.write_str("the store fails over to its replica"),
            Self::Leap => f.write_str("the store's clock is a tick ahead"),
        }
    }
}
