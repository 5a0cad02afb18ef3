//! From what is asked to what is simulated, and how much work that is.

use thiserror::Error;
use tidegate::rule::{Accuracy, OnStoreFailure, RuleError, RuleErrors, Synced};
use tidegate::{Algorithm, Limit, Quota, QuotaError, Rule, RuleSet, Span};

use super::asked::{Asked, Counting, Crowd, Phase};
use super::fleet::{Telling, textbook};
use super::{Load, Plan, Subject, Trial};

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

impl From<RuleErrors> for Unfit {
    fn from(errors: RuleErrors) -> Self {
        Self::Kept(errors.to_string())
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
        let usual = [OnStoreFailure::default()];
        let answers = match self.weather.outage.filter(|_| !self.on_store_failure.is_empty()) {
            Some(_) => &self.on_store_failure[..],
            None => &usual[..],
        };
        let load = self.crowd.load(self.quota);
        let mut trials = Vec::new();
        for counting in countings {
            let limit = self.counted(*counting, countings)?;
            for (accuracy, answer) in
                accuracies.iter().flat_map(|it| answers.iter().map(move |answer| (it, answer)))
            {
                let subject = self.kept(&limit, *accuracy, *answer)?;
                let mut name = limit.algorithm().to_string();
                if !self.accuracies.is_empty() {
                    name = format!("{name}, {}", named(*accuracy));
                }
                if answers.len() > 1 {
                    name = format!("{name}, {}", worded(*answer));
                }
                // The formula knows windows, and nothing of refill.
                let windows = limit.algorithm() != Algorithm::TokenBucket;
                let textbook = (windows && !self.accuracies.is_empty() && load.nodes > 1)
                    .then(|| textbook(&limit, load.nodes, lag(*accuracy)));
                self.crowd.meets(&mut trials, &name, &subject, textbook);
            }
        }
        let mut about =
            vec![("limit", self.quota.to_string()), ("traffic", self.crowd.described(&load))];
        about.extend(self.fleet(&load));
        about.extend(self.weather.about());
        if let (Some(_), [answer]) = (self.weather.outage, answers) {
            about.push(("without it", worded(*answer).to_owned()));
        }
        Ok(Plan { title: "what a limit makes of it".to_owned(), about, load, trials })
    }

    /// What is said of the nodes.
    fn fleet(&self, load: &Load) -> Option<(&'static str, String)> {
        let syncs = self.accuracies.iter().any(|accuracy| !lag(*accuracy).is_zero());
        let how = match self.together() {
            true if syncs => " that sync at the same instants: all tell, then all look",
            false if syncs => " that sync each at its own time: told and heard in one question",
            _ if self.accuracies.iter().all(|accuracy| *accuracy == Accuracy::Exact) => {
                " that ask one store"
            }
            _ => "",
        };
        (load.nodes > 1).then(|| ("fleet", format!("{} nodes{how}", load.nodes)))
    }

    /// Whether syncs are as the textbook has them.
    fn together(&self) -> bool {
        self.phase == Phase::Together && self.weather.is_calm()
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

    fn kept(
        &self,
        limit: &Limit,
        accuracy: Accuracy,
        answer: OnStoreFailure,
    ) -> Result<Subject, Unfit> {
        let Crowd { clients, nodes, .. } = self.crowd;
        // A rule knows what goes together.
        let rule = rule(limit)?.with_accuracy(accuracy)?.with_on_store_failure(answer);
        match accuracy {
            Accuracy::Exact if self.weather.is_calm() => Ok(Subject::Exact(limit.clone())),
            _ if nodes.saturating_mul(clients) > MOST_VIEWS => {
                Err(Unfit::Large { accuracy: accuracy.name(), clients, nodes })
            }
            Accuracy::Synced(synced) if self.together() => {
                Ok(Subject::Synced(limit.clone(), synced, Telling::Together))
            }
            _ => Ok(Subject::Kept(RuleSet::new(vec![rule])?, self.weather)),
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

/// The word for it in a rules file.
fn worded(answer: OnStoreFailure) -> &'static str {
    match answer {
        OnStoreFailure::Allow => "allow",
        OnStoreFailure::Deny => "deny",
        OnStoreFailure::Local => "local",
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
        let mut about = vec![("rules", name), ("traffic", self.described(&load))];
        if load.nodes > 1 {
            about.push(("fleet", format!("{} nodes, each rule by its accuracy", load.nodes)));
        }
        about.extend(subject.weather().about());
        let mut trials = Vec::new();
        self.meets(&mut trials, "all rules", subject, None);
        Plan { title: "what the rules make of it".to_owned(), about, load, trials }
    }
}
