//! The steps of the model, with their text in a trace.

use core::fmt;

use crate::state::{LeaseMessage, MAX_NODES, UsageReport};

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelStep {
    /// One tick of the store's clock, and these ticks of each node's clock.
    Tick([u8; MAX_NODES]),
    /// A node admits a request with a leased token.
    Spend(u8),
    /// A node sends a lease request.
    SendRequest(LeaseMessage),
    /// A node abandons its pending request.
    GiveUp(u8),
    /// A node crashes and loses its state.
    Crash(u8),
    /// A message arrives.
    Deliver {
        /// The message.
        message: LeaseMessage,
        /// True if a duplicate stays in flight.
        again: bool,
        /// The number of tokens that the store grants.
        granted: u8,
    },
    /// A message is lost.
    Lose(LeaseMessage),
    /// Replication stops: later writes of the store reach no replica.
    Detach,
    /// The store fails over to its replica.
    Fail,
    /// The store's clock jumps forward by a tick.
    ClockJump,
}

impl fmt::Display for UsageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, spent, closed } = self;
        write!(f, ", lease {id}: {spent} spent{}", if *closed { " and closed" } else { "" })
    }
}

impl fmt::Display for LeaseMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { node, id, cost, requested, reports } => {
                write!(f, "request of node {node} (cost {cost}, lease {id} of up to {requested}")?;
                for report in reports.iter().filter(|report| report.id > 0) {
                    report.fmt(f)?;
                }
                f.write_str(")")
            }
            Self::Grant { node, id, amount, ttl } => {
                write!(f, "grant to node {node} (lease {id} of {amount} for {ttl} ticks)")
            }
        }
    }
}

impl fmt::Display for ModelStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick(ticks) if ticks.iter().all(|ticks| *ticks == 1) => f.write_str("a tick"),
            Self::Tick(ticks) => write!(f, "a tick, on the clocks of the nodes {ticks:?}"),
            Self::Spend(node) => write!(f, "node {node} spends a leased token"),
            Self::SendRequest(message) => write!(f, "sent: {message}"),
            Self::GiveUp(node) => write!(f, "node {node} abandons its request"),
            Self::Crash(node) => write!(f, "node {node} crashes"),
            Self::Deliver { message, again, granted } => {
                write!(f, "delivered: {message}")?;
                if matches!(message, LeaseMessage::Request { .. }) {
                    write!(f, ", {granted} granted")?;
                }
                f.write_str(if *again { ", a duplicate stays in flight" } else { "" })
            }
            Self::Lose(message) => write!(f, "lost: {message}"),
            Self::Detach => f.write_str("replication stops"),
            Self::Fail => f.write_str("the store fails over to its replica"),
            Self::ClockJump => f.write_str("the store's clock jumps forward by a tick"),
        }
    }
}
