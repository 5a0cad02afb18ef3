//! The address of a client, behind proxies or not.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::header::HeaderMap;
use ipnet::IpNet;
use tidegate_core::address::{DEFAULT_IPV6_PREFIX, client_network};
use tidegate_rules::canonical_network;

use super::forwarded::ForwardedHeader;

/// The trusted proxies, and the header with the client address.
#[derive(Debug)]
pub struct AddressConfig {
    /// The networks of the trusted proxies. Forwarded headers of other peers are ignored.
    pub trusted: Vec<IpNet>,
    /// The header that the trusted proxies set.
    pub header: ForwardedHeader,
    /// Number of bits of an IPv6 address that identify a client.
    pub ipv6_prefix: u8,
}

impl Default for AddressConfig {
    /// Trusts no proxy.
    fn default() -> Self {
        let header = ForwardedHeader::default();
        Self { trusted: Vec::new(), header, ipv6_prefix: DEFAULT_IPV6_PREFIX }
    }
}

/// Determines the address of a client.
#[derive(Debug)]
pub struct AddressReader {
    config: AddressConfig,
    /// Set after the warning about an ignored header was logged.
    warned: AtomicBool,
}

impl AddressReader {
    pub(crate) fn new(mut config: AddressConfig) -> Self {
        // The addresses that are compared with them are canonical too.
        config.trusted.iter_mut().for_each(|network| *network = canonical_network(*network));
        Self { config, warned: AtomicBool::new(false) }
    }

    /// Returns the client's address as rules count it: an IPv4 address, or the network of an IPv6 address.
    pub(crate) fn read(&self, peer: IpAddr, headers: &HeaderMap) -> String {
        let header = self.config.header;
        self.warn_if_ignored(peer, headers);
        let client = header.client_address(peer, headers, |address| self.is_trusted(address));
        client_network(client, self.config.ipv6_prefix).to_string()
    }

    /// Logs the first forwarded address that is ignored because its sender is not trusted.
    pub(crate) fn warn_if_ignored(&self, peer: IpAddr, headers: &HeaderMap) {
        if !self.is_trusted(peer.to_canonical()) && headers.contains_key(self.config.header.name())
        {
            self.warn_once(peer);
        }
    }

    /// Returns whether this address is a trusted proxy.
    pub(crate) fn is_trusted(&self, address: IpAddr) -> bool {
        self.config.trusted.iter().any(|network| network.contains(&address))
    }

    /// Logs the first ignored header. All clients behind an untrusted proxy share one bucket, which is often a mistake in
    /// the configuration.
    fn warn_once(&self, peer: IpAddr) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                header = %self.config.header.name(),
                proxy = %peer,
                "ignored a forwarded address, identity.trusted_proxies does not contain its sender"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ipv6_prefix: u8) -> AddressReader {
        let trusted = vec!["10.0.0.0/8".parse().unwrap()];
        AddressReader::new(AddressConfig { trusted, ipv6_prefix, ..AddressConfig::default() })
    }

    fn client_address(prefix: u8, peer: &str) -> String {
        addresses(prefix).read(peer.parse().unwrap(), &HeaderMap::new())
    }

    #[test]
    fn ipv6_network_is_one_client() {
        assert_eq!(client_address(64, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(client_address(48, "2001:db8:1:2:3:4:5:6"), "2001:db8:1::");
        assert_eq!(client_address(128, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2:3:4:5:6");
        assert_eq!(client_address(1, "2001:db8:1:2:3:4:5:6"), "::");
        assert_eq!(client_address(64, "::ffff:192.0.2.7"), "192.0.2.7");
    }

    #[test]
    fn ipv4_proxy_is_trusted_on_an_ipv6_socket() {
        let headers = HeaderMap::from_iter([(
            ForwardedHeader::XForwardedFor.name(),
            "2001:db8:1:2:3::".parse().unwrap(),
        )]);
        let client_address = addresses(64).read("::ffff:10.0.0.1".parse().unwrap(), &headers);
        assert_eq!(client_address, "2001:db8:1:2::");
    }

    #[test]
    fn trusted_ipv4_network_may_be_written_as_ipv6() {
        for (network, trusted, other) in [
            ("::ffff:127.0.0.1/128", "127.0.0.1", "127.0.0.2"),
            ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.1"),
            ("fd00::/8", "fd00::1", "10.0.0.1"),
        ] {
            let trusted_networks = vec![network.parse().unwrap()];
            let config = AddressConfig { trusted: trusted_networks, ..AddressConfig::default() };
            let addresses = AddressReader::new(config);
            assert!(addresses.is_trusted(trusted.parse().unwrap()), "{network}");
            assert!(!addresses.is_trusted(other.parse().unwrap()), "{network}");
        }
    }

    #[test]
    fn ignored_header_is_logged_once() {
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
