//! The share of the fleet's limits that this node may use, and for how long.
//!
//! Every node sends heartbeats to the store. A reply contains the number of live nodes, this node's index, and
//! the time since which the store has listed this node without a gap. The store drops a node after
//! `heartbeat_timeout` without a heartbeat.
//!
//! A node uses a share under two conditions. Its last reply is fresh, and the store has listed it long enough
//! that every other node with a share has received a reply that counts it. Each node with a share therefore
//! knows all the others, and shares add up to at most the limit. The proof is in
//! `docs/decisions/0013-synced-split-and-shards.md`.

use std::sync::Arc;

use tidegate_core::lease::clock_margin;
use tidegate_core::{Span, Timestamp};

use crate::store::Share;

/// Number of past terms that are kept. A client last checked before the oldest of them starts without tokens.
const MAX_TERMS: usize = 8;

/// A period during which this node has one share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareTerm {
    /// The number of the term, counted from 0.
    pub number: u64,
    /// The share.
    pub share: Share,
    /// The first instant of the term.
    pub from: Timestamp,
    /// The first instant after the term, unless it is renewed before.
    pub until: Timestamp,
}

/// The reply to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The time at which the heartbeat was sent, by this node's clock.
    pub sent: Timestamp,
    /// The time at which the reply arrived, by the same clock.
    pub received: Timestamp,
    /// The share of this node.
    pub share: Share,
    /// The time since which the store has listed this node without a gap. It changes with each gap.
    pub since: u64,
}

/// The status of a node's share at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareStatus<'a> {
    /// The node is new, and has no share yet.
    Joining {
        /// The share that it will have.
        share: Share,
        /// The time until then.
        wait: Span,
    },
    /// The node has the share of the last of these terms; the earlier ones preceded it.
    Active(&'a [ShareTerm]),
    /// The share is unknown: it was not renewed in time, the store dropped the node, or the node has left.
    Expired,
}

/// The membership of a node in its fleet, by the replies to its heartbeats. Time is an argument.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The time after which the store drops a node without heartbeats.
    heartbeat_timeout: Span,
    /// The last [`HeartbeatReply::since`].
    listed_since: Option<u64>,
    /// The time at which the last answered heartbeat was sent.
    last_sent: Timestamp,
    /// Oldest first. The last one may start in the future.
    terms: Vec<ShareTerm>,
    next_term: u64,
    has_left: bool,
    /// The share to use while the store fails.
    last_share: Option<Share>,
    /// By this time every live node has sent a heartbeat since the store first listed this one.
    complete_at: Timestamp,
}

impl Membership {
    /// Creates the membership of a node that has sent no heartbeat yet. The store drops a node after
    /// `heartbeat_timeout` without a heartbeat.
    #[must_use]
    pub const fn new(heartbeat_timeout: Span) -> Self {
        Self {
            heartbeat_timeout,
            listed_since: None,
            last_sent: Timestamp::EPOCH,
            terms: Vec::new(),
            next_term: 0,
            has_left: false,
            last_share: None,
            complete_at: Timestamp::EPOCH,
        }
    }

    /// Sets the share that the node had before a restart.
    #[must_use]
    pub const fn with_last_share(mut self, share: Share) -> Self {
        self.last_share = Some(share);
        self
    }

    /// Returns the share to use while the store fails, by the last known number of nodes. It is the whole limit
    /// if that number was never known.
    ///
    /// A store that lost its list counts too few nodes until all of them have sent a heartbeat. A smaller number
    /// is therefore used only after the store has listed this node for `heartbeat_timeout`.
    #[must_use]
    pub fn last_share(&self) -> Share {
        self.last_share.unwrap_or(Share::WHOLE)
    }

    /// Applies the reply to a heartbeat.
    ///
    /// A reply is ignored if its share would already have expired, or if it answers an older heartbeat than the
    /// last reply did.
    pub fn on_heartbeat(&mut self, reply: HeartbeatReply) {
        let HeartbeatReply { sent, received, share, since } = reply;
        // The store's clock may be faster than this node's, so the share ends earlier by that margin.
        let until =
            sent + self.heartbeat_timeout.saturating_sub(clock_margin(self.heartbeat_timeout));
        if self.has_left || sent < self.last_sent || until <= received {
            return;
        }
        self.last_sent = sent;
        if self.listed_since == Some(since) {
            self.renew_term(share, received, until);
        } else {
            self.listed_since = Some(since);
            self.complete_at =
                received + self.heartbeat_timeout + clock_margin(self.heartbeat_timeout);
            self.join(share, received, until);
        }
        if received >= self.complete_at || self.last_share.is_none_or(|last| last.of <= share.of) {
            self.last_share = Some(share);
        }
    }

