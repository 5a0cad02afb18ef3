//! What happens now: a server looks at its own counters at the end of every second, and keeps what it saw for a
//! while. Nothing is counted twice for it; these are differences of what metrics tell.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_api::{CallTimes, LiveSecond, PerOutcome};
use tidegate_core::{Span, Timestamp};
use tidegate_redis::Latency;

use crate::service::Service;
use crate::stats::quantile::quantile;
use crate::stats::{Sample, checks_since, since};
use crate::store::AnyStore;

/// How many seconds are kept.
const SECONDS: usize = 300;
/// Over how many of them rates are told.
const RATES: usize = 10;

/// The last seconds of a server.
#[derive(Debug)]
pub struct Live {
    started: Timestamp,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The last moments, oldest first; never empty.
    moments: VecDeque<Moment>,
    /// What came between two of them, oldest first.
    seconds: VecDeque<LiveSecond>,
}

/// What had been counted when.
#[derive(Debug)]
struct Moment {
    at: Timestamp,
    sample: Sample,
    /// Calls of each server of the store by how long they took.
    calls: Vec<(String, [u64; Latency::CLASSES])>,
}

impl Live {
    /// Begins with nothing counted.
    pub fn new(started: Timestamp) -> Self {
        let first = Moment { at: started, sample: Sample::default(), calls: Vec::new() };
        let seen = Seen { moments: VecDeque::from([first]), seconds: VecDeque::new() };
        Self { started, seen: Mutex::new(seen) }
    }

    /// When the server started.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Looks at the end of every second, for good.
    pub async fn watch(self: Arc<Self>, service: Arc<Service>) {
        let clock = service.clock();
        loop {
            let next = Timestamp::from_secs(second(clock.now()) + 1);
            clock.sleep_until(next).await;
            let now = service.active_rules();
            let calls = match &**now.limiter().store() {
                AnyStore::Memory(_) => Vec::new(),
                AnyStore::Redis(store) => {
                    let reports = store.reports().into_iter();
                    reports.map(|report| (report.name, report.latency.counts)).collect()
                }
            };
            let sample = service.stats().counters.sample(&now);
            self.look(Moment { at: clock.now(), sample, calls });
        }
    }

    /// Notes what the second that has just ended was like. One that was slept through is not told by itself: what
    /// came in it counts for the next.
    fn look(&self, moment: Moment) {
        let mut seen = self.seen.lock();
        if let Some(before) = seen.moments.back() {
            let second = second_between(before, &moment);
            seen.seconds.push_back(second);
        }
        seen.moments.push_back(moment);
        if seen.seconds.len() > SECONDS {
            seen.seconds.pop_front();
        }
        if seen.moments.len() > RATES + 1 {
            seen.moments.pop_front();
        }
    }

    /// The seconds that are kept and began after `since`, oldest first.
    pub fn seconds(&self, since: u64) -> Vec<LiveSecond> {
        let seen = self.seen.lock();
        seen.seconds.iter().filter(|second| second.at > since).copied().collect()
    }

    /// How often each rule gave each answer in a second, over the last ten.
    pub fn rates(&self) -> HashMap<Arc<str>, PerOutcome<f64>> {
        let seen = self.seen.lock();
        let (Some(first), Some(last)) = (seen.moments.front(), seen.moments.back()) else {
            return HashMap::new();
        };
        let seconds = last.at.since(first.at).max(Span::SECOND).as_micros() as f64 / 1e6;
        let before: HashMap<&str, &PerOutcome<u64>> =
            first.sample.rules.iter().map(|(name, said)| (&**name, said)).collect();
        let rates = last.sample.rules.iter().map(|(name, said)| {
            // A rule that was not there began with nothing.
            let counts = before.get(&**name).map_or(*said, |before| said.zip_with(**before, since));
            (Arc::clone(name), counts.map(|count| tenths(count as f64 / seconds)))
        });
        rates.collect()
    }

    /// How long calls of a server of the store took in the last ten seconds.
    pub fn calls(&self, server: &str) -> CallTimes {
        let seen = self.seen.lock();
        let counts = |moment: Option<&Moment>| {
            let calls = moment?.calls.iter().find(|(name, _)| name == server);
            calls.map(|(_, counts)| *counts)
        };
        let Some(last) = counts(seen.moments.back()) else { return CallTimes::default() };
        let first = counts(seen.moments.front()).unwrap_or_default();
        let calls: [u64; Latency::CLASSES] =
            std::array::from_fn(|class| since(last[class], first[class]));
        let bounds =
            Latency::BOUNDS.map(|bound| u64::try_from(bound.as_micros()).unwrap_or(u64::MAX));
        CallTimes {
            p50_micros: quantile(&bounds, &calls, 50),
            p99_micros: quantile(&bounds, &calls, 99),
        }
    }
}

fn second_between(before: &Moment, after: &Moment) -> LiveSecond {
    let (sample, earlier) = (&after.sample, &before.sample);
    let known: HashMap<&str, u64> =
        earlier.rules.iter().map(|(name, said)| (&**name, said.failed_open)).collect();
    let failed_open = sample.rules.iter().map(|(name, said)| {
        since(said.failed_open, known.get(&**name).copied().unwrap_or_default())
    });
    LiveSecond {
        at: second(after.at).saturating_sub(1),
        checks: checks_since(&sample.checks, &earlier.checks),
        failed_open: failed_open.sum(),
        p50_micros: sample.micros_since(earlier, 50),
        p99_micros: sample.micros_since(earlier, 99),
    }
}

/// The second that a moment is in.
pub const fn second(at: Timestamp) -> u64 {
    at.as_micros() / 1_000_000
}

/// With one digit behind the point.
fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
