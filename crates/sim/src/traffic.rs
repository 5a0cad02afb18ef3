//! Synthetic traffic: arrivals of clients at nodes, from a few parameters.

use tidegate_core::{Quota, Span, Timestamp};
use tidegate_random::{SeededRng, ZipfDistribution};

/// The distribution of requests over time and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrafficShape {
    /// Evenly, client after client.
    Steady,
    /// All requests of ten seconds arrive in the first of them.
    Bursty,
    /// At random; the busiest client sends twice as many as the second, three times as many as the
    /// third.
    Zipf,
    /// Each client sends `amount` at a percentage of every other window, and as many again when the
    /// next one begins.
    Boundary { amount: u64, window: Span, percent: u64 },
    /// `count` requests of each client at once, and none later.
    Once { count: u64 },
}

/// The load of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrafficLoad {
    pub(crate) shape: TrafficShape,
    /// The rate of all clients together; shapes with their own counts do not use it.
    pub(crate) rate: Quota,
    pub(crate) clients: u64,
    pub(crate) nodes: u64,
    pub(crate) length: Span,
    pub(crate) seed: u64,
}

/// A request of a client at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Time since the start.
    pub(crate) at: Span,
    pub(crate) client: u64,
    pub(crate) node: u64,
}

/// Interval of bursts; a burst lasts a tenth of it.
const BURST_PERIOD_MICROS: u64 = 10_000_000;
/// Start of the virtual time: a midnight in 2026.
const START_MICROS: u64 = 1_767_225_600_000_000;

/// Returns the start in virtual time, which is the start of a window.
pub(crate) fn start(window: Span) -> Timestamp {
    let window = window.as_micros().max(1);
    Timestamp::from_micros(START_MICROS.div_ceil(window) * window)
}