    fn renew_term(&mut self, share: Share, received: Timestamp, until: Timestamp) {
        let Some(last) = self.terms.last_mut() else { return };
        let joining = received < last.from;
        if joining || (received < last.until && last.share == share) {
            (last.share, last.until) = (share, until);
            return;
        }
        // A term that expired before this reply keeps its end.
        last.until = last.until.min(received);
        self.push_term(share, received, until);
    }

    /// Starts over with a store that did not list this node.
    ///
    /// The current term stays valid until its end: a node that it does not count gets no share before then.
    fn join(&mut self, share: Share, received: Timestamp, until: Timestamp) {
        self.terms.pop_if(|last| received < last.from);
        self.push_term(share, self.complete_at, until);
    }

    fn push_term(&mut self, share: Share, from: Timestamp, until: Timestamp) {
        if self.terms.len() == MAX_TERMS {
            self.terms.remove(0);
        }
        self.terms.push(ShareTerm { number: self.next_term, share, from, until });
        self.next_term += 1;
    }

    /// Gives up the share for good. Later replies are ignored.
    pub const fn leave(&mut self) {
        self.has_left = true;
    }

    /// Returns the status of the share at `now`.
    #[must_use]
    pub fn share_status(&self, now: Timestamp) -> ShareStatus<'_> {
        let started = self.terms.partition_point(|term| term.from <= now);
        let (past, coming) = self.terms.split_at(started);
        match (past, coming) {
            _ if self.has_left => ShareStatus::Expired,
            ([.., current], _) if now < current.until => ShareStatus::Active(past),
            ([], [next, ..]) if now < next.until => {
                ShareStatus::Joining { share: next.share, wait: next.from.since(now) }
            }
            _ => ShareStatus::Expired,
        }
    }
}

/// The membership of a node at an instant of its clock.
#[derive(Clone, Debug)]
pub struct MembershipView {
    /// The instant.
    pub at: Timestamp,
    /// The membership.
    pub membership: Arc<Membership>,
}

