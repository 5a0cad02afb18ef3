//! The check that a load test sends, and the names of its clients.

use tidegate_random::{SeededRng, ZipfDistribution};

/// The placeholder for the name of a client.
const CLIENT_PLACEHOLDER: &str = "{client}";

/// A check with `{client}` as the placeholder for the name of a client.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// The only rule to check, even if its conditions do not match the request; `None` for all rules that match.
    pub rule: Option<String>,
    /// The attributes of the request. Without any, the rule is checked for the client.
    pub attributes: Vec<(String, String)>,
    /// The cost of the check.
    pub cost: u64,
}

/// Replaces every placeholder by the name of a client.
pub(crate) fn fill_client(text: &str, client: &str) -> String {
    text.replace(CLIENT_PLACEHOLDER, client)
}

/// The distribution of requests over clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ClientSpread {
    /// Client after client
    Even,
    /// By chance, the busiest client twice as often as the second, three times as often as the third
    Zipf,
}

/// The clients of a load test.
#[derive(Clone, Debug)]
pub struct ClientPool {
    count: u64,
    zipf: Option<ZipfDistribution>,
}

impl ClientPool {
    /// Creates `count` clients, at least one.
    #[must_use]
    pub fn new(count: u64, spread: ClientSpread) -> Self {
        let zipf = (spread == ClientSpread::Zipf).then(|| ZipfDistribution::new(count));
        Self { count: count.max(1), zipf }
    }

    /// Returns the name of the client that sends the request with this number. An even spread depends on the number, a
    /// Zipf spread on `rng`.
    pub(crate) fn name(&self, number: u64, rng: &mut SeededRng) -> String {
        let client = match &self.zipf {
            Some(zipf) => zipf.sample(rng),
            None => number % self.count,
        };
        format!("client-{client}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_spread_rotates_clients_and_zipf_prefers_the_first() {
        let mut rng = SeededRng::new(1);
        let even = ClientPool::new(3, ClientSpread::Even);
        let names: Vec<String> = (0..4).map(|number| even.name(number, &mut rng)).collect();
        assert_eq!(names, ["client-0", "client-1", "client-2", "client-0"]);
        let zipf = ClientPool::new(100, ClientSpread::Zipf);
        let first = (0..1_000).filter(|number| zipf.name(*number, &mut rng) == "client-0").count();
        assert!((100..400).contains(&first), "{first}");
    }

    #[test]
    fn client_name_replaces_every_placeholder() {
        assert_eq!(fill_client("/u/{client}?by={client}", "client-7"), "/u/client-7?by=client-7");
    }
}
