//! Network addresses as rules count them.

use std::net::{IpAddr, Ipv6Addr};

/// Number of bits of an IPv6 address that identify a client by default. A client with one address of an IPv6 network
/// usually has 64 bits of them.
pub const DEFAULT_IPV6_PREFIX: u8 = 64;

/// Returns the address that identifies a client: an IPv4 address, or the network of an IPv6 address.
#[must_use]
pub fn client_network(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let dropped = 128 - u32::from(ipv6_prefix.min(128));
            let kept = u128::MAX.checked_shl(dropped).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & kept).into()
        }
    }
}
