//! The subject of a block: a network in the clear, or a client by a keyed hash of its attributes.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{Keyer, Part, Request, Scope};
use tidegate_rules::{AttributeChain, NetworkError, Rule};

/// The attribute with addresses as values. They are not secret.
const IP_ATTRIBUTE: &str = "ip";

/// The subject of an entry in the block list.
///
/// An address is stored in the clear, because a load balancer needs it. Values of other attributes may be secret, so
/// only their hash is stored. The hash is keyed, so that values can't be found by trying.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Every address in a network.
    Network(IpNet),
    /// A client with certain values of certain attributes.
    Client {
        /// The attributes, sorted and without duplicates: `user`, or `path` and `user` together.
        attributes: Box<[Box<str>]>,
        /// The keyed hash of their values, computed by the [`BlockList`](super::BlockList).
        digest: [u8; 16],
    },
}

impl Subject {
    /// Most attributes that identify one client.
    pub const MAX_ATTRIBUTES: usize = Rule::MAX_PER_ENTRIES;

    /// Returns the subject in the canonical form, which lookups use.
    pub(crate) fn canonical(self) -> Self {
        match self {
            Self::Network(network) => Self::Network(tidegate_rules::canonical_network(network)),
            client @ Self::Client { .. } => client,
        }
    }

    pub(crate) fn is_canonical(&self) -> bool {
        match self {
            Self::Network(network) => tidegate_rules::canonical_network(*network) == *network,
            Self::Client { .. } => true,
        }
    }
}

/// Formats a network as `192.0.2.0/24`, and a client as `user#` and 32 hexadecimal digits. Different subjects have
/// different texts.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Client { attributes, digest } => {
                write!(f, "{}#{:032x}", attributes.join("+"), u128::from_be_bytes(*digest))
            }
        }
    }
}

/// A set of attributes that together identify a client, and the key of the hash of their values.
#[derive(Clone, Debug)]
pub(crate) struct ClientShape {
    attributes: Box<[Box<str>]>,
    scope: Scope,
}

impl ClientShape {
    /// Creates a shape. `attributes` must be sorted and without duplicates.
    pub(crate) fn new(keyer: &Keyer, attributes: Box<[Box<str>]>) -> Self {
        // The name of a rule has no space, so no bucket has the key of a blocked client.
        let scope = keyer.scope("block list", attributes.iter().map(|name| &**name));
        Self { attributes, scope }
    }

    pub(crate) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(|name| &**name)
    }

    /// Returns the hash of a request's values; `None` if the request lacks one of the attributes.
    pub(crate) fn digest(&self, request: &Request<'_>) -> Option<u128> {
        let parts: Option<SmallVec<[Part<'_>; 4]>> = self
            .attributes
            .iter()
            .map(|name| {
                let value = request.get(name).filter(|value| !value.is_empty())?;
                Some(Part::first(value.as_bytes()))
            })
            .collect();
        Some(self.scope.key(parts?).as_u128())
    }
}

/// Returns the subject with this value of one attribute, as an operator enters it.
pub(crate) fn from_attribute(
    keyer: &Keyer,
    attribute: &str,
    value: &str,
) -> Result<Subject, SubjectError> {
    if attribute == IP_ATTRIBUTE {
        return tidegate_rules::parse_network(value)
            .map(Subject::Network)
            .map_err(SubjectError::Network);
    }
    let fits = (1..=Request::MAX_NAME).contains(&attribute.len());
    if !fits || attribute.trim() != attribute || attribute.contains(char::is_control) {
        return Err(SubjectError::Attribute);
    }
    if !(1..=Request::MAX_VALUE).contains(&value.len()) {
        return Err(SubjectError::Value { found: value.len() });
    }
    let request = Request::new().with(attribute, value).map_err(|_| SubjectError::Attribute)?;
    client(keyer, [attribute], &request).ok_or(SubjectError::Attribute)
}

/// Returns the client that a rule counts a request for; `None` if the request lacks an attribute of the rule's
/// `per`. Requests without it share one bucket, and one client's requests there must not block the others.
pub(crate) fn from_request(keyer: &Keyer, rule: &Rule, request: &Request<'_>) -> Option<Subject> {
    let picked = rule.per().iter().map(|chain: &AttributeChain| chain.pick(request));
    let picked: SmallVec<[_; 4]> = picked.collect::<Option<_>>()?;
    match picked.as_slice() {
        [] => None,
        [only]
            if only.attribute == IP_ATTRIBUTE
                && let Some(address) = tidegate_rules::parse_address(only.value) =>
        {
            Some(Subject::Network(client_network(address)))
        }
        several => client(keyer, several.iter().map(|picked| picked.attribute), request),
    }
}

fn client<'n>(
    keyer: &Keyer,
    names: impl IntoIterator<Item = &'n str>,
    request: &Request<'_>,
) -> Option<Subject> {
    // Sorted and without duplicates, so that rules with the same attributes in another order block the same client.
    let mut attributes: Vec<Box<str>> = names.into_iter().map(Box::from).collect();
    attributes.sort_unstable();
    attributes.dedup();
    let shape = ClientShape::new(keyer, attributes.into());
    let digest = shape.digest(request)?.to_be_bytes();
    Some(Subject::Client { attributes: shape.attributes, digest })
}

