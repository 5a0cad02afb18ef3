//! All that there is at one instant. Times are what is left, in ticks.

use crate::algorithm::Gauge;

/// The most nodes of a fleet.
pub const NODES: usize = 3;
/// The most holds that a store keeps of one client.
pub const HOLDS: usize = 4;
/// The most holds that a node uses at once.
pub const LEASES: usize = 2;

/// A hold as the store knows it. No tokens: no hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// Who has it.
    pub node: u8,
    /// Its name, among those of the node.
    pub id: u8,
    /// Tokens that were granted.
    pub amount: u8,
    /// Tokens that are reported spent.
    pub spent: u8,
    /// Ticks of the store's clock until it is over.
    pub left: u8,
    /// What the node was told: ticks from when it asked.
    pub life: u8,
    /// Closed and remembered, which only a flawed store does.
    pub closed: bool,
}

/// What the store remembers of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// What is used.
    pub used: Gauge,
    /// What is held.
    pub holds: [Hold; HOLDS],
    /// The keys that say so, in fleets whose keys expire.
    pub keys: Keys,
}

/// The two keys of a client. A lease that ends is counted when the next question arrives, and until then
/// both keys are needed for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// What the key of the state says: used, without leases that ended since the last question.
    pub state: Gauge,
    /// What the key of the leases says of those.
    pub ended: Gauge,
    /// Ticks until the key of the state expires; 0 for none.
    pub state_left: u8,
    /// Ticks until the key of the leases expires; 0 for none.
    pub holds_left: u8,
}

/// A hold as its node knows it. No tokens: no hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// Its name.
    pub id: u8,
    /// Tokens that were granted.
    pub amount: u8,
    /// Tokens that are spent.
    pub spent: u8,
    /// Ticks of the node's clock for which it may be used.
    pub left: u8,
}

/// What a node says of a hold. Id 0: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    /// The hold.
    pub id: u8,
    /// How many of its tokens are spent, in all.
    pub spent: u8,
    /// Whether the rest is given back.
    pub closed: bool,
}

/// A question that waits for its answer. Id 0: none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asking {
    /// The hold that was asked for.
    pub id: u8,
    /// Ticks of the node's clock since then.
    pub age: u8,
}

/// A node's memory, and how its clock does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// The question that waits.
    pub asking: Asking,
    /// What it may use.
    pub leases: [Lease; LEASES],
    /// The last hold that it closed, to be said again.
    pub closed: Report,
    /// Ticks until its clock may go wrong again.
    pub steady: u8,
}

/// What is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Message {
    /// To the store.
    Question {
        /// Who asks.
        node: u8,
        /// The hold that is asked for.
        id: u8,
        /// Tokens of the request that asks.
        cost: u8,
        /// Tokens that would be held.
        want: u8,
        /// What was spent of earlier holds.
        reports: [Report; LEASES + 1],
    },
    /// To the node.
    Answer {
        /// Who asked.
        node: u8,
        /// The hold.
        id: u8,
        /// Its tokens.
        amount: u8,
        /// Ticks for which it may be used, from when it was asked for.
        life: u8,
    },
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Ticks into the window.
    pub place: u8,
    /// The store.
    pub store: Store,
    /// What the store goes back to when it fails.
    pub replica: Option<Store>,
    /// Whether it has failed.
    pub failed: bool,
    /// The nodes.
    pub nodes: [Node; NODES],
    /// What is on its way, in order.
    pub flight: Vec<Message>,
    /// What was really admitted.
    pub admitted: Gauge,
    /// Parts of tokens that the store lost.
    pub lost: u16,
}

impl Node {
    /// Whether it remembers nothing.
    pub fn is_blank(&self) -> bool {
        Self { steady: self.steady, ..Self::default() } == *self
    }
}

impl Store {
    /// Where a hold is.
    pub fn find(&self, node: u8, id: u8) -> Option<usize> {
        self.holds.iter().position(|hold| hold.amount > 0 && hold.node == node && hold.id == id)
    }

    /// Tokens that are held and not known to be spent.
    pub fn held(&self) -> u8 {
        self.holds.iter().map(|hold| hold.amount - hold.spent).sum()
    }
}