impl MembershipView {
    /// Returns the status of the node's share.
    #[must_use]
    pub fn share_status(&self) -> ShareStatus<'_> {
        self.membership.share_status(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT_TIMEOUT: Span = Span::from_secs(4);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000) + Span::from_millis(millis)
    }

    /// Returns the reply to a heartbeat that was sent at a time in milliseconds and answered after 2 ms.
    fn reply(sent: u64, index: u64, of: u64, since: u64) -> HeartbeatReply {
        let share = Share { index, of };
        HeartbeatReply { sent: at(sent), received: at(sent + 2), share, since }
    }

    fn share(node: &Membership, millis: u64) -> Option<(u64, u64)> {
        match node.share_status(at(millis)) {
            ShareStatus::Active(terms) => {
                terms.last().map(|term| (term.share.index, term.share.of))
            }
            ShareStatus::Joining { .. } | ShareStatus::Expired => None,
        }
    }

    /// Returns a node that has received a reply every second, the last one at `last`.
    fn active_node(last: u64) -> Membership {
        let mut node = Membership::new(HEARTBEAT_TIMEOUT);
        (0..=last / 1_000).for_each(|second| node.on_heartbeat(reply(second * 1_000, 0, 2, 7)));
        node
    }

    #[test]
    fn new_node_has_no_share_until_every_node_has_received_a_reply_that_counts_it() {
        let mut node = Membership::new(HEARTBEAT_TIMEOUT);
        assert_eq!(node.share_status(at(0)), ShareStatus::Expired);
        node.on_heartbeat(reply(0, 1, 2, 7));
        let wait = Span::from_millis(4_050);
        assert_eq!(
            node.share_status(at(2)),
            ShareStatus::Joining { share: Share { index: 1, of: 2 }, wait }
        );
        (1..=4).for_each(|second| node.on_heartbeat(reply(second * 1_000, 1, 3, 7)));
        assert_eq!(share(&node, 4_051), None);
        assert_eq!(share(&node, 4_052), Some((1, 3)));
    }

    #[test]
    fn share_expires_before_the_store_drops_a_node_without_heartbeats() {
        let node = active_node(6_000);
        assert_eq!(share(&node, 9_949), Some((0, 2)));
        assert_eq!(node.share_status(at(9_950)), ShareStatus::Expired);
    }

    #[test]
    fn node_that_only_missed_replies_continues_with_the_next_reply() {
        let mut node = active_node(6_000);
        node.on_heartbeat(reply(20_000, 0, 2, 7));
        assert_eq!(node.share_status(at(20_001)), ShareStatus::Expired);
        assert_eq!(share(&node, 20_002), Some((0, 2)));
        let ShareStatus::Active([.., before, now]) = node.share_status(at(20_002)) else {
            panic!()
        };
        assert_eq!((before.until, now.from), (at(9_950), at(20_002)), "there was a gap");
    }

    #[test]
    fn node_that_the_store_lost_uses_its_term_to_the_end_and_joins_again() {
        let mut node = active_node(6_000);
        node.on_heartbeat(reply(7_000, 0, 1, 8));
        assert_eq!(
            share(&node, 9_949),
            Some((0, 2)),
            "no node that this one does not know has a share yet"
        );
        (8..=11).for_each(|second| node.on_heartbeat(reply(second * 1_000, 0, 2, 8)));
        assert_eq!(node.share_status(at(9_950)), ShareStatus::Expired, "the term was not renewed");
        assert_eq!(share(&node, 11_051), None);
        assert_eq!(share(&node, 11_052), Some((0, 2)));
    }

    #[test]
    fn share_changes_as_soon_as_the_reply_arrives() {
        let mut node = active_node(6_000);
        node.on_heartbeat(reply(7_000, 0, 3, 7));
        assert_eq!(share(&node, 7_001), Some((0, 2)));
        assert_eq!(share(&node, 7_002), Some((0, 3)));
        node.on_heartbeat(reply(6_500, 0, 2, 7));
        assert_eq!(share(&node, 7_003), Some((0, 3)), "the reply to an older heartbeat is ignored");
    }

    #[test]
    fn reply_that_arrives_too_late_is_ignored() {
        let mut node = active_node(6_000);
        let late = HeartbeatReply { received: at(11_000), ..reply(7_000, 0, 2, 7) };
        node.on_heartbeat(late);
        assert_eq!(node.share_status(at(10_000)), ShareStatus::Expired);
    }

    #[test]
    fn share_without_the_store_is_the_one_from_before_a_restart() {
        assert_eq!(Membership::new(HEARTBEAT_TIMEOUT).last_share(), Share::WHOLE);
        let share = Share { index: 2, of: 4 };
        let mut node = Membership::new(HEARTBEAT_TIMEOUT).with_last_share(share);
        assert_eq!(node.last_share(), share);
        node.on_heartbeat(reply(0, 1, 5, 7));
        assert_eq!(node.last_share(), Share { index: 1, of: 5 }, "a larger fleet counts at once");
    }

    #[test]
    fn smaller_fleet_counts_only_after_every_node_has_sent_a_heartbeat() {
        let four = Share { index: 2, of: 4 };
        let mut node = Membership::new(HEARTBEAT_TIMEOUT).with_last_share(four);
        (0..=4).for_each(|second| node.on_heartbeat(reply(second * 1_000, 0, 1, 7)));
        assert_eq!(node.last_share(), four);
        node.on_heartbeat(reply(4_050, 0, 1, 7));
        assert_eq!(node.last_share(), Share::WHOLE);

        let mut node = active_node(6_000);
        node.on_heartbeat(reply(7_000, 0, 1, 8));
        assert_eq!(node.last_share().of, 2, "the store has lost the list of nodes");
        node.on_heartbeat(reply(12_000, 0, 1, 8));
        assert_eq!(node.last_share(), Share::WHOLE);
    }

    #[test]
    fn node_that_has_left_has_no_share() {
        let mut node = active_node(6_000);
        node.leave();
        node.on_heartbeat(reply(7_000, 0, 2, 7));
        assert_eq!(node.share_status(at(7_100)), ShareStatus::Expired);
    }

    #[test]
    fn number_of_past_terms_is_bounded() {
        let mut node = active_node(6_000);
        (0..100).for_each(|count| node.on_heartbeat(reply(7_000 + count, 0, 2 + count % 2, 7)));
        let ShareStatus::Active(terms) = node.share_status(at(7_200)) else { panic!() };
        assert_eq!(terms.len(), MAX_TERMS);
        assert!(terms.windows(2).all(|pair| pair[0].until == pair[1].from));
    }
}
