//! Traffic that a few numbers describe: who comes when, and to which node.

use tidegate::{Quota, Span, Timestamp};

use super::chance::{Chance, Zipf};

/// How requests are spread over time and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Evenly, client after client.
    Steady,
    /// All that comes in ten seconds on average comes in the first of them.
    Bursty,
    /// By chance; the busiest client comes twice as often as the second, three times as often as the
    /// third.
    Zipf,
    /// Each client sends so many at a percentage of each second window, and as many again when the
    /// next one begins.
    Boundary { amount: u64, window: Span, percent: u64 },
    /// So many of each client at once, and nobody after.
    Once { count: u64 },
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) shape: Shape,
    /// Of all clients together; shapes that say themselves how many come do not look at it.
    pub(crate) rate: Quota,
    pub(crate) clients: u64,
    pub(crate) nodes: u64,
    pub(crate) length: Span,
    pub(crate) seed: u64,
}

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Since the start.
    pub(crate) at: Span,
    pub(crate) client: u64,
    pub(crate) node: u64,
}

/// Bursts come so far apart, and last a tenth of that.
const PERIOD: u64 = 10_000_000;
/// Some time in 2026, at midnight.
const SOME_DAY: u64 = 1_767_225_600_000_000;

/// When it begins, in virtual time: where a window does.
pub(super) fn start(window: Span) -> Timestamp {
    let window = window.as_micros().max(1);
    Timestamp::from_micros(SOME_DAY.div_ceil(window) * window)
}

impl Load {
    /// How many requests that is, at the most; by chance it may be a few more.
    pub(super) fn count(&self) -> u64 {
        let length = self.length.as_micros();
        let evenly = |length: u64| {
            let (amount, window) = (self.rate.amount(), self.rate.window().as_micros().max(1));
            let count = u128::from(amount) * u128::from(length) / u128::from(window) + 1;
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        match self.shape {
            Shape::Steady | Shape::Zipf => evenly(length),
            Shape::Bursty => evenly(length.div_ceil(PERIOD).saturating_mul(PERIOD)),
            Shape::Once { count } => count.saturating_mul(self.clients),
            Shape::Boundary { amount, window, .. } => {
                let pairs = length.div_ceil(window.as_micros().saturating_mul(2).max(1));
                amount.saturating_mul(2).saturating_mul(self.clients).saturating_mul(pairs)
            }
        }
    }

    /// Every request in the order of time, until it is over.
    pub(super) fn arrivals(&self) -> Arrivals {
        Arrivals {
            load: *self,
            number: 0,
            passed: 0.0,
            chance: Chance::new(self.seed),
            zipf: Zipf::new(self.clients),
        }
    }
}

/// The requests of a [`Load`].
pub(super) struct Arrivals {
    load: Load,
    /// How many came so far.
    number: u64,
    /// For those who come by chance: when the last one did, in microseconds.
    passed: f64,
    chance: Chance,
    zipf: Zipf,
}

impl Arrivals {
    /// When the next one would come if all came evenly.
    fn even(&self) -> u64 {
        let (amount, window) = (self.load.rate.amount(), self.load.rate.window().as_micros());
        let micros = u128::from(self.number) * u128::from(window) / u128::from(amount.max(1));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// Clients in turn, each of them at the nodes in turn.
    fn in_turn(&self, at: u64) -> Arrival {
        let Load { clients, nodes, .. } = self.load;
        let (round, client) = (self.number / clients, self.number % clients);
        Arrival { at: Span::from_micros(at), client, node: round % nodes }
    }

    /// `amount` of each client in one instant.
    fn crowd(&self, place: u64, amount: u64, at: u64) -> Arrival {
        let (client, node) = (place / amount, place % self.load.nodes);
        Arrival { at: Span::from_micros(at), client, node }
    }

    fn boundary(&self, amount: u64, window: Span, percent: u64) -> Arrival {
        let crowd = amount.saturating_mul(self.load.clients);
        let (half, place) = (self.number / crowd, self.number % crowd);
        let (pair, window) = (half / 2, window.as_micros());
        let within = if half.is_multiple_of(2) { window / 100 * percent } else { window };
        self.crowd(place, amount, (2 * pair).saturating_mul(window).saturating_add(within))
    }

    fn by_chance(&mut self) -> Arrival {
        let (amount, window) = (self.load.rate.amount(), self.load.rate.window().as_micros());
        self.passed += self.chance.gap(window as f64 / amount.max(1) as f64);
        let client = self.zipf.client(&mut self.chance);
        let node = self.chance.below(self.load.nodes);
        Arrival { at: Span::from_micros(self.passed as u64), client, node }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let arrival = match self.load.shape {
            Shape::Steady => self.in_turn(self.even()),
            Shape::Bursty => {
                let even = self.even();
                self.in_turn(even - even % PERIOD + even % PERIOD / 10)
            }
            Shape::Zipf => self.by_chance(),
            Shape::Boundary { amount: 0, .. } | Shape::Once { count: 0 } => return None,
            Shape::Boundary { amount, window, percent } => self.boundary(amount, window, percent),
            Shape::Once { count } if self.number / count >= self.load.clients => return None,
            Shape::Once { count } => self.crowd(self.number, count, 0),
        };
        self.number += 1;
        Some(arrival).filter(|arrival| arrival.at < self.load.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(shape: Shape) -> Load {
        let (rate, length) = (Quota::per_second(100), Span::from_secs(20));
        Load { shape, rate, clients: 4, nodes: 3, length, seed: 1 }
    }

    fn boundary() -> Shape {
        Shape::Boundary { amount: 5, window: Span::SECOND, percent: 85 }
    }

    #[test]
    fn requests_come_in_the_order_of_time_from_clients_and_to_nodes_that_there_are() {
        let shapes =
            [Shape::Steady, Shape::Bursty, Shape::Zipf, boundary(), Shape::Once { count: 9 }];
        for shape in shapes {
            let (mut last, mut count) = (Span::ZERO, 0);
            for arrival in load(shape).arrivals() {
                assert!(arrival.at >= last && arrival.at < Span::from_secs(20), "{arrival:?}");
                assert!(arrival.client < 4 && arrival.node < 3, "{arrival:?}");
                (last, count) = (arrival.at, count + 1);
            }
            assert!(count > 0, "{shape:?}");
            let by_chance = if shape == Shape::Zipf { 200 } else { 0 };
            assert!(count <= load(shape).count() + by_chance, "{shape:?}: {count}");
        }
    }

    #[test]
    fn the_rate_is_what_was_asked_for() {
        assert_eq!(load(Shape::Steady).arrivals().count(), 2_000);
        assert_eq!(load(Shape::Bursty).arrivals().count(), 2_000);
        let by_chance = load(Shape::Zipf).arrivals().count();
        assert!((1_800..2_200).contains(&by_chance), "{by_chance}");
    }

    #[test]
    fn an_attack_sends_the_limit_late_in_a_window_and_again_in_the_next() {
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        for arrival in load(boundary()).arrivals().filter(|arrival| arrival.client == 0) {
            *counts.entry(arrival.at.as_micros() / 1_000).or_default() += 1;
        }
        let begin: Vec<_> = counts.into_iter().take(4).collect();
        assert_eq!(begin, [(850, 5), (1_000, 5), (2_850, 5), (3_000, 5)]);
    }

    #[test]
    fn it_starts_where_a_window_does() {
        for window in [Span::from_micros(7), Span::SECOND, Span::from_secs(7 * 86_400)] {
            assert!(start(window).as_micros().is_multiple_of(window.as_micros()));
        }
    }
}
