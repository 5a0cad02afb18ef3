//! Addresses and networks: `{in: [10.0.0.0/8, 2001:db8::/32, 192.0.2.7]}`.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Parses an address; an IPv4 address inside IPv6 becomes the IPv4 address.
///
/// A client that connects to a dual-stack listener over IPv4 has the address `::ffff:192.0.2.7`, and the rules for
/// `192.0.2.7` must apply to it.
#[must_use]
pub fn parse_address(value: &str) -> Option<IpAddr> {
    value.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// A set of networks that finds an address by binary search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSet {
    in_document_order: Box<[IpNet]>,
    /// First and last addresses of disjoint ranges, in ascending order.
    ranges: Box<[(IpAddr, IpAddr)]>,
}

impl NetworkSet {
    /// Creates a set of networks; bits after a prefix are ignored.
    #[must_use]
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let in_document_order: Box<[IpNet]> = networks.into_iter().map(canonical_network).collect();
        let mut sorted: Vec<(IpAddr, IpAddr)> = in_document_order
            .iter()
            .map(|network| (network.network(), network.broadcast()))
            .collect();
        sorted.sort_unstable();
        let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match ranges.last_mut() {
                // Two networks are disjoint, or one contains the other.
                Some((_, end)) if first <= *end => *end = last.max(*end),
                _ => ranges.push((first, last)),
            }
        }
        Self { in_document_order, ranges: ranges.into() }
    }

    /// Returns whether the value is an address in one of the networks.
    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        let Some(address) = parse_address(value) else {
            return false;
        };
        let after = self.ranges.partition_point(|(first, _)| *first <= address);
        after
            .checked_sub(1)
            .and_then(|index| self.ranges.get(index))
            .is_some_and(|(_, last)| address <= *last)
    }

    /// Returns the networks in the order of the document.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &IpNet> {
        self.in_document_order.iter()
    }
}

/// Reads `10.0.0.0/8` or `192.0.2.7`; IPv4 inside IPv6 is IPv4.
///
/// # Errors
/// The text is neither an address nor a network, or it has bits after its prefix.
pub fn parse_network(text: &str) -> Result<IpNet, NetworkError> {
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => IpNet::from(text.parse::<IpAddr>().map_err(|_| NetworkError::Text)?),
    };
    if network.trunc() != network {
        return Err(NetworkError::HostBits(network.trunc()));
    }
    Ok(canonical_network(network))
}

/// Returns the same network without bits after its prefix; one of IPv4 addresses written as IPv6 is the IPv4
/// network, like its addresses.
#[must_use]
pub fn canonical_network(network: IpNet) -> IpNet {
    let network = network.trunc();
    let shorter = network.prefix_len().checked_sub(96);
    match (network.addr().to_canonical(), shorter) {
        (IpAddr::V4(address), Some(length)) if network.addr().is_ipv6() => {
            IpNet::new(address.into(), length).unwrap_or(network)
        }
        _ => network,
    }
}

/// The reason why a text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkError {
    /// The text is neither an address nor a network.
    Text,
    /// `10.0.0.1/8` may mean one address or the whole network.
    HostBits(IpNet),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("must be an address or a network like 10.0.0.0/8"),
            Self::HostBits(whole) => {
                write!(f, "must not have bits after its prefix (the network is {whole})")
            }
        }
    }
}

impl std::error::Error for NetworkError {}