impl TrafficLoad {
    /// Returns the maximum number of requests; random traffic may have a few more.
    pub(crate) fn count(&self) -> u64 {
        let length = self.length.as_micros();
        let evenly = |length: u64| {
            let (amount, window) = (self.rate.amount(), self.rate.window().as_micros().max(1));
            let count = u128::from(amount) * u128::from(length) / u128::from(window) + 1;
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        match self.shape {
            TrafficShape::Steady | TrafficShape::Zipf => evenly(length),
            TrafficShape::Bursty => {
                evenly(length.div_ceil(BURST_PERIOD_MICROS).saturating_mul(BURST_PERIOD_MICROS))
            }
            TrafficShape::Once { count } => count.saturating_mul(self.clients),
            TrafficShape::Boundary { amount, window, .. } => {
                let pairs = length.div_ceil(window.as_micros().saturating_mul(2).max(1));
                amount.saturating_mul(2).saturating_mul(self.clients).saturating_mul(pairs)
            }
        }
    }

    /// Returns all requests in the order of time.
    pub(crate) fn arrivals(&self) -> Arrivals {
        Arrivals {
            load: *self,
            number: 0,
            passed: 0.0,
            rng: SeededRng::new(self.seed),
            zipf: ZipfDistribution::new(self.clients),
        }
    }
}

/// The requests of a [`TrafficLoad`].
pub(crate) struct Arrivals {
    load: TrafficLoad,
    /// Number of requests so far.
    number: u64,
    /// Time of the last random arrival, in microseconds.
    passed: f64,
    rng: SeededRng,
    zipf: ZipfDistribution,
}

impl Arrivals {
    /// Returns the time of the next request in even traffic, in microseconds.
    fn even(&self) -> u64 {
        let (amount, window) = (self.load.rate.amount(), self.load.rate.window().as_micros());
        let micros = u128::from(self.number) * u128::from(window) / u128::from(amount.max(1));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// Returns a request of the clients in turn, each at the nodes in turn.
    fn in_turn(&self, at: u64) -> Arrival {
        let TrafficLoad { clients, nodes, .. } = self.load;
        let (round, client) = (self.number / clients, self.number % clients);
        Arrival { at: Span::from_micros(at), client, node: round % nodes }
    }

    /// Returns one of `amount` requests of each client in one instant.
    fn crowd(&self, position: u64, amount: u64, at: u64) -> Arrival {
        let (client, node) = (position / amount, position % self.load.nodes);
        Arrival { at: Span::from_micros(at), client, node }
    }

    fn boundary(&self, amount: u64, window: Span, percent: u64) -> Arrival {
        let crowd = amount.saturating_mul(self.load.clients);
        let (half, position) = (self.number / crowd, self.number % crowd);
        let (pair, window) = (half / 2, window.as_micros());
        let within = if half.is_multiple_of(2) { window / 100 * percent } else { window };
        self.crowd(position, amount, (2 * pair).saturating_mul(window).saturating_add(within))
    }

    fn random(&mut self) -> Arrival {
        let (amount, window) = (self.load.rate.amount(), self.load.rate.window().as_micros());
        self.passed += self.rng.exponential(window as f64 / amount.max(1) as f64);
        let client = self.zipf.sample(&mut self.rng);
        let node = self.rng.below(self.load.nodes);
        Arrival { at: Span::from_micros(self.passed as u64), client, node }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let arrival = match self.load.shape {
            TrafficShape::Steady => self.in_turn(self.even()),
            TrafficShape::Bursty => {
                let even = self.even();
                self.in_turn(even - even % BURST_PERIOD_MICROS + even % BURST_PERIOD_MICROS / 10)
            }
            TrafficShape::Zipf => self.random(),
            TrafficShape::Boundary { amount: 0, .. } | TrafficShape::Once { count: 0 } => {
                return None;
            }
            TrafficShape::Boundary { amount, window, percent } => {
                self.boundary(amount, window, percent)
            }
            TrafficShape::Once { count } if self.number / count >= self.load.clients => {
                return None;
            }
            TrafficShape::Once { count } => self.crowd(self.number, count, 0),
        };
        self.number += 1;
        Some(arrival).filter(|arrival| arrival.at < self.load.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(shape: TrafficShape) -> TrafficLoad {
        let (rate, length) = (Quota::per_second(100), Span::from_secs(20));
        TrafficLoad { shape, rate, clients: 4, nodes: 3, length, seed: 1 }
    }

    fn boundary() -> TrafficShape {
        TrafficShape::Boundary { amount: 5, window: Span::SECOND, percent: 85 }
    }

    #[test]
    fn arrivals_are_in_order_and_within_the_configured_clients_and_nodes() {
        let shapes = [
            TrafficShape::Steady,
            TrafficShape::Bursty,
            TrafficShape::Zipf,
            boundary(),
            TrafficShape::Once { count: 9 },
        ];
        for shape in shapes {
            let (mut last, mut count) = (Span::ZERO, 0);
            for arrival in load(shape).arrivals() {
                assert!(arrival.at >= last && arrival.at < Span::from_secs(20), "{arrival:?}");
                assert!(arrival.client < 4 && arrival.node < 3, "{arrival:?}");
                (last, count) = (arrival.at, count + 1);
            }
            assert!(count > 0, "{shape:?}");
            let random = if shape == TrafficShape::Zipf { 200 } else { 0 };
            assert!(count <= load(shape).count() + random, "{shape:?}: {count}");
        }
    }

    #[test]
    fn arrivals_have_the_configured_rate() {
        assert_eq!(load(TrafficShape::Steady).arrivals().count(), 2_000);
        assert_eq!(load(TrafficShape::Bursty).arrivals().count(), 2_000);
        let random = load(TrafficShape::Zipf).arrivals().count();
        assert!((1_800..2_200).contains(&random), "{random}");
    }

    #[test]
    fn boundary_attack_sends_the_limit_late_in_a_window_and_early_in_the_next() {
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        for arrival in load(boundary()).arrivals().filter(|arrival| arrival.client == 0) {
            *counts.entry(arrival.at.as_micros() / 1_000).or_default() += 1;
        }
        let begin: Vec<_> = counts.into_iter().take(4).collect();
        assert_eq!(begin, [(850, 5), (1_000, 5), (2_850, 5), (3_000, 5)]);
    }

    #[test]
    fn virtual_time_starts_at_a_window_boundary() {
        for window in [Span::from_micros(7), Span::SECOND, Span::from_secs(7 * 86_400)] {
            assert!(start(window).as_micros().is_multiple_of(window.as_micros()));
        }
    }
}
