//! The client address in a chain of proxies.
//!
//! Each proxy adds the address of its peer on the right. Only addresses that a trusted proxy added are correct, so the
//! chain is read from the right. Addresses that the client wrote itself are left of those, and are never used.

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::header::{FORWARDED, HeaderMap, HeaderName};

/// The header that the trusted proxies set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For: 192.0.2.7, 10.0.0.1`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=192.0.2.7, for="[2001:db8::1]:4711";proto=https` (RFC 7239)
    Forwarded,
}

impl ForwardedHeader {
    /// Returns the name of the header.
    pub fn name(self) -> HeaderName {
        match self {
            Self::XForwardedFor => HeaderName::from_static("x-forwarded-for"),
            Self::Forwarded => FORWARDED,
        }
    }

    /// Returns the address of the client behind `peer`: the first address from the right that is not trusted.
    ///
    /// An untrusted peer is the client, whatever it sends. If a trusted proxy added something that is no address
    /// (`unknown`, an obfuscated name, garbage), that proxy is the client: addresses further left could be forged.
    /// Several lines of the header are joined in their order.
    pub fn client_address(
        self,
        peer: IpAddr,
        headers: &HeaderMap,
        is_trusted: impl Fn(IpAddr) -> bool,
    ) -> IpAddr {
        let mut client = peer.to_canonical();
        if !is_trusted(client) {
            return client;
        }
        let lines = headers.get_all(self.name()).into_iter().rev();
        let mut hops = lines.flat_map(|line| self.hops(line.as_bytes()));
        while is_trusted(client) {
            match hops.next() {
                Some(Some(hop)) => client = hop,
                Some(None) | None => break,
            }
        }
        client
    }

    /// Returns the hops of one line from right to left; `None` for one that is no address.
    fn hops(self, line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
        let mut rest = Some(line);
        std::iter::from_fn(move || {
            let line = rest?;
            let comma = match self {
                Self::XForwardedFor => line.iter().rposition(|byte| *byte == b','),
                Self::Forwarded => last_comma(line),
            };
            let (before, hop) = match comma {
                Some(at) => (Some(&line[..at]), &line[at + 1..]),
                None => (None, line),
            };
            rest = before;
            let hop = std::str::from_utf8(hop).ok();
            Some(hop.and_then(|hop| match self {
                Self::XForwardedFor => parse_address(hop.trim_ascii()),
                Self::Forwarded => parse_element(hop),
            }))
        })
    }
}

/// Returns the last comma outside quotes. The line is read from the right.
///
/// If it were read from the left, a quote that a client opens and never closes would hide the addresses that proxies add.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if !quoted => quoted = true,
            b'"' => {
                let backslashes = line[..at].iter().rev().take_while(|byte| **byte == b'\\');
                quoted = backslashes.count() % 2 == 1;
            }
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Returns the address in one element of `Forwarded`: the value of `for`, which must occur once.
fn parse_element(element: &str) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element.trim_ascii();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(';') {
            rest = after.trim_ascii_start();
            continue;
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = parse_value(after)?;
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
        rest = after.trim_ascii_start();
        if !rest.is_empty() && !rest.starts_with(';') {
            return None;
        }
    }
    parse_address(&found?)
}

/// Returns the value at the start of a text, without quotes, and the rest of the text.
fn parse_value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ' ', '\t', '"']).unwrap_or(text.len());
        let (value, after) = text.split_at(end);
        return Some((value.into(), after));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value.into(), &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// Parses an address: IPv4 or IPv6, with or without brackets and port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let (host, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']')?;
            let host: IpAddr = host.parse().ok().filter(IpAddr::is_ipv6)?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.parse() {
            Ok(host) => (host, None),
            Err(_) => {
                let (host, port) = text.split_once(':')?;
                (host.parse().ok().filter(IpAddr::is_ipv4)?, Some(port))
            }
        },
    };
    port.is_none_or(is_port).then_some(host.to_canonical())
}

