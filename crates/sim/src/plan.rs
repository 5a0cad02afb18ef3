//! The trials of a simulation, and their execution.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_api::{SimulationLine, SimulationResult};
use tidegate_core::Span;

use crate::decider::ClientReply;
use crate::report::{SimulationReport, lasting};
use crate::stats::TrialStats;
use crate::system::SystemUnderTest;
use crate::traffic::{self, Arrival, TrafficLoad, TrafficShape};

/// One load, and the systems that are simulated under it.
#[derive(Debug)]
pub struct SimulationPlan {
    pub(crate) title: String,
    /// The head of the report: pairs of a label and a text.
    pub(crate) about: Vec<(&'static str, String)>,
    pub(crate) load: TrafficLoad,
    pub(crate) trials: Vec<Trial>,
}

/// One system under the load of the plan.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) name: String,
    pub(crate) system: SystemUnderTest,
    /// The behaviour of denied clients; `None` if they do not retry.
    pub(crate) retry: Option<RetryBehavior>,
    /// Admissions that the textbook expects.
    pub(crate) textbook: Option<u64>,
}

/// The time at which denied clients retry, [`MAX_RETRIES`] times at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryBehavior {
    /// After a fixed wait.
    After(Span),
    /// After the wait in the reply, in whole seconds as `Retry-After` has it.
    RetryAfter,
}

/// Maximum number of retries of one request.
const MAX_RETRIES: u32 = 10;
/// Number of requests between two reports of progress.
const REQUESTS_PER_PROGRESS: u64 = 1 << 16;

/// A request that is retried, ordered by time and then by its first arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RetryArrival {
    at: Span,
    number: u64,
    client: u64,
    node: u64,
    retries: u32,
}

impl SimulationPlan {
    /// Returns an upper bound of the work, in steps that take well below a microsecond.
    pub fn work(&self) -> u64 {
        let arrivals = self.load.count();
        let each = self.trials.iter().map(|trial| {
            let tries = if trial.retry.is_some() { u64::from(MAX_RETRIES) + 1 } else { 1 };
            let requests = arrivals.saturating_mul(tries);
            let decided = requests.saturating_mul(trial.system.steps_per_request());
            decided.saturating_add(trial.system.background_steps(&self.load, requests))
        });
        each.fold(0, u64::saturating_add)
    }

    /// Runs all trials. `progress` is called periodically with the completed fraction, from 0 to 1.
    pub fn run(self, progress: &mut dyn FnMut(f64)) -> SimulationReport {
        let Self { title, about, load, trials } = self;
        let count = trials.len().max(1) as f64;
        let mut lines = Vec::new();
        let mut notes = Vec::new();
        for (done, trial) in trials.iter().enumerate() {
            let trial_progress = &mut |part: f64| progress((done as f64 + part) / count);
            lines.extend(trial.run(&load, trial_progress));
        }
        let shows_pace = matches!(load.shape, TrafficShape::Boundary { .. });
        if let Some(worst) = lines.iter().filter(|_| shows_pace).max_by_key(|line| line.most)
            && let Some(pace) = worst.pace()
        {
            let within = lasting(worst.within_seconds);
            let (name, most) = (&worst.name, worst.most);
            notes.push(format!("{name}: {most} within {within}, {pace:.0} per second"));
        }
        let about = about.into_iter().map(|(word, meaning)| (word.to_owned(), meaning)).collect();
        SimulationReport { result: SimulationResult { title, about, lines, notes }, shows_pace }
    }
}

impl Trial {
    fn run(&self, load: &TrafficLoad, progress: &mut dyn FnMut(f64)) -> Vec<SimulationLine> {
        let first_limit = self.system.first_limit();
        let window = first_limit.map_or(Span::SECOND, |limit| limit.quota().window());
        let start = traffic::start(window);
        let mut decider = self.system.start(load, start);
        let single = self.system.is_single_limit();
        let outage = self.system.faults().outage;
        let total = (!single)
            .then(|| TrialStats::new(self.name.clone(), None, load.length).with_outage(outage));
        let rule_name = |name: &str| if single { self.name.clone() } else { name.to_owned() };
        let by_rule = decider.rule_stats(|rule| rule_name(rule.name()), load.length, start);
        let (mut total, mut by_rule): (_, Vec<_>) =
            (total, by_rule.into_iter().map(|stats| stats.with_outage(outage)).collect());
        let mut fresh = load.arrivals().peekable();
        let mut retries = BinaryHeap::<Reverse<RetryArrival>>::new();
        let length = load.length.as_micros().max(1) as f64;
        for number in 0_u64.. {
            let due = retries.peek().map(|Reverse(due)| due.at);
            let first = fresh.peek().map(|arrival| arrival.at);
            let (arrival, tried) = match (due, first) {
                (None, None) => break,
                (Some(due), first) if first.is_none_or(|first| due < first) => {
                    let Some(Reverse(retry)) = retries.pop() else { break };
                    let RetryArrival { at, client, node, retries, .. } = retry;
                    (Arrival { at, client, node }, retries)
                }
                _ => match fresh.next() {
                    Some(arrival) => (arrival, 0),
                    None => break,
                },
            };
            let now = start + arrival.at;
            let reply = decider.decide(arrival, now, total.as_mut(), &mut by_rule);
            let retry = self.retry_wait(reply).filter(|_| tried < MAX_RETRIES);
            if let Some(wait) = retry {
                let at = Span::from_micros(arrival.at.as_micros().saturating_add(wait.as_micros()));
                let Arrival { client, node, .. } = arrival;
                if at < load.length {
                    let retry = RetryArrival { at, number, client, node, retries: tried + 1 };
                    retries.push(Reverse(retry));
                }
            }
            if number.is_multiple_of(REQUESTS_PER_PROGRESS) {
                progress(arrival.at.as_micros() as f64 / length);
            }
        }
        decider.record_failures(&mut by_rule);
        // A rule that no request matched has no line.
        let matched = total.into_iter().chain(by_rule).filter(|stats| stats.offered() > 0);
        matched.map(|stats| stats.into_line(self.textbook)).collect()
    }

    /// Returns the wait until a client retries, if it does.
    fn retry_wait(&self, reply: ClientReply) -> Option<Span> {
        match self.retry? {
            _ if reply.admitted => None,
            RetryBehavior::After(wait) => Some(wait),
            RetryBehavior::RetryAfter => {
                reply.retry_after.map(|wait| Span::from_secs(wait.as_secs_ceil()))
            }
        }
    }
}
