//! Traffic that goes on whatever happens to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{DecisionStatus, Limiter, RedisStore, Request};
use tidegate_testkit::WAIT_TIMEOUT;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::scene::RULES;

const TASKS: usize = 4;
const PACE: Duration = Duration::from_millis(3);

/// Tasks that check one new client after another by every rule.
pub(crate) struct Load {
    progress: Arc<Progress>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Progress {
    over: AtomicBool,
    checks: AtomicU64,
    decided: AtomicU64,
    slowest: AtomicU64,
}

impl Load {
    pub(crate) fn start(limiter: &Limiter<RedisStore>, fault: &'static str) -> Self {
        let progress = Arc::new(Progress::default());
        let task = |number| tokio::spawn(traffic(limiter.clone(), fault, number, progress.clone()));
        Self { tasks: (0..TASKS).map(task).collect(), progress }
    }

    /// How many checks there were so far.
    pub(crate) fn checks(&self) -> u64 {
        self.progress.checks.load(Ordering::Relaxed)
    }

    /// How many checks the store decided so far, of those whose answers show it.
    pub(crate) fn decided(&self) -> u64 {
        self.progress.decided.load(Ordering::Relaxed)
    }

    /// Ends the traffic: how many checks there were, and how long the slowest took.
    pub(crate) async fn end(self) -> (u64, Duration) {
        self.progress.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let slowest = Duration::from_micros(self.progress.slowest.load(Ordering::Relaxed));
        (self.progress.checks.load(Ordering::Relaxed), slowest)
    }
}

#[allow(clippy::disallowed_methods, reason = "traffic has a pace, on two cores shared by all")]
async fn traffic(
    limiter: Limiter<RedisStore>,
    fault: &'static str,
    task: usize,
    progress: Arc<Progress>,
) {
    for turn in 0.. {
        if progress.over.load(Ordering::Relaxed) {
            return;
        }
        // A client of its own for each turn: nobody comes near a limit, so nobody is denied.
        let client = format!("load-{task}-{turn}");
        let request = Request::new().with("client", &client).unwrap();
        for rule in RULES {
            let name = format!("{rule}-{fault}");
            let started = Instant::now();
            let decision = timeout(WAIT_TIMEOUT, limiter.check_rule(&name, &request)).await;
            let ruling = decision.expect("every check is answered").unwrap().status();
            let took = u64::try_from(started.elapsed().as_micros()).unwrap();
            progress.slowest.fetch_max(took, Ordering::Relaxed);
            progress.checks.fetch_add(1, Ordering::Relaxed);
            match (rule, ruling) {
                ("deny", DecisionStatus::Allow) => {
                    progress.decided.fetch_add(1, Ordering::Relaxed);
                }
                ("deny", DecisionStatus::Unavailable) | (_, DecisionStatus::Allow) => {}
                _ => panic!("{name} answered {ruling:?} to a new client"),
            }
        }
        tokio::time::sleep(PACE).await;
    }
}
