//! One case of a vector file, for every implementation that is held to them.

use serde::Deserialize;
use tidegate_core::{Algorithm, Limit, Quota, Span, State, Timestamp};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) limit: Numbers,
    pub(crate) steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Numbers {
    pub(crate) algorithm: String,
    pub(crate) amount: u64,
    pub(crate) window: u64,
    pub(crate) burst: Option<u64>,
    pub(crate) queue: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) at: u64,
    pub(crate) cost: Option<u64>,
    pub(crate) refund: Option<usize>,
    pub(crate) renew: Option<usize>,
    /// The store loses the state.
    pub(crate) lose: Option<bool>,
    pub(crate) limit: Option<Numbers>,
    pub(crate) allowed: Option<bool>,
    pub(crate) delay: Option<u64>,
    pub(crate) retry_after: Option<i64>,
    pub(crate) remaining: Option<u64>,
    pub(crate) reset_after: Option<u64>,
    pub(crate) state: Vec<u64>,
}

impl Numbers {
    pub(crate) fn limit(&self) -> Limit {
        let algorithm = match self.algorithm.as_str() {
            "token_bucket" => Algorithm::TokenBucket,
            "leaky_bucket" => Algorithm::LeakyBucket { queue: self.queue.unwrap() },
            "fixed_window" => Algorithm::FixedWindow,
            "sliding_window" => Algorithm::SlidingWindow,
            "sliding_log" => Algorithm::SlidingLog,
            "concurrency" => {
                let hold = Span::from_micros(self.window);
                let quota = Quota::in_flight(self.amount);
                return Limit::new(Algorithm::Concurrency { hold }, quota).unwrap();
            }
            other => panic!("unknown algorithm {other}"),
        };
        let quota = Quota::per(self.amount, Span::from_micros(self.window));
        Limit::new(algorithm, self.burst.map_or(quota, |burst| quota.burst(burst))).unwrap()
    }
}

/// The integers of a state, as the vectors list them.
pub(crate) fn integers(limit: &Limit, state: &mut State, now: Timestamp) -> Vec<u64> {
    limit.admits(state, now, 1);
    match state {
        State::Tokens(level) => {
            let (due, returned) = (level.due, level.returned);
            vec![due.micros, due.parts, returned.micros, returned.parts]
        }
        State::Queue(due) => vec![due.micros, due.parts],
        State::Fixed(count) => vec![count.end.as_micros(), count.spent],
        State::Sliding(counts) => vec![counts.end.as_micros(), counts.current, counts.previous],
        State::Log(log) => log.entries().flat_map(|(at, cost)| [at.as_micros(), cost]).collect(),
        State::Slots(slots) => {
            let held = slots.taken().iter();
            let held =
                held.flat_map(|slot| [slot.id.as_micros(), slot.until.as_micros(), slot.count]);
            let first = [slots.last(), slots.complete_from()].map(Timestamp::as_micros);
            first.into_iter().chain(held).collect()
        }
    }
}
