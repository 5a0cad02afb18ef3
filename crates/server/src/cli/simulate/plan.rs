//! What was asked for, as something to simulate.

use std::path::Path;

use clap::ValueEnum;
use tidegate::rule::{Every, Synced};
use tidegate::{Algorithm, Limit, Quota, RuleSet, Span};

use super::super::excerpt::Sources;
use super::super::{Failure, Output, named_values};
use super::{Counting, Simulate, Traffic};
use crate::config::{self, ConfigError};
use crate::simulate::{self, Again, Load, Plan, Shape, Subject, Telling, Trial};

/// Where in a window an attack begins, in percent.
const LATE: u64 = 85;
/// How long blind clients wait.
const BLIND: Span = Span::from_millis(100);
/// Each node knows each client: so many of them fit.
const MOST_VIEWS: u64 = 1_000_000;

impl Simulate {
    /// One limit, counted and kept in all the ways that are to be compared.
    pub(super) fn of_limit(&self, quota: Quota) -> Result<Plan, Failure> {
        let usual = [Counting::TokenBucket];
        let countings = if self.algorithm.is_empty() { &usual[..] } else { &self.algorithm };
        let exact = [Span::ZERO];
        let lags = if self.sync.is_empty() { &exact[..] } else { &self.sync };
        if lags.iter().any(|lag| !lag.is_zero()) && self.nodes * self.clients > MOST_VIEWS {
            let (nodes, clients) = (self.nodes, self.clients);
            return Err(Failure::refused(format_args!(
                "--sync takes at most {MOST_VIEWS} clients times nodes, found {clients} x {nodes}"
            )));
        }
        if self.queue.is_some() && !countings.contains(&Counting::LeakyBucket) {
            return Err(Failure::refused("--queue needs --algorithm leaky_bucket"));
        }
        let mut trials = Vec::new();
        for counting in countings {
            let limit = self.counted(*counting, quota, countings)?;
            for lag in lags {
                let subject = self.kept(&limit, *lag)?;
                let named = match (lag.is_zero(), self.sync.is_empty()) {
                    (_, true) => limit.algorithm().to_string(),
                    (true, _) => format!("{}, exact", limit.algorithm()),
                    (false, _) => format!("{}, sync every {lag}", limit.algorithm()),
                };
                // The formula knows windows, and nothing of refill.
                let windows = limit.algorithm() != Algorithm::TokenBucket;
                let textbook = (windows && !self.sync.is_empty() && self.nodes > 1)
                    .then(|| simulate::textbook(&limit, self.nodes, *lag));
                self.add(&mut trials, &named, subject, textbook);
            }
        }
        let mut about = vec![("limit", quota.to_string())];
        let load = self.load(Some(quota));
        about.push(("traffic", self.described(&load)));
        if self.nodes > 1 {
            let how = match self.sync.is_empty() {
                true => "that ask one store",
                false => "that sync at the same instants: all tell, then all look",
            };
            about.push(("fleet", format!("{} nodes {how}", self.nodes)));
        }
        Ok(Plan { title: "what a limit makes of it".to_owned(), about, load, trials })
    }

    fn counted(
        &self,
        counting: Counting,
        quota: Quota,
        all: &[Counting],
    ) -> Result<Limit, Failure> {
        // Among several a burst is for who has one; if nobody has, the limit says so.
        let bucket = Counting::TokenBucket;
        let quota = match self.burst.filter(|_| counting == bucket || !all.contains(&bucket)) {
            Some(burst) => quota.burst(burst),
            None => quota,
        };
        let algorithm = match counting {
            Counting::TokenBucket => Algorithm::TokenBucket,
            Counting::LeakyBucket => {
                Algorithm::LeakyBucket { queue: self.queue.unwrap_or_default() }
            }
            Counting::FixedWindow => Algorithm::FixedWindow,
            Counting::SlidingWindow => Algorithm::SlidingWindow,
            Counting::SlidingLog => Algorithm::SlidingLog,
        };
        Limit::new(algorithm, quota).map_err(Failure::refused)
    }

