//! Items by the networks that contain an address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::pattern_set::{FixedHasher, ItemList, push_once};

/// Finds the items of every network that contains an address, with one lookup for each prefix length in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkIndex {
    v4: NetworksByLength,
    v6: NetworksByLength,
}

/// Networks by the number of bits after their prefix, and by the prefix.
type NetworksByLength = BTreeMap<u32, HashMap<u128, ItemList, FixedHasher>>;

impl NetworkIndex {
    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Adds an item of a network.
    pub(crate) fn add(&mut self, network: IpNet, item: u32) {
        let lengths = match network {
            IpNet::V4(_) => &mut self.v4,
            IpNet::V6(_) => &mut self.v6,
        };
        let bits_after = u32::from(network.max_prefix_len() - network.prefix_len());
        let networks = lengths.entry(bits_after).or_default();
        push_once(networks.entry(prefix(network.addr(), bits_after)).or_default(), item);
    }

    /// Calls `found` with the items of every network that contains the address.
    pub(crate) fn visit(&self, address: IpAddr, found: &mut impl FnMut(u32)) {
        let lengths = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        for (&bits_after, by_prefix) in lengths {
            if let Some(items) = by_prefix.get(&prefix(address, bits_after)) {
                items.iter().copied().for_each(&mut *found);
            }
        }
    }
}

/// Returns the bits of an address without the last `bits_after`.
fn prefix(address: IpAddr, bits_after: u32) -> u128 {
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    bits.checked_shr(bits_after).unwrap_or(0)
}
