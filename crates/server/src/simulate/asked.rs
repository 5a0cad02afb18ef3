//! What is asked of the simulator: a limit, how it is kept, and who comes. Every door asks in these words.

use clap::ValueEnum;
use tidegate::rule::{Accuracy, OnStoreFailure};
use tidegate::{Algorithm, Quota, Span};

use super::{Again, Load, Shape, Weather};

/// One limit, counted and kept in all the ways that are to be compared.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The limit of each client, without a burst.
    pub(crate) quota: Quota,
    /// How it is counted; a token bucket unless said.
    pub(crate) countings: Vec<Counting>,
    /// How much a token bucket lets through at once.
    pub(crate) burst: Option<u64>,
    /// How many may wait in a leaky bucket.
    pub(crate) queue: Option<u64>,
    /// How nodes keep it; exactly unless said.
    pub(crate) accuracies: Vec<Accuracy>,
    pub(crate) phase: Phase,
    /// What is answered without the store; allow unless said.
    pub(crate) on_store_failure: Vec<OnStoreFailure>,
    pub(crate) weather: Weather,
    pub(crate) crowd: Crowd,
}

/// When nodes sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    /// At the same instants: all tell, and then all hear what was told, as the textbook has it
    #[default]
    Together,
    /// As nodes do it: each at its own time, told and heard in one question
    Own,
}

/// Who comes, when, and to how many nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) traffic: Traffic,
    /// Where in a window a boundary attack begins.
    pub(crate) percent: u64,
    /// How many a burst is, of each client.
    pub(crate) count: u64,
    /// Of all clients at all nodes.
    pub(crate) rate: Quota,
    pub(crate) clients: u64,
    pub(crate) nodes: u64,
    /// How long it takes, unless that is plain from the traffic.
    pub(crate) length: Option<Span>,
    pub(crate) seed: u64,
}

/// How a limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Counting {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
}

/// How requests are spread over time and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Traffic {
    /// Evenly, client after client
    Steady,
    /// All that comes in ten seconds comes in the first of them
    Bursty,
    /// Each client spends its limit late in a window, and again when the next one begins
    Boundary,
    /// Each client sends so many at once, and nobody comes after
    Burst,
    /// By chance, the busiest client twice as often as the second, three times as often as the third
    Zipf,
    /// Steady, and who is denied comes back: every 100 ms, or when Retry-After says
    RetryStorm,
}

/// Where in a window an attack begins unless said, in percent.
pub(crate) const LATE: u64 = 85;
/// How many come in a burst unless said.
pub(crate) const MANY: u64 = 30;
/// How long blind clients wait.
const BLIND: Span = Span::from_millis(100);

impl Counting {
    pub(super) fn algorithm(self, queue: Option<u64>) -> Algorithm {
        match self {
            Self::TokenBucket => Algorithm::TokenBucket,
            Self::LeakyBucket => Algorithm::LeakyBucket { queue: queue.unwrap_or_default() },
            Self::FixedWindow => Algorithm::FixedWindow,
            Self::SlidingWindow => Algorithm::SlidingWindow,
            Self::SlidingLog => Algorithm::SlidingLog,
        }
    }
}

impl Crowd {
    /// What is offered to clients that have this limit.
    pub(crate) fn load(&self, limit: Quota) -> Load {
        let timed = !limit.is_in_flight();
        let window = if timed { limit.window() } else { Span::SECOND };
        let amount = if timed { limit.amount() } else { 1 };
        let shape = match self.traffic {
            Traffic::Steady | Traffic::RetryStorm => Shape::Steady,
            Traffic::Bursty => Shape::Bursty,
            Traffic::Zipf => Shape::Zipf,
            Traffic::Boundary => Shape::Boundary { amount, window, percent: self.percent },
            Traffic::Burst => Shape::Once { count: self.count },
        };
        let usual = match self.traffic {
            Traffic::Boundary => window.checked_mul(2).unwrap_or(window),
            Traffic::Burst => window,
            _ => Span::MINUTE,
        };
        let length = self.length.unwrap_or(usual);
        let Self { rate, clients, nodes, seed, .. } = *self;
        Load { shape, rate, clients, nodes, length, seed }
    }

    /// The same in words.
    pub(crate) fn described(&self, load: &Load) -> String {
        let clients = match load.clients {
            1 => "one client".to_owned(),
            clients => format!("{clients} clients"),
        };
        let length = load.length;
        let name = self.traffic.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        match load.shape {
            Shape::Boundary { amount, percent, .. } => format!(
                "{name}, {clients}, each {amount} at {percent} % of a window and {amount} when the \
                 next begins, for {length}"
            ),
            Shape::Once { count } => format!("{name}, {clients}, {count} at once"),
            _ => format!("{name}, {clients}, {} for {length}", load.rate),
        }
    }

    /// The kinds of clients that are told apart, and what is added to a name for them.
    pub(super) fn kinds(&self) -> &'static [(&'static str, Option<Again>)] {
        match self.traffic {
            Traffic::RetryStorm => &[
                (", back after 100 ms", Some(Again::After(BLIND))),
                (", back after Retry-After", Some(Again::WhenTold)),
            ],
            _ => &[("", None)],
        }
    }
}