    fn kept(&self, limit: &Limit, lag: Span) -> Result<Subject, Failure> {
        let Some(every) = Every::new(lag) else { return Ok(Subject::Exact(limit.clone())) };
        if !limit.leases() {
            return Err(Failure::refused(format_args!(
                "--sync needs token_bucket, fixed_window or sliding_window, found {}",
                limit.algorithm()
            )));
        }
        let max_ahead = self.max_ahead.unwrap_or_default();
        Ok(Subject::Synced(limit.clone(), Synced { every, max_ahead }, Telling::Together))
    }

    /// The rules of a file, with what is wrong in its lines.
    pub(super) fn of_rules(&self, path: &Path, output: &mut Output<'_>) -> Result<Plan, Failure> {
        let name = path.display().to_string();
        let text = config::read(path, RuleSet::MAX_DOCUMENT)?;
        let rules = RuleSet::parse(&name, &text).map_err(|error| {
            let error = ConfigError::from(error);
            let mut sources = Sources::default();
            sources.keep(&name, &text);
            let told = sources.told(&error);
            let failure = Failure::from(error);
            Failure { message: told.unwrap_or_else(|| failure.message.clone()), ..failure }
        })?;
        let attributes = named_values(&self.attributes)?;
        for rule in rules.rules().iter().filter(|rule| rule.limit().is_held()) {
            output.note(format_args!(
                "{}: counts what is in flight; here every request keeps its slot for all of hold",
                rule.name()
            ));
        }
        let subject = Subject::Rules(rules, attributes);
        let Some(limit) = subject.limit() else {
            return Err(Failure::refused(format_args!("{name}: no rule applies to the requests"))
                .hint("-a path=/v1/orders gives them what the rules match on")
                .hint(format!("tidegate explain --rules {name} / says why each does not")));
        };
        let load = self.load(Some(*limit.quota()));
        let about = vec![("rules", name), ("traffic", self.described(&load))];
        let mut trials = Vec::new();
        self.add(&mut trials, "all rules", subject, None);
        Ok(Plan { title: "what the rules make of it".to_owned(), about, load, trials })
    }

    /// Adds a subject; in a storm once for each kind of client.
    fn add(&self, to: &mut Vec<Trial>, name: &str, subject: Subject, textbook: Option<u64>) {
        let storms: &[(&str, Option<Again>)] = match self.traffic {
            Traffic::RetryStorm => &[
                (", back after 100 ms", Some(Again::After(BLIND))),
                (", back after Retry-After", Some(Again::WhenTold)),
            ],
            _ => &[("", None)],
        };
        for (how, again) in storms {
            let (name, subject) = (format!("{name}{how}"), subject.clone());
            to.push(Trial { name, subject, again: *again, textbook });
        }
    }

    fn load(&self, limit: Option<Quota>) -> Load {
        let limit = limit.filter(|quota| !quota.is_in_flight());
        let window = limit.map_or(Span::SECOND, |quota| quota.window());
        let amount = limit.map_or(1, |quota| quota.amount());
        let shape = match self.traffic {
            Traffic::Steady | Traffic::RetryStorm => Shape::Steady,
            Traffic::Bursty => Shape::Bursty,
            Traffic::Zipf => Shape::Zipf,
            Traffic::Boundary => Shape::Boundary { amount, window, percent: LATE },
        };
        let usual = match self.traffic {
            Traffic::Boundary => window.checked_mul(2).unwrap_or(window),
            _ => Span::MINUTE,
        };
        let length = self.length.unwrap_or(usual);
        let (rate, clients, nodes, seed) = (self.rate, self.clients, self.nodes, self.seed);
        Load { shape, rate, clients, nodes, length, seed }
    }

    fn described(&self, load: &Load) -> String {
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
            _ => format!("{name}, {clients}, {} for {length}", load.rate),
        }
    }
}
