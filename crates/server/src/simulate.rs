//! What limits make of traffic, in virtual time: nobody waits, and the code that decides is the one
//! that ships.
//!
//! [`traffic`] says who comes when, a [`gate`] decides, and a [`tally`] counts what became of it. The same
//! seed gives the same report on every machine.

mod asked;
mod asking;
mod chance;
mod fleet;
mod gate;
mod hub;
pub(crate) mod log;
mod nodes;
mod planning;
mod plot;
pub(crate) mod replay;
mod report;
mod rule_gate;
mod scenario;
mod tally;
#[cfg(test)]
mod tests;
mod traffic;
mod watch;
mod weather;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate::Span;

pub(crate) use asked::{Asked, Counting, Crowd, LATE, MANY, Phase, Traffic};
pub(crate) use chance::{Chance, Zipf};
pub(crate) use gate::Subject;
pub(crate) use plot::Picture;
pub(crate) use report::Report;
pub(crate) use scenario::Scenario;
pub(crate) use traffic::{Load, Shape};
pub(crate) use weather::{Outage, Weather};

use gate::Answer;
use traffic::Arrival;

/// What is to be simulated: one load, and everything that it is put to.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) title: String,
    /// What is said of it above the table.
    pub(crate) about: Vec<(&'static str, String)>,
    pub(crate) load: Load,
    pub(crate) trials: Vec<Trial>,
}

/// One subject under the load of the plan.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) name: String,
    pub(crate) subject: Subject,
    /// Whether clients that are denied come back.
    pub(crate) again: Option<Again>,
    /// What the textbook expects.
    pub(crate) textbook: Option<u64>,
}

/// When clients that are denied come back, [`TRIES`] times at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// After so long, whatever they are told.
    After(Span),
    /// When they are told to, in whole seconds as `Retry-After` has them.
    WhenTold,
}

/// How often a client comes back with one request.
const TRIES: u32 = 10;
/// After so many requests it is said how far it is.
const STEP: u64 = 1 << 16;

/// A request that comes back, those who come first before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Return {
    at: Span,
    number: u64,
    client: u64,
    node: u64,
    tries: u32,
}

impl Plan {
    /// How much there is to do, at the most: a step is what one store does for one request.
    pub(crate) fn work(&self) -> u64 {
        let arrivals = self.load.count();
        let each = self.trials.iter().map(|trial| {
            let tries = if trial.again.is_some() { u64::from(TRIES) + 1 } else { 1 };
            let decided = arrivals.saturating_mul(tries).saturating_mul(trial.subject.steps());
            decided.saturating_add(trial.subject.besides(&self.load))
        });
        each.fold(0, u64::saturating_add)
    }

    /// Lets all of it happen. `progress` is told now and then which part is done, from 0 to 1.
    pub(crate) fn run(self, progress: &mut dyn FnMut(f64)) -> Report {
        let Self { title, about, load, trials } = self;
        let count = trials.len().max(1) as f64;
        let mut lines = Vec::new();
        let mut notes = Vec::new();
        for (done, trial) in trials.iter().enumerate() {
            let told = &mut |part: f64| progress((done as f64 + part) / count);
            lines.extend(trial.run(&load, told));
        }
        let tells_pace = matches!(load.shape, Shape::Boundary { .. });
        if let Some(worst) = lines.iter().filter(|_| tells_pace).max_by_key(|line| line.most)
            && let Some(pace) = worst.pace()
        {
            let within = report::lasting(worst.within_seconds);
            let (name, most) = (&worst.name, worst.most);
            notes.push(format!("{name}: {most} within {within}, {pace:.0} per second"));
        }
        Report { title, about, lines, tells_pace, notes }
    }
}

impl Trial {
    fn run(&self, load: &Load, progress: &mut dyn FnMut(f64)) -> Vec<report::Line> {
        let window = self.subject.limit().map_or(Span::SECOND, |limit| limit.quota().window());
        let start = traffic::start(window);
        let (mut gate, tallies) = self.subject.open(&self.name, load, start);
        let outage = self.subject.weather().outage;
        let apart = tallies.into_iter().map(|tally| tally.telling_apart(outage));
        let mut tallies: Vec<_> = apart.collect();
        let mut fresh = load.arrivals().peekable();
        let mut returns = BinaryHeap::<Reverse<Return>>::new();
        let length = load.length.as_micros().max(1) as f64;
        for number in 0_u64.. {
            let due = returns.peek().map(|Reverse(due)| due.at);
            let first = fresh.peek().map(|arrival| arrival.at);
            let (arrival, tries) = match (due, first) {
                (None, None) => break,
                (Some(due), first) if first.is_none_or(|first| due < first) => {
                    let Some(Reverse(back)) = returns.pop() else { break };
                    let Return { at, client, node, tries, .. } = back;
                    (Arrival { at, client, node }, tries)
                }
                _ => match fresh.next() {
                    Some(arrival) => (arrival, 0),
                    None => break,
                },
            };
            let answer = gate.decide(arrival, start + arrival.at, &mut tallies);
            let back = self.back(answer).filter(|_| tries < TRIES);
            if let Some(wait) = back {
                let at = Span::from_micros(arrival.at.as_micros().saturating_add(wait.as_micros()));
                let Arrival { client, node, .. } = arrival;
                if at < load.length {
                    returns.push(Reverse(Return { at, number, client, node, tries: tries + 1 }));
                }
            }
            if number.is_multiple_of(STEP) {
                progress(arrival.at.as_micros() as f64 / length);
            }
        }
        gate.settle(&mut tallies);
        // What no request met has nothing to tell.
        let met = tallies.into_iter().filter(|tally| tally.offered() > 0);
        met.map(|tally| tally.line(self.textbook)).collect()
    }

    /// How long a client waits until it comes back, if it does.
    fn back(&self, answer: Answer) -> Option<Span> {
        match self.again? {
            _ if answer.admitted => None,
            Again::After(wait) => Some(wait),
            Again::WhenTold => answer.retry_after.map(|wait| Span::from_secs(wait.as_secs_ceil())),
        }
    }
}
