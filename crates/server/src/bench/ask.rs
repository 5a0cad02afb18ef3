//! What is asked, and in whose name.

use crate::simulate::{Chance, Zipf};

/// Where the name of a client goes.
const PLACE: &str = "{client}";

/// One check, with `{client}` where the name of a client goes.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The rule to check alone, whatever its match says.
    pub(crate) rule: Option<String>,
    /// What is known of the request. A rule without any is asked about the client itself.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) cost: u64,
}

/// A text with a client's name in its places.
pub(super) fn filled(text: &str, client: &str) -> String {
    text.replace(PLACE, client)
}

/// How requests are spread over clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Spread {
    /// Client after client
    Even,
    /// By chance, the busiest client twice as often as the second, three times as often as the third
    Zipf,
}

/// Who comes.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    count: u64,
    zipf: Option<Zipf>,
}

impl Clients {
    /// So many, one at least.
    pub(crate) fn new(count: u64, spread: Spread) -> Self {
        let zipf = (spread == Spread::Zipf).then(|| Zipf::new(count));
        Self { count: count.max(1), zipf }
    }

    /// Who makes the request of this number.
    pub(super) fn name(&self, number: u64, chance: &mut Chance) -> String {
        let client = match &self.zipf {
            Some(zipf) => zipf.client(chance),
            None => number % self.count,
        };
        format!("client-{client}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_unless_chance_decides() {
        let mut chance = Chance::new(1);
        let even = Clients::new(3, Spread::Even);
        let names: Vec<String> = (0..4).map(|turn| even.name(turn, &mut chance)).collect();
        assert_eq!(names, ["client-0", "client-1", "client-2", "client-0"]);
        let zipf = Clients::new(100, Spread::Zipf);
        let first = (0..1_000).filter(|turn| zipf.name(*turn, &mut chance) == "client-0").count();
        assert!((100..400).contains(&first), "{first}");
    }

    #[test]
    fn a_name_goes_wherever_its_place_is() {
        assert_eq!(filled("/u/{client}?by={client}", "client-7"), "/u/client-7?by=client-7");
    }
}
