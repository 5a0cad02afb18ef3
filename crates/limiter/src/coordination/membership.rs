//! What of the fleet's limits is this node's own, and for how long.
//!
//! Every node tells the store now and then that it is there (a pulse), and hears how many there are and
//! which of them it is. The store forgets who is silent; since when it has known a node without a gap, it
//! says too. A node uses a share only while what it last heard is fresh, and after it has been known for
//! so long that everybody who uses a share has heard of it. So whoever uses a share knows of all others who
//! do, and shares add up to the limit: `docs/decisions/0013-synced-split-and-shards.md`.

use std::sync::Arc;

use tidegate_core::lease::clock_margin;
use tidegate_core::{Span, Timestamp};

use crate::store::Share;

/// Most terms that are kept. A client that was last seen before those starts with nothing.
const HISTORY: usize = 8;

/// A time during which one share belongs to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareTerm {
    /// Its number, counted from the first.
    pub number: u64,
    /// The share.
    pub share: Share,
    /// Its first instant.
    pub from: Timestamp,
    /// The first instant after it, unless it is renewed before.
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
    /// The time since which the store has counted this node without a gap: a number that changes with each gap.
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
    /// The node did not renew its share in time, or the store lost it, or it has left: its share is unknown.
    Expired,
}

/// A node's place in its fleet, as far as it knows. Time is an argument.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The time after which the store drops a node without heartbeats.
    heartbeat_timeout: Span,
    since: Option<u64>,
    sent: Timestamp,
    /// By their beginnings. The last may not have begun yet.
    terms: Vec<ShareTerm>,
    next: u64,
    gone: bool,
    /// The share for times without the store.
    last_share: Option<Share>,
    /// By then every live node has sent a pulse since the store knows this one.
    complete_at: Timestamp,
}

impl Membership {
    /// A node that the store has not heard of, and forgets after so long a silence.
    #[must_use]
    pub const fn new(heartbeat_timeout: Span) -> Self {
        Self {
            heartbeat_timeout,
            since: None,
            sent: Timestamp::EPOCH,
            terms: Vec::new(),
            next: 0,
            gone: false,
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

    /// Returns the share for times without the store, by the last known number of nodes: the whole if the node has
    /// never known it.
    ///
    /// A store that lost the list of nodes counts too few until all of them have sent a pulse. So a smaller
    /// number is used only when the store has known this node as long as a node may be silent.
    #[must_use]
    pub fn last_share(&self) -> Share {
        self.last_share.unwrap_or(Share::WHOLE)
    }

    /// Takes note of a pulse that was answered.
    ///
    /// An answer that came too late to be of use is not used at all, nor is one to a pulse from before
    /// the last.
    pub fn on_heartbeat(&mut self, heard: HeartbeatReply) {
        let HeartbeatReply { sent, received, share, since } = heard;
        // The store may count faster than this node, and forget it a little earlier.
        let until =
            sent + self.heartbeat_timeout.saturating_sub(clock_margin(self.heartbeat_timeout));
        if self.gone || sent < self.sent || until <= received {
            return;
        }
        self.sent = sent;
        if self.since == Some(since) {
            self.renewed(share, received, until);
        } else {
            self.since = Some(since);
            self.complete_at =
                received + self.heartbeat_timeout + clock_margin(self.heartbeat_timeout);
            self.joined(share, received, until);
        }
        if received >= self.complete_at || self.last_share.is_none_or(|last| last.of <= share.of) {
            self.last_share = Some(share);
        }
    }

    fn renewed(&mut self, share: Share, received: Timestamp, until: Timestamp) {
        let Some(last) = self.terms.last_mut() else { return };
        let waits = received < last.from;
        if waits || (received < last.until && last.share == share) {
            (last.share, last.until) = (share, until);
            return;
        }
        // One that was over before it could be renewed stays over when it was.
        last.until = last.until.min(received);
        self.begin(share, received, until);
    }

    /// The store knows this node anew. What it was told before it may use to the end of its time;
    /// nobody who is unknown to it can use a share until then.
    fn joined(&mut self, share: Share, received: Timestamp, until: Timestamp) {
        self.terms.pop_if(|last| received < last.from);
        self.begin(share, self.complete_at, until);
    }

    fn begin(&mut self, share: Share, from: Timestamp, until: Timestamp) {
        if self.terms.len() == HISTORY {
            self.terms.remove(0);
        }
        self.terms.push(ShareTerm { number: self.next, share, from, until });
        self.next += 1;
    }

    /// From now on nothing is this node's own.
    pub const fn leave(&mut self) {
        self.gone = true;
    }

    /// How the node stands at `now`.
    #[must_use]
    pub fn share_status(&self, now: Timestamp) -> ShareStatus<'_> {
        let begun = self.terms.partition_point(|term| term.from <= now);
        let (past, coming) = self.terms.split_at(begun);
        match (past, coming) {
            _ if self.gone => ShareStatus::Expired,
            ([.., current], _) if now < current.until => ShareStatus::Active(past),
            ([], [next, ..]) if now < next.until => {
                ShareStatus::Joining { share: next.share, wait: next.from.since(now) }
            }
            _ => ShareStatus::Expired,
        }
    }
}

/// A node's place in its fleet, at an instant of the clock that it counts by.
#[derive(Clone, Debug)]
pub struct MembershipView {
    /// The instant.
    pub at: Timestamp,
    /// The place.
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

