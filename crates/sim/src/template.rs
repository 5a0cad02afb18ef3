//! Simulated requests, with the attributes that the rules count by.

use std::fmt::Write;
use std::net::Ipv4Addr;

use tidegate_core::{Request, RequestError};
use tidegate_rules::{Rule, RuleSet};

/// The attributes of simulated requests.
pub(crate) struct RequestTemplate {
    /// Attributes that all requests have.
    common: Vec<(String, String)>,
    /// Attributes that contain the client's name or address.
    naming: Vec<String>,
}

/// Buffers for the name and the address of a client.
#[derive(Default)]
pub(crate) struct ClientNames {
    name: String,
    address: String,
}

/// Attributes that requests have unless the rules count by them or they are given.
const DEFAULT_ATTRIBUTES: [(&str, &str); 3] =
    [("method", "GET"), ("host", "localhost"), ("path", "/")];

impl RequestTemplate {
    /// Creates requests with these common attributes. All others that the rules count by name the client.
    pub(crate) fn new(rules: &RuleSet, mut common: Vec<(String, String)>) -> Self {
        let given = |common: &[(String, String)], name: &str| common.iter().any(|(n, _)| n == name);
        let mut naming: Vec<String> = Vec::new();
        for name in rules.rules().iter().flat_map(Rule::per).flat_map(|chain| chain.attributes()) {
            if !given(&common, name) && !naming.iter().any(|known| known == name) {
                naming.push(name.to_owned());
            }
        }
        for (name, value) in DEFAULT_ATTRIBUTES {
            if !given(&common, name) && !naming.iter().any(|known| known == name) {
                common.push((name.to_owned(), value.to_owned()));
            }
        }
        Self { common, naming }
    }

    /// Returns a request of a client.
    ///
    /// # Errors
    /// A common attribute is too long, or there are too many attributes.
    pub(crate) fn request<'n>(
        &'n self,
        client: u64,
        names: &'n mut ClientNames,
    ) -> Result<Request<'n>, RequestError> {
        names.name.clear();
        names.address.clear();
        // Addresses from 10.0.0.1 upwards.
        let number = u32::try_from(client % (1 << 30)).unwrap_or_default();
        let address = Ipv4Addr::from_bits(0x0a00_0001 + number);
        // Writing to a string does not fail.
        let _ = write!(names.name, "client-{}", client + 1);
        let _ = write!(names.address, "{address}");
        let mut request = Request::new();
        for (name, value) in &self.common {
            request.insert(name.as_str(), value.as_str())?;
        }
        for name in &self.naming {
            let value = if name == "ip" { &names.address } else { &names.name };
            request.insert(name.as_str(), value.as_str())?;
        }
        Ok(request)
    }

    /// Returns whether an attribute names the client.
    pub(crate) fn names_client(&self, attribute: &str) -> bool {
        self.naming.iter().any(|naming| naming == attribute)
    }
}