/// Returns whether a text is a port: a number, or an obfuscated port of RFC 7239, such as `_hidden`.
fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok() || text.strip_prefix('_').is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::ForwardedHeader::{Forwarded, XForwardedFor};
    use super::*;

    /// Trusts 10.0.0.0/8 and fd00::/8.
    fn trusted(address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.octets()[0] == 0xfd,
        }
    }

    fn client(header: ForwardedHeader, peer: &str, lines: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header.name(), HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        header.client_address(peer.parse().unwrap(), &headers, trusted).to_string()
    }

    #[test]
    fn untrusted_peer_is_the_client_whatever_it_sends() {
        assert_eq!(client(XForwardedFor, "192.0.2.7", &["198.51.100.1"]), "192.0.2.7");
        assert_eq!(client(Forwarded, "192.0.2.7", &["for=10.0.0.1"]), "192.0.2.7");
        assert_eq!(client(XForwardedFor, "::ffff:192.0.2.7", &["10.0.0.1"]), "192.0.2.7");
    }

    #[test]
    fn addresses_left_of_the_proxies_are_ignored() {
        for spoofed in ["198.51.100.1", "10.0.0.9", "\"", "for=\"", ",,,", "unknown", "\\\""] {
            let line = format!("{spoofed}, 192.0.2.7, 10.0.0.2");
            assert_eq!(client(XForwardedFor, "10.0.0.1", &[&line]), "192.0.2.7", "{line}");
            assert_eq!(client(XForwardedFor, "10.0.0.1", &[spoofed, "192.0.2.7"]), "192.0.2.7");
            let line = format!("{spoofed}, for=\"192.0.2.7:80\", for=10.0.0.2");
            assert_eq!(client(Forwarded, "10.0.0.1", &[&line]), "192.0.2.7", "{line}");
        }
    }

    #[test]
    fn invalid_hop_makes_the_last_trusted_proxy_the_client() {
        for garbage in ["", "unknown", "_hidden", "host.example", "1.2.3", "1.2.3.4:x", "[::1"] {
            let line = format!("192.0.2.7, {garbage}, 10.0.0.2");
            assert_eq!(client(XForwardedFor, "10.0.0.1", &[&line]), "10.0.0.2", "{line}");
            let line = format!("for=192.0.2.7, for=\"{garbage}\", for=10.0.0.2");
            assert_eq!(client(Forwarded, "10.0.0.1", &[&line]), "10.0.0.2", "{line}");
        }
        for garbage in ["by=192.0.2.7", "for=1.2.3.4;for=1.2.3.4", "for", "for=\"1.2.3.4", "\"a\""]
        {
            let line = format!("for=192.0.2.7, {garbage}, for=10.0.0.2");
            assert_eq!(client(Forwarded, "10.0.0.1", &[&line]), "10.0.0.2", "{line}");
        }
    }

    #[test]
    fn without_the_header_the_proxy_is_the_client() {
        assert_eq!(client(XForwardedFor, "10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(client(XForwardedFor, "10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    }

    #[test]
    fn several_header_lines_are_joined_in_order() {
        let lines = ["198.51.100.1, 192.0.2.7", "10.0.0.3", "10.0.0.2"];
        assert_eq!(client(XForwardedFor, "10.0.0.1", &lines), "192.0.2.7");
    }

    #[test]
    fn every_notation_of_an_address_is_parsed() {
        let cases = [
            ("192.0.2.7", "192.0.2.7"),
            (" 192.0.2.7:4711\t", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:DB8:0::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
        ];
        for (written, meant) in cases {
            assert_eq!(client(XForwardedFor, "10.0.0.1", &[written]), meant, "{written}");
        }
        let cases = [
            ("For=192.0.2.7", "192.0.2.7"),
            ("for=192.0.2.7:80;;by=10.0.0.1 ; ", "192.0.2.7"),
            ("proto=http;FOR=\"[2001:db8::1]:_port\"", "2001:db8::1"),
            (r#"host="a,b;for=1.2.3.4\"";for="192.0.\2.7""#, "192.0.2.7"),
        ];
        for (written, meant) in cases {
            assert_eq!(client(Forwarded, "10.0.0.1", &[written]), meant, "{written}");
        }
    }

    /// Returns the text of a hop that a proxy adds, and its address.
    fn hop(header: ForwardedHeader) -> impl Strategy<Value = (String, Option<IpAddr>)> {
        let v4 = (prop_oneof![Just(10_u8), Just(192)], any::<[u8; 3]>())
            .prop_map(|(first, [b, c, d])| IpAddr::from([first, b, c, d]));
        let v6 = (prop_oneof![Just(0xfd00_u16), Just(0x2001)], any::<[u16; 3]>())
            .prop_map(|(first, [b, c, d])| IpAddr::from([first, b, c, d, 0, 0, 0, 1]));
        let known = (prop_oneof![v4, v6], proptest::option::of(any::<u16>())).prop_map(
            move |(address, port)| {
                let written = match (address, port) {
                    (IpAddr::V4(address), Some(port)) => format!("{address}:{port}"),
                    (IpAddr::V4(address), None) => address.to_string(),
                    (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
                    (IpAddr::V6(address), None) => format!("[{address}]"),
                };
                (written, Some(address))
            },
        );
        let unknown = prop_oneof![Just("unknown"), Just("_a.b-c")];
        let hop = prop_oneof![8 => known, 1 => unknown.prop_map(|text| (text.to_owned(), None))];
        let around = prop_oneof![Just(""), Just(";proto=https"), Just(r#";host="a,\"b\\""#)];
        (hop, around).prop_map(move |((written, meant), around)| match header {
            XForwardedFor => (written, meant),
            Forwarded => (format!("for=\"{written}\"{around}"), meant),
        })
    }

    fn header_case(
        header: ForwardedHeader,
    ) -> impl Strategy<Value = (ForwardedHeader, String, Vec<(String, Option<IpAddr>)>, u8)> {
        let spoofed = "[ -~\t]{0,40}";
        let hops = proptest::collection::vec(hop(header), 1..6);
        (Just(header), spoofed, hops, any::<u8>())
    }

    proptest! {
        /// The naive model walks a list of hops. The header has the same hops after arbitrary text of a client.
        #[test]
        fn client_address_equals_that_of_a_naive_model(
            (header, spoofed, hops, lines) in prop_oneof![header_case(XForwardedFor), header_case(Forwarded)]
        ) {
            let peer = IpAddr::from([10, 0, 0, 1]);
            let mut model = Some(peer);
            for (_, hop) in hops.iter().rev() {
                match hop {
                    Some(hop) if model.is_some_and(trusted) => model = Some(*hop),
                    None if model.is_some_and(trusted) => break,
                    _ => break,
                }
            }
            // If every hop is trusted, the text of the client is used, and the model does not apply.
            prop_assume!(hops.iter().any(|(_, hop)| hop.is_none_or(|hop| !trusted(hop))));
            let mut headers = HeaderMap::new();
            let mut line = spoofed.trim().to_owned();
            for (place, (written, _)) in hops.iter().enumerate() {
                if lines & (1 << place) != 0 {
                    headers.append(header.name(), line.parse().unwrap());
                    line = written.clone();
                } else {
                    line = format!("{line}, {written}");
                }
            }
            headers.append(header.name(), line.parse().unwrap());
            prop_assert_eq!(Some(header.client_address(peer, &headers, trusted)), model);
        }
    }
}