    const SILENCE: Span = Span::from_secs(4);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000) + Span::from_millis(millis)
    }

    /// A pulse that took 2 ms, sent at an instant in milliseconds.
    fn pulse(sent: u64, index: u64, of: u64, since: u64) -> HeartbeatReply {
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

    /// A node that was heard every second, last at `last`.
    fn settled(last: u64) -> Membership {
        let mut node = Membership::new(SILENCE);
        (0..=last / 1_000).for_each(|second| node.on_heartbeat(pulse(second * 1_000, 0, 2, 7)));
        node
    }

    #[test]
    fn a_newcomer_waits_until_everybody_has_heard_of_it() {
        let mut node = Membership::new(SILENCE);
        assert_eq!(node.share_status(at(0)), ShareStatus::Expired);
        node.on_heartbeat(pulse(0, 1, 2, 7));
        let wait = Span::from_millis(4_050);
        assert_eq!(
            node.share_status(at(2)),
            ShareStatus::Joining { share: Share { index: 1, of: 2 }, wait }
        );
        (1..=4).for_each(|second| node.on_heartbeat(pulse(second * 1_000, 1, 3, 7)));
        assert_eq!(share(&node, 4_051), None);
        assert_eq!(share(&node, 4_052), Some((1, 3)));
    }

    #[test]
    fn a_node_that_cannot_renew_stops_before_the_store_forgets_it() {
        let node = settled(6_000);
        assert_eq!(share(&node, 9_949), Some((0, 2)));
        assert_eq!(node.share_status(at(9_950)), ShareStatus::Expired);
    }

    #[test]
    fn one_that_only_missed_the_answers_goes_on_when_it_hears_again() {
        let mut node = settled(6_000);
        node.on_heartbeat(pulse(20_000, 0, 2, 7));
        assert_eq!(node.share_status(at(20_001)), ShareStatus::Expired);
        assert_eq!(share(&node, 20_002), Some((0, 2)));
        let ShareStatus::Active([.., before, now]) = node.share_status(at(20_002)) else {
            panic!()
        };
        assert_eq!((before.until, now.from), (at(9_950), at(20_002)), "there was a gap");
    }

    #[test]
    fn one_that_was_forgotten_uses_what_it_had_to_its_end_and_then_waits() {
        let mut node = settled(6_000);
        node.on_heartbeat(pulse(7_000, 0, 1, 8));
        assert_eq!(share(&node, 9_949), Some((0, 2)), "nobody unknown can use a share yet");
        (8..=11).for_each(|second| node.on_heartbeat(pulse(second * 1_000, 0, 2, 8)));
        assert_eq!(node.share_status(at(9_950)), ShareStatus::Expired, "the store has failed it");
        assert_eq!(share(&node, 11_051), None);
        assert_eq!(share(&node, 11_052), Some((0, 2)));
    }

    #[test]
    fn a_share_changes_as_soon_as_it_is_heard() {
        let mut node = settled(6_000);
        node.on_heartbeat(pulse(7_000, 0, 3, 7));
        assert_eq!(share(&node, 7_001), Some((0, 2)));
        assert_eq!(share(&node, 7_002), Some((0, 3)));
        node.on_heartbeat(pulse(6_500, 0, 2, 7));
        assert_eq!(share(&node, 7_003), Some((0, 3)), "an answer to an older pulse says nothing");
    }

    #[test]
    fn an_answer_that_took_too_long_is_not_used() {
        let mut node = settled(6_000);
        let late = HeartbeatReply { received: at(11_000), ..pulse(7_000, 0, 2, 7) };
        node.on_heartbeat(late);
        assert_eq!(node.share_status(at(10_000)), ShareStatus::Expired);
    }

    #[test]
    fn share_without_the_store_is_the_one_from_before_a_restart() {
        assert_eq!(Membership::new(SILENCE).last_share(), Share::WHOLE);
        let share = Share { index: 2, of: 4 };
        let mut node = Membership::new(SILENCE).with_last_share(share);
        assert_eq!(node.last_share(), share);
        node.on_heartbeat(pulse(0, 1, 5, 7));
        assert_eq!(node.last_share(), Share { index: 1, of: 5 }, "a larger fleet counts at once");
    }

    #[test]
    fn smaller_fleet_counts_only_after_every_node_has_sent_a_pulse() {
        let four = Share { index: 2, of: 4 };
        let mut node = Membership::new(SILENCE).with_last_share(four);
        (0..=4).for_each(|second| node.on_heartbeat(pulse(second * 1_000, 0, 1, 7)));
        assert_eq!(node.last_share(), four);
        node.on_heartbeat(pulse(4_050, 0, 1, 7));
        assert_eq!(node.last_share(), Share::WHOLE);

        let mut node = settled(6_000);
        node.on_heartbeat(pulse(7_000, 0, 1, 8));
        assert_eq!(node.last_share().of, 2, "the store has lost the list of nodes");
        node.on_heartbeat(pulse(12_000, 0, 1, 8));
        assert_eq!(node.last_share(), Share::WHOLE);
    }

    #[test]
    fn who_has_left_has_nothing() {
        let mut node = settled(6_000);
        node.leave();
        node.on_heartbeat(pulse(7_000, 0, 2, 7));
        assert_eq!(node.share_status(at(7_100)), ShareStatus::Expired);
    }

    #[test]
    fn only_so_many_eras_are_remembered() {
        let mut node = settled(6_000);
        (0..100).for_each(|count| node.on_heartbeat(pulse(7_000 + count, 0, 2 + count % 2, 7)));
        let ShareStatus::Active(terms) = node.share_status(at(7_200)) else { panic!() };
        assert_eq!(terms.len(), HISTORY);
        assert!(terms.windows(2).all(|pair| pair[0].until == pair[1].from));
    }
}
