//! The cluster as one of its nodes reports it.

use std::ops::RangeInclusive;

use crate::redis::Redis;

/// Number of slots in a cluster.
pub(crate) const SLOT_COUNT: u16 = 16_384;

/// The nodes and slot owners in the view of one node.
#[derive(Debug)]
pub(crate) struct ClusterView {
    peers: Vec<ClusterPeer>,
}

#[derive(Debug)]
struct ClusterPeer {
    port: u16,
    is_well: bool,
    slots: Vec<RangeInclusive<u16>>,
}

impl ClusterView {
    /// Returns the view of a node, if it answers.
    pub(crate) fn of(redis: &Redis) -> Option<Self> {
        let nodes: String = redis.try_query(&["CLUSTER", "NODES"]).ok()?;
        Some(Self { peers: nodes.lines().filter_map(ClusterPeer::read).collect() })
    }

    /// Returns the port of the node that owns a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<u16> {
        let owns = |peer: &&ClusterPeer| peer.slots.iter().any(|slots| slots.contains(&slot));
        self.peers.iter().find(owns).map(|peer| peer.port)
    }

    /// Returns the ports of all nodes that own slots.
    pub(crate) fn owners(&self) -> impl Iterator<Item = u16> {
        self.peers.iter().filter(|peer| !peer.slots.is_empty()).map(|peer| peer.port)
    }

    /// Returns whether it has the node on this port as one that is met and well.
    pub(crate) fn sees(&self, port: u16) -> bool {
        self.peers.iter().any(|peer| peer.port == port && peer.is_well)
    }

    pub(crate) fn covers_all_slots(&self) -> bool {
        let slots = self.peers.iter().flat_map(|peer| &peer.slots);
        slots.map(ExactSizeIterator::len).sum::<usize>() == usize::from(SLOT_COUNT)
    }

    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        self.shares() == other.shares()
    }

    fn shares(&self) -> Vec<(u16, &[RangeInclusive<u16>])> {
        let owners = self.peers.iter().filter(|peer| !peer.slots.is_empty());
        let mut shares: Vec<_> = owners.map(|peer| (peer.port, peer.slots.as_slice())).collect();
        shares.sort_by_key(|(port, _)| *port);
        shares
    }
}

impl ClusterPeer {
    /// Reads `id ip:port@bus flags master ping pong epoch link slot…`.
    fn read(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, address, flags, _, _, _, _, link, slots @ ..] = fields.as_slice() else {
            return None;
        };
        let port = address.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        let is_troubled = |flag| ["fail", "fail?", "handshake", "noaddr"].contains(&flag);
        let is_well = *link == "connected" && !flags.split(',').any(is_troubled);
        // In brackets are slots on their way, which are listed among the owner's as well.
        let slots = slots.iter().filter(|slots| !slots.starts_with('['));
        let slots = slots.map(|slots| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Some(Self { port, is_well, slots: slots.collect::<Option<_>>()? })
    }
}

/// Returns `ok` or `fail`, if the node replies.
pub(crate) fn cluster_state(redis: &Redis) -> Option<String> {
    let info: String = redis.try_query(&["CLUSTER", "INFO"]).ok()?;
    info.lines().find_map(|line| line.strip_prefix("cluster_state:")).map(str::to_owned)
}
