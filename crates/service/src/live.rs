//! The last five minutes, second by second.
//!
//! A task samples the counters of the metrics at the end of every second, and stores the differences. No call is counted
//! a second time for this.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_api::{CallTimes, LiveSecond, PerOutcome};
use tidegate_core::{Span, Timestamp};
use tidegate_redis::Latency;

use crate::service::Service;
use crate::stats::quantile::quantile;
use crate::stats::{CounterSample, checks_delta, counter_delta};
use crate::store::AnyStore;

/// Number of seconds in the history.
const HISTORY_SECONDS: usize = 300;
/// Number of seconds that rates are averaged over.
const RATE_SECONDS: usize = 10;

/// The history of the last seconds of this process.
#[derive(Debug)]
pub struct LiveHistory {
    started: Timestamp,
    state: Mutex<HistoryState>,
}

#[derive(Debug)]
struct HistoryState {
    /// The last samples, oldest first; never empty.
    samples: VecDeque<TimedSample>,
    /// Differences of consecutive samples, oldest first.
    seconds: VecDeque<LiveSecond>,
}

/// The counters at one moment.
#[derive(Debug)]
struct TimedSample {
    at: Timestamp,
    counters: CounterSample,
    /// Calls of each Redis server by bucket of the duration histogram.
    calls: Vec<(String, [u64; Latency::CLASSES])>,
}

impl LiveHistory {
    /// Returns an empty history.
    pub fn new(started: Timestamp) -> Self {
        let first =
            TimedSample { at: started, counters: CounterSample::default(), calls: Vec::new() };
        let state = HistoryState { samples: VecDeque::from([first]), seconds: VecDeque::new() };
        Self { started, state: Mutex::new(state) }
    }

    /// Returns the start of the process.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Samples the counters at the end of every second. Never returns.
    pub async fn sample_every_second(self: Arc<Self>, service: Arc<Service>) {
        let clock = service.clock();
        loop {
            let next = Timestamp::from_secs(unix_second(clock.now()) + 1);
            clock.sleep_until(next).await;
            let rules = service.active_rules();
            let calls = match &**rules.limiter().store() {
                AnyStore::Memory(_) => Vec::new(),
                AnyStore::Redis(store) => {
                    let reports = store.reports().into_iter();
                    reports.map(|report| (report.name, report.latency.counts)).collect()
                }
            };
            let counters = service.stats().counters.sample(&rules);
            self.add(TimedSample { at: clock.now(), counters, calls });
        }
    }

    /// Adds the second that has just ended. If the task overslept a second, its calls are part of the next one.
    fn add(&self, sample: TimedSample) {
        let mut state = self.state.lock();
        if let Some(before) = state.samples.back() {
            let second = second_between(before, &sample);
            state.seconds.push_back(second);
        }
        state.samples.push_back(sample);
        if state.seconds.len() > HISTORY_SECONDS {
            state.seconds.pop_front();
        }
        if state.samples.len() > RATE_SECONDS + 1 {
            state.samples.pop_front();
        }
    }

    /// Returns the seconds of the history that began after `since`, oldest first.
    pub fn seconds(&self, since: u64) -> Vec<LiveSecond> {
        let state = self.state.lock();
        state.seconds.iter().filter(|second| second.at > since).copied().collect()
    }

    /// Returns the outcomes per second of each rule, averaged over the last ten seconds.
    pub fn rates(&self) -> HashMap<Arc<str>, PerOutcome<f64>> {
        let state = self.state.lock();
        let (Some(first), Some(last)) = (state.samples.front(), state.samples.back()) else {
            return HashMap::new();
        };
        let seconds = last.at.since(first.at).max(Span::SECOND).as_micros() as f64 / 1e6;
        let before: HashMap<&str, &PerOutcome<u64>> =
            first.counters.rules.iter().map(|(name, totals)| (&**name, totals)).collect();
        let rates = last.counters.rules.iter().map(|(name, totals)| {
            // The counters of a rule that was added in between started at zero.
            let counts = before
                .get(&**name)
                .map_or(*totals, |before| totals.zip_with(**before, counter_delta));
            (Arc::clone(name), counts.map(|count| round_to_tenths(count as f64 / seconds)))
        });
        rates.collect()
    }

    /// Returns percentiles of the duration of calls to a Redis server in the last ten seconds.
    pub fn redis_call_times(&self, server: &str) -> CallTimes {
        let state = self.state.lock();
        let counts = |sample: Option<&TimedSample>| {
            let calls = sample?.calls.iter().find(|(name, _)| name == server);
            calls.map(|(_, counts)| *counts)
        };
        let Some(last) = counts(state.samples.back()) else { return CallTimes::default() };
        let first = counts(state.samples.front()).unwrap_or_default();
        let calls: [u64; Latency::CLASSES] =
            std::array::from_fn(|class| counter_delta(last[class], first[class]));
        let bounds =
            Latency::BOUNDS.map(|bound| u64::try_from(bound.as_micros()).unwrap_or(u64::MAX));
        CallTimes {
            p50_micros: quantile(&bounds, &calls, 50),
            p99_micros: quantile(&bounds, &calls, 99),
        }
    }
}

fn second_between(before: &TimedSample, after: &TimedSample) -> LiveSecond {
    let (counters, earlier) = (&after.counters, &before.counters);
    let known: HashMap<&str, u64> =
        earlier.rules.iter().map(|(name, totals)| (&**name, totals.failed_open)).collect();
    let failed_open = counters.rules.iter().map(|(name, totals)| {
        counter_delta(totals.failed_open, known.get(&**name).copied().unwrap_or_default())
    });
    LiveSecond {
        at: unix_second(after.at).saturating_sub(1),
        checks: checks_delta(&counters.checks, &earlier.checks),
        failed_open: failed_open.sum(),
        p50_micros: counters.percentile_micros_since(earlier, 50),
        p99_micros: counters.percentile_micros_since(earlier, 99),
    }
}

/// Returns the Unix second of a moment, rounded down.
pub const fn unix_second(at: Timestamp) -> u64 {
    at.as_micros() / 1_000_000
}

/// Rounds to one decimal place.
fn round_to_tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
