//! The address of a client, behind proxies or not.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::header::HeaderMap;
use ipnet::IpNet;
use tidegate_core::address::{DEFAULT_IPV6_PREFIX, client_network};

use super::forwarded::ForwardedHeader;

/// What is believed about where clients are.
#[derive(Debug)]
pub struct AddressConfig {
    /// Proxies whose word about their clients counts.
    pub trusted: Vec<IpNet>,
    /// Where they give it.
    pub header: ForwardedHeader,
    /// How many bits of an IPv6 address name a client.
    pub ipv6_prefix: u8,
}

impl Default for AddressConfig {
    /// Trusts no proxy.
    fn default() -> Self {
        let header = ForwardedHeader::default();
        Self { trusted: Vec::new(), header, ipv6_prefix: DEFAULT_IPV6_PREFIX }
    }
}

/// Finds the address of a client.
#[derive(Debug)]
pub struct Addresses {
    config: AddressConfig,
    /// Whether somebody was told that its header does not count.
    warned: AtomicBool,
}

impl Addresses {
    pub(crate) fn new(config: AddressConfig) -> Self {
        Self { config, warned: AtomicBool::new(false) }
    }

    /// The client's address as rules count it: an IPv4 address, or the network of an IPv6 address.
    pub(crate) fn read(&self, peer: IpAddr, headers: &HeaderMap) -> String {
        let header = self.config.header;
        let trusts = |address| self.trusts(address);
        if !trusts(peer.to_canonical()) && headers.contains_key(header.name()) {
            self.warn(peer);
        }
        let client = header.client(peer, headers, trusts);
        client_network(client, self.config.ipv6_prefix).to_string()
    }

    /// Whether this address is a proxy whose word counts.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.config.trusted.iter().any(|network| network.contains(&address))
    }

    /// Says once that a header is passed over: all clients behind a proxy that is not trusted share
    /// one bucket, and whoever set that up should learn why.
    fn warn(&self, peer: IpAddr) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                header = %self.config.header.name(),
                proxy = %peer,
                "passed over a forwarded address, identity.trusted_proxies does not have its sender"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ipv6_prefix: u8) -> Addresses {
        let trusted = vec!["10.0.0.0/8".parse().unwrap()];
        Addresses::new(AddressConfig { trusted, ipv6_prefix, ..AddressConfig::default() })
    }

    fn seen(prefix: u8, peer: &str) -> String {
        addresses(prefix).read(peer.parse().unwrap(), &HeaderMap::new())
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        assert_eq!(seen(64, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(seen(48, "2001:db8:1:2:3:4:5:6"), "2001:db8:1::");
        assert_eq!(seen(128, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2:3:4:5:6");
        assert_eq!(seen(1, "2001:db8:1:2:3:4:5:6"), "::");
        assert_eq!(seen(64, "::ffff:192.0.2.7"), "192.0.2.7");
    }

    #[test]
    fn a_proxy_is_trusted_over_ipv6_sockets_too() {
        let headers = HeaderMap::from_iter([(
            ForwardedHeader::XForwardedFor.name(),
            "2001:db8:1:2:3::".parse().unwrap(),
        )]);
        let seen = addresses(64).read("::ffff:10.0.0.1".parse().unwrap(), &headers);
        assert_eq!(seen, "2001:db8:1:2::");
    }

    #[test]
    fn a_header_that_is_passed_over_is_noted() {
        let headers = HeaderMap::from_iter([(
            ForwardedHeader::XForwardedFor.name(),
            "192.0.2.7".parse().unwrap(),
        )]);
        let addresses = addresses(64);
        assert_eq!(addresses.read("10.0.0.1".parse().unwrap(), &headers), "192.0.2.7");
        assert!(!addresses.warned.load(Ordering::Relaxed));
        assert_eq!(addresses.read("127.0.0.1".parse().unwrap(), &headers), "127.0.0.1");
        assert!(addresses.warned.load(Ordering::Relaxed));
    }
}
