//! What requests look like that meet rules.

use std::fmt::Write;
use std::net::Ipv4Addr;

use tidegate::{Request, RequestError, Rule, RuleSet};

/// What requests look like.
pub(super) struct Asking {
    /// What they have in common.
    common: Vec<(String, String)>,
    /// Attributes that name a client.
    naming: Vec<String>,
}

/// What a client is called.
#[derive(Default)]
pub(super) struct Names {
    name: String,
    address: String,
}

/// What a request has unless it is said otherwise.
const USUAL: [(&str, &str); 3] = [("method", "GET"), ("host", "localhost"), ("path", "/")];

impl Asking {
    pub(super) fn new(rules: &RuleSet, mut common: Vec<(String, String)>) -> Self {
        let given = |common: &[(String, String)], name: &str| common.iter().any(|(n, _)| n == name);
        let mut naming: Vec<String> = Vec::new();
        for name in rules.rules().iter().flat_map(Rule::per).flat_map(|chain| chain.attributes()) {
            if !given(&common, name) && !naming.iter().any(|known| known == name) {
                naming.push(name.to_owned());
            }
        }
        for (name, value) in USUAL {
            if !given(&common, name) && !naming.iter().any(|known| known == name) {
                common.push((name.to_owned(), value.to_owned()));
            }
        }
        Self { common, naming }
    }

    pub(super) fn request<'n>(
        &'n self,
        client: u64,
        names: &'n mut Names,
    ) -> Result<Request<'n>, RequestError> {
        names.name.clear();
        names.address.clear();
        // Addresses of 10.0.0.0/8 and those after it.
        let number = u32::try_from(client % (1 << 30)).unwrap_or_default();
        let address = Ipv4Addr::from_bits(0x0a00_0001 + number);
        // Writing to a text does not fail.
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

    /// Whether an attribute names a client.
    pub(super) fn names(&self, attribute: &str) -> bool {
        self.naming.iter().any(|naming| naming == attribute)
    }
}
