//! Who is blocked: a network in the clear, or a client by a keyed hash of what names it.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{Keyer, Part, Request, Scope};
use tidegate_rules::{AttributeChain, NetworkError, Rule};

/// The attribute whose values are addresses, and no secret.
const IP: &str = "ip";

/// Whom an entry of the block list is about.
///
/// An address is kept as it is: a load balancer needs to know it. Whatever else names a client may
/// be a secret, and only a hash of it is kept, keyed so that nobody can find the value by trying.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Every address in a network.
    Network(IpNet),
    /// Whoever has certain values of certain attributes.
    Client {
        /// The attributes, in order and each once: `user`, or `path` and `user` together.
        attributes: Box<[Box<str>]>,
        /// What the [`BlockList`](super::BlockList) makes of their values.
        digest: [u8; 16],
    },
}

impl Subject {
    /// Most attributes that name one client.
    pub const MAX_ATTRIBUTES: usize = Rule::MAX_PER_ENTRIES;

    /// The same subject in the one form that is looked up.
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

/// `192.0.2.0/24`, or `user#` and 32 hexadecimal digits; different for different subjects.
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

/// Attributes that together name a client, and the hash of their values.
#[derive(Clone, Debug)]
pub(crate) struct ClientShape {
    attributes: Box<[Box<str>]>,
    scope: Scope,
}

impl ClientShape {
    /// The attributes have to be in order and each there once.
    pub(crate) fn new(keyer: &Keyer, attributes: Box<[Box<str>]>) -> Self {
        // No rule can have a name with a space, so no bucket is named like a blocked client.
        let scope = keyer.scope("block list", attributes.iter().map(|name| &**name));
        Self { attributes, scope }
    }

    pub(crate) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(|name| &**name)
    }

    /// What a request says, hashed; `None` when it lacks one of the attributes.
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

/// The subject that an operator names by one attribute.
pub(crate) fn named(keyer: &Keyer, attribute: &str, value: &str) -> Result<Subject, SubjectError> {
    if attribute == IP {
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
    hashed(keyer, [attribute], &request).ok_or(SubjectError::Attribute)
}

/// The client that a rule counts a request for; `None` when the request lacks an attribute that the
/// rule counts by. Such requests share one bucket, and what one client does there must not block all.
pub(crate) fn counted(keyer: &Keyer, rule: &Rule, request: &Request<'_>) -> Option<Subject> {
    let picked = rule.per().iter().map(|chain: &AttributeChain| chain.pick(request));
    let picked: SmallVec<[_; 4]> = picked.collect::<Option<_>>()?;
    match picked.as_slice() {
        [] => None,
        [only]
            if only.attribute == IP
                && let Some(address) = tidegate_rules::parse_address(only.value) =>
        {
            Some(Subject::Network(of_client(address)))
        }
        several => hashed(keyer, several.iter().map(|picked| picked.attribute), request),
    }
}

fn hashed<'n>(
    keyer: &Keyer,
    names: impl IntoIterator<Item = &'n str>,
    request: &Request<'_>,
) -> Option<Subject> {
    // In order and each once, so that rules which say the same in other words block the same client.
    let mut attributes: Vec<Box<str>> = names.into_iter().map(Box::from).collect();
    attributes.sort_unstable();
    attributes.dedup();
    let shape = ClientShape::new(keyer, attributes.into());
    let digest = shape.digest(request)?.to_be_bytes();
    Some(Subject::Client { attributes: shape.attributes, digest })
}

/// What one client's address stands for: an IPv6 address that ends in 64 zeros is how a network of
/// that length is counted, and the whole of it is the client.
fn of_client(address: IpAddr) -> IpNet {
    let network = IpNet::from(address);
    match address {
        IpAddr::V6(v6) if v6.to_bits() > u128::from(u64::MAX) && v6.to_bits() << 64 == 0 => {
            IpNet::new(address, 64).unwrap_or(network)
        }
        _ => network,
    }
}

/// Why nobody is named.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// An address or network is wanted.
    #[error("ip {0}")]
    Network(NetworkError),
    /// The attribute's name can't be one.
    #[error("attribute must be 1 to {} bytes of text", Request::MAX_NAME)]
    Attribute,
    /// The value is empty, which counts as none, or too long. It may be a secret and is not repeated.
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
        counted(&KEYER, &rules.rules()[0], &request).map(|subject| subject.to_string())
    }

    #[test]
    fn addresses_are_kept_in_the_clear_and_nothing_else_is() {
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
    fn several_attributes_are_blocked_together_in_whatever_order() {
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
    fn nobody_is_named_by_what_a_request_lacks() {
        assert_eq!(subject("[]", &[("user", "alice")]), None);
        assert_eq!(subject("[user]", &[("user", "")]), None);
        assert_eq!(subject("[user, path]", &[("user", "alice")]), None);
    }

    #[test]
    fn another_secret_or_attribute_gives_another_digest() {
        let other = Keyer::Fleet { secret: [8; 32] };
        let digest = |keyer, attribute| match named(keyer, attribute, "alice").unwrap() {
            Subject::Client { digest, .. } => digest,
            network => panic!("{network}"),
        };
        assert_ne!(digest(&KEYER, "user"), digest(&other, "user"));
        assert_ne!(digest(&KEYER, "user"), digest(&KEYER, "api_key"));
    }

    #[test]
    fn an_operator_names_the_client_that_a_rule_counts() {
        let named = |attribute, value| named(&KEYER, attribute, value).map(|s| s.to_string());
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
