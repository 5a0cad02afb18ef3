//! From what is asked to what is simulated, and how much work that is.

use thiserror::Error;
use tidegate::rule::{Accuracy, RuleError, Synced};
use tidegate::{Algorithm, Limit, Quota, QuotaError, Rule, Span};

use super::asked::{Asked, Counting, Crowd};
use super::fleet::{Telling, textbook};
use super::{Plan, Subject, Trial};

/// Each node knows each client: so many of them fit.
const MOST_VIEWS: u64 = 1_000_000;

/// Why something that was asked can't be simulated.
#[derive(Debug, Error)]
pub(crate) enum Unfit {
    #[error(transparent)]
    Limit(#[from] QuotaError),
    /// What the limit does not go with.
    #[error("{0}")]
    Kept(String),
    #[error("queue needs algorithm leaky_bucket")]
    Queue,
    #[error(
        "accuracy {accuracy} takes at most {MOST_VIEWS} clients times nodes, found {clients} x {nodes}"
    )]
    Large { accuracy: &'static str, clients: u64, nodes: u64 },
}

impl From<RuleError> for Unfit {
    fn from(error: RuleError) -> Self {
        Self::Kept(error.without_place())
    }
}

impl Asked {
    /// What is to be simulated.
    ///
    /// # Errors
    /// The limit can't be counted or kept like that.
    pub(crate) fn plan(&self) -> Result<Plan, Unfit> {
        let usual = [Counting::TokenBucket];
        let countings = if self.countings.is_empty() { &usual[..] } else { &self.countings };
        if self.queue.is_some() && !countings.contains(&Counting::LeakyBucket) {
            return Err(Unfit::Queue);
        }
        let exact = [Accuracy::Exact];
        let accuracies = if self.accuracies.is_empty() { &exact[..] } else { &self.accuracies };
        let load = self.crowd.load(self.quota);
        let mut trials = Vec::new();
        for counting in countings {
            let limit = self.counted(*counting, countings)?;
            for accuracy in accuracies {
                let subject = self.kept(&limit, *accuracy)?;
                let name = match self.accuracies.is_empty() {
                    true => limit.algorithm().to_string(),
                    false => format!("{}, {}", limit.algorithm(), named(*accuracy)),
                };
                // The formula knows windows, and nothing of refill.
                let windows = limit.algorithm() != Algorithm::TokenBucket;
                let textbook = (windows && !self.accuracies.is_empty() && load.nodes > 1)
                    .then(|| textbook(&limit, load.nodes, lag(*accuracy)));
                self.crowd.meets(&mut trials, &name, &subject, textbook);
            }
        }
        let mut about =
            vec![("limit", self.quota.to_string()), ("traffic", self.crowd.described(&load))];
        if load.nodes > 1 {
            let syncs = accuracies.iter().any(|accuracy| !lag(*accuracy).is_zero());
            let how = match syncs {
                false => "that ask one store",
                true => "that sync at the same instants: all tell, then all look",
            };
            about.push(("fleet", format!("{} nodes {how}", load.nodes)));
        }
        Ok(Plan { title: "what a limit makes of it".to_owned(), about, load, trials })
    }

    fn counted(&self, counting: Counting, all: &[Counting]) -> Result<Limit, Unfit> {
        // Among several a burst is for who has one; if nobody has, the limit says so.
        let bucket = Counting::TokenBucket;
        let quota = match self.burst.filter(|_| counting == bucket || !all.contains(&bucket)) {
            Some(burst) => self.quota.burst(burst),
            None => self.quota,
        };
        Ok(Limit::new(counting.algorithm(self.queue), quota)?)
    }

    fn kept(&self, limit: &Limit, accuracy: Accuracy) -> Result<Subject, Unfit> {
        let Crowd { clients, nodes, .. } = self.crowd;
        // A rule knows what goes together.
        rule(limit)?.with_accuracy(accuracy)?;
        match accuracy {
            Accuracy::Exact => Ok(Subject::Exact(limit.clone())),
            _ if nodes.saturating_mul(clients) > MOST_VIEWS => {
                Err(Unfit::Large { accuracy: accuracy.name(), clients, nodes })
            }
            Accuracy::Synced(synced) => {
                Ok(Subject::Synced(limit.clone(), synced, Telling::Together))
            }
            other => Err(Unfit::Kept(format!("accuracy {} is not simulated yet", other.name()))),
        }
    }
}

/// A rule that has this limit, for each client.
fn rule(limit: &Limit) -> Result<Rule, RuleError> {
    Rule::new("limit", limit.algorithm(), *limit.quota())?.with_per("client")
}

/// How late nodes hear of each other.
fn lag(accuracy: Accuracy) -> Span {
    match accuracy {
        Accuracy::Synced(Synced { every, .. }) => every.span(),
        _ => Span::ZERO,
    }
}

fn named(accuracy: Accuracy) -> String {
    match accuracy {
        Accuracy::Synced(Synced { every, .. }) => format!("sync every {}", every.span()),
        other => other.name().to_owned(),
    }
}

impl Crowd {
    /// Adds a subject that it meets, once for each kind of clients.
    pub(crate) fn meets(
        &self,
        trials: &mut Vec<Trial>,
        name: &str,
        subject: &Subject,
        textbook: Option<u64>,
    ) {
        for (how, again) in self.kinds() {
            let (name, subject) = (format!("{name}{how}"), subject.clone());
            trials.push(Trial { name, subject, again: *again, textbook });
        }
    }

    /// What the rules of a file are to meet; their first limit is the one that attacks aim at.
    pub(crate) fn plan_for(&self, name: String, subject: &Subject, limit: Quota) -> Plan {
        let load = self.load(limit);
        let about = vec![("rules", name), ("traffic", self.described(&load))];
        let mut trials = Vec::new();
        self.meets(&mut trials, "all rules", subject, None);
        Plan { title: "what the rules make of it".to_owned(), about, load, trials }
    }
}
