//! Checks that run in the background during a fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::redis::RedisStore;
use tidegate::{DecisionStatus, Limiter, Request};
use tidegate_testkit::WAIT_TIMEOUT;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::scenario::FAILURE_POLICIES;

const LOAD_TASKS: usize = 4;
const CHECK_INTERVAL: Duration = Duration::from_millis(3);

/// Tasks that check a new client against every rule, one client after another.
pub(crate) struct BackgroundLoad {
    progress: Arc<LoadProgress>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct LoadProgress {
    stopped: AtomicBool,
    checks: AtomicU64,
    decided_by_store: AtomicU64,
    slowest_micros: AtomicU64,
}

impl BackgroundLoad {
    pub(crate) fn start(limiter: &Limiter<RedisStore>, fault: &'static str) -> Self {
        let progress = Arc::new(LoadProgress::default());
        let task =
            |number| tokio::spawn(send_checks(limiter.clone(), fault, number, progress.clone()));
        Self { tasks: (0..LOAD_TASKS).map(task).collect(), progress }
    }

    /// Returns the number of checks so far.
    pub(crate) fn checks(&self) -> u64 {
        self.progress.checks.load(Ordering::Relaxed)
    }

    /// Returns the number of checks that the store has decided so far. Only checks of the rule that denies on a store
    /// failure count: an admission by that rule was decided by the store.
    pub(crate) fn decided_by_store(&self) -> u64 {
        self.progress.decided_by_store.load(Ordering::Relaxed)
    }

    /// Stops the load. Returns the number of checks and the duration of the slowest.
    pub(crate) async fn stop(self) -> (u64, Duration) {
        self.progress.stopped.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let slowest = Duration::from_micros(self.progress.slowest_micros.load(Ordering::Relaxed));
        (self.progress.checks.load(Ordering::Relaxed), slowest)
    }
}

#[allow(clippy::disallowed_methods, reason = "checks are paced, since all tests share two cores")]
async fn send_checks(
    limiter: Limiter<RedisStore>,
    fault: &'static str,
    task: usize,
    progress: Arc<LoadProgress>,
) {
    for round in 0.. {
        if progress.stopped.load(Ordering::Relaxed) {
            return;
        }
        // Each round uses a new client, so that no check reaches a limit.
        let client = format!("load-{task}-{round}");
        let request = Request::new().with("client", &client).unwrap();
        for rule in FAILURE_POLICIES {
            let name = format!("{rule}-{fault}");
            let started = Instant::now();
            let decision = timeout(WAIT_TIMEOUT, limiter.check_rule(&name, &request)).await;
            let status = decision.expect("every check is answered").unwrap().status();
            let elapsed_micros = u64::try_from(started.elapsed().as_micros()).unwrap();
            progress.slowest_micros.fetch_max(elapsed_micros, Ordering::Relaxed);
            progress.checks.fetch_add(1, Ordering::Relaxed);
            match (rule, status) {
                ("deny", DecisionStatus::Allow) => {
                    progress.decided_by_store.fetch_add(1, Ordering::Relaxed);
                }
                ("deny", DecisionStatus::Unavailable) | (_, DecisionStatus::Allow) => {}
                _ => panic!("{name} returned {status:?} for a new client"),
            }
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