/// Returns the network of one client's address.
///
/// An IPv6 address with 64 zero bits at its end stands for a /64 network, because rules count IPv6 clients by that
/// network.
fn client_network(address: IpAddr) -> IpNet {
    let network = IpNet::from(address);
    match address {
        IpAddr::V6(v6) if v6.to_bits() > u128::from(u64::MAX) && v6.to_bits() << 64 == 0 => {
            IpNet::new(address, 64).unwrap_or(network)
        }
        _ => network,
    }
}

/// The error of an attribute or value that identifies no subject.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// The value of `ip` is not an address or a network.
    #[error("ip {0}")]
    Network(NetworkError),
    /// The name of the attribute is invalid.
    #[error("attribute must be 1 to {} bytes of text", Request::MAX_NAME)]
    Attribute,
    /// The value is empty or too long. It may be secret, so the message does not contain it.
    #[error("value must be 1 to {} bytes long, found {found}", Request::MAX_VALUE)]
    Value {
        /// Its length in bytes.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use tidegate_rules::RuleSet;

    use super::*;

    const KEYER: Keyer = Keyer::Fleet { secret: [7; 32] };

    fn subject(per: &str, attributes: &[(&str, &str)]) -> Option<String> {
        let yaml = format!("rules: [{{name: a, limit: 1/s, per: {per}}}]");
        let rules = RuleSet::parse("", &yaml).unwrap();
        let mut request = Request::new();
        for (name, value) in attributes {
            request.insert(*name, *value).unwrap();
        }
        from_request(&KEYER, &rules.rules()[0], &request).map(|subject| subject.to_string())
    }

    #[test]
    fn only_addresses_are_stored_in_the_clear() {
        assert_eq!(subject("[ip]", &[("ip", "192.0.2.7")]).unwrap(), "192.0.2.7/32");
        assert_eq!(subject("[ip]", &[("ip", "::ffff:192.0.2.7")]).unwrap(), "192.0.2.7/32");
        assert_eq!(subject("[ip]", &[("ip", "2001:db8::7")]).unwrap(), "2001:db8::7/128");
        assert_eq!(subject("[ip]", &[("ip", "2001:db8::")]).unwrap(), "2001:db8::/64");
        assert_eq!(subject("[ip]", &[("ip", "::")]).unwrap(), "::/128");
        let alice = subject("[user]", &[("user", "alice")]).unwrap();
        assert!(alice.starts_with("user#") && alice.len() == 5 + 32, "{alice}");
        assert!(subject("[ip]", &[("ip", "alice")]).unwrap().starts_with("ip#"));
    }

    #[test]
    fn order_of_several_attributes_does_not_matter() {
        let request = [("user", "alice"), ("path", "/a"), ("ip", "192.0.2.7")];
        let both = subject("[user, path]", &request).unwrap();
        assert!(both.starts_with("path+user#"), "{both}");
        assert_eq!(subject("[path, user]", &request).unwrap(), both);
        assert_eq!(subject("[path, key | user, user]", &request).unwrap(), both);
        assert_ne!(subject("[user, path]", &[("user", "alice"), ("path", "/b")]).unwrap(), both);
        assert_ne!(subject("[user, path]", &[("user", "/a"), ("path", "alice")]).unwrap(), both);
        assert!(subject("[ip, path]", &request).unwrap().starts_with("ip+path#"));
    }

    #[test]
    fn request_that_lacks_an_attribute_has_no_subject() {
        assert_eq!(subject("[]", &[("user", "alice")]), None);
        assert_eq!(subject("[user]", &[("user", "")]), None);
        assert_eq!(subject("[user, path]", &[("user", "alice")]), None);
    }

    #[test]
    fn another_secret_or_attribute_gives_another_digest() {
        let other = Keyer::Fleet { secret: [8; 32] };
        let digest = |keyer, attribute| match from_attribute(keyer, attribute, "alice").unwrap() {
            Subject::Client { digest, .. } => digest,
            network => panic!("{network}"),
        };
        assert_ne!(digest(&KEYER, "user"), digest(&other, "user"));
        assert_ne!(digest(&KEYER, "user"), digest(&KEYER, "api_key"));
    }

    #[test]
    fn operator_and_rule_identify_the_same_client() {
        let named =
            |attribute, value| from_attribute(&KEYER, attribute, value).map(|s| s.to_string());
        assert_eq!(named("user", "alice").ok(), subject("[user]", &[("user", "alice")]));
        assert_eq!(named("ip", "192.0.2.7").unwrap(), "192.0.2.7/32");
        assert_eq!(named("ip", "::ffff:192.0.2.0/120").unwrap(), "192.0.2.0/24");
        for (attribute, value, error) in [
            ("ip", "mallory", "ip must be an address or a network like 10.0.0.0/8"),
            (
                "ip",
                "10.0.0.1/8",
                "ip must not have bits after its prefix (the network is 10.0.0.0/8)",
            ),
            ("", "a", "attribute must be 1 to 128 bytes of text"),
            ("a\n", "a", "attribute must be 1 to 128 bytes of text"),
            ("user", "", "value must be 1 to 8192 bytes long, found 0"),
        ] {
            assert_eq!(named(attribute, value).unwrap_err().to_string(), error);
        }
    }
}
