//! Eight processes with skewed clocks share one limit, and together never exceed its bound.

mod bound;
mod case;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tidegate::Limiter;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, lacking, poll};
use tokio::runtime::Runtime;

use self::bound::Elapsed;
use self::case::{KeyShape, LoadCase};
use self::worker::{CheckTally, WorkerFleet};

const REQUIRED_TOOLS: [Tool; 2] = [Tool::Server(Flavour::Redis), Tool::Faketime];

fn config(url: &str, caches_denials: bool) -> RedisConfig {
    let config: RedisConfig = url.parse().unwrap();
    let caches_denials =
        if caches_denials { RedisConfig::DEFAULT_DENIAL_MEMORY } else { Duration::ZERO };
    // Long timeouts, so that a busy machine causes no store failure that would count as a denial.
    let config = config.with_timeout(Duration::from_secs(10)).unwrap();
    let config = config.with_connect_timeout(Duration::from_secs(10)).unwrap();
    config.with_denial_memory(caches_denials).unwrap()
}

/// Runs every case on a fleet of workers, and calls `verify` after each.
fn run_all_cases(
    url: &str,
    time: impl Fn() -> u64,
    verify: impl Fn(&LoadCase, &CheckTally, &FinishedCase<'_>),
) {
    let workers = WorkerFleet::start(url);
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(RedisStore::connect(config(url, false))).unwrap();
    let store = Arc::new(store);
    for case in LoadCase::all() {
        let before = time();
        let results = workers.run_case(&case);
        let elapsed = Elapsed { from: before, to: time() };
        let limiter = Limiter::builder().rules(case.rules()).store(Arc::clone(&store)).build();
        verify(&case, &results, &FinishedCase { limiter, runtime: &runtime, elapsed, time: &time });
    }
}

/// The state of the store after all workers have finished a case.
struct FinishedCase<'t> {
    limiter: Limiter<RedisStore>,
    runtime: &'t Runtime,
    elapsed: Elapsed,
    time: &'t dyn Fn() -> u64,
}

impl FinishedCase<'_> {
    /// Returns the remaining amount of each rule for one client, in the order of the rules.
    fn remaining(&self, case: &LoadCase, client: usize) -> Vec<u64> {
        let decision = self.runtime.block_on(self.limiter.peek(&case.request(client)));
        decision.rule_outcomes().iter().map(|rule_outcome| rule_outcome.outcome.remaining).collect()
    }

    /// Returns the span from before the first check until now.
    fn elapsed(&self) -> Elapsed {
        Elapsed { from: self.elapsed.from, to: (self.time)() }
    }

    /// Waits until each rule is charged exactly for the admitted checks.
    ///
    /// Does nothing if a check failed, since a failed check may have been charged. With `with_refunds`, a bucket may have
    /// been refunded less than it was charged.
    fn wait_until_charged_exactly(
        &self,
        case: &LoadCase,
        results: &CheckTally,
        with_refunds: bool,
    ) {
        if results.unavailable > 0 {
            println!("{case}: {} checks were not answered in time", results.unavailable);
            return;
        }
        for client in 0..case.shape.clients() {
            let charged = case.charged(&results.admitted, client);
            let mut remaining = Vec::new();
            // Refunds may still be in flight.
            let is_exact = poll(|| {
                remaining = self.remaining(case, client);
                let rules = case.shape.limits().iter().zip(&charged).zip(&remaining);
                let mut is_valid_remainder = rules.map(|((amount, charged), remaining)| {
                    case.is_valid_remainder(
                        *amount,
                        *charged,
                        *remaining,
                        self.elapsed(),
                        with_refunds,
                    )
                });
                is_valid_remainder.all(|is_valid_remainder| is_valid_remainder).then_some(())
            });
            assert!(
                is_exact.is_some(),
                "{case}, client {client}: {charged:?} were charged, {remaining:?} are left"
            );
        }
    }
}

#[test]
fn eight_processes_with_skewed_clocks_admit_exactly_the_bound_on_one_redis() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    run_all_cases(
        &server.url(),
        || server.time_micros(),
        |case, results, finished| {
            for (amount, admitted) in case.exhausted_limits(&results.admitted) {
                let admission_bounds = case.admission_bounds(amount, finished.elapsed);
                let admission_bounds = admission_bounds.start().saturating_sub(results.unavailable)
                    ..=*admission_bounds.end();
                assert!(
                    admission_bounds.contains(&admitted),
                    "{case}: {admitted} admitted, not {admission_bounds:?}"
                );
            }
            finished.wait_until_charged_exactly(case, results, false);
        },
    );
}

#[test]
fn eight_processes_on_a_cluster_never_exceed_the_bound_and_denied_requests_leave_no_charge() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    // A long node timeout, so that a busy machine causes no failover.
    let cluster = Cluster::builder().config("cluster-node-timeout", "30000").start();
    run_all_cases(
        &cluster.url(),
        || cluster.node(0).time_micros(),
        |case, results, finished| {
            for (amount, admitted) in case.exhausted_limits(&results.admitted) {
                let admission_bounds = case.admission_bounds(amount, finished.elapsed);
                assert!(
                    admitted <= *admission_bounds.end(),
                    "{case}: {admitted} admitted, not {admission_bounds:?}"
                );
                // Requests that race through several slots may all be denied although one would fit.
                let all_fit = case.shape == KeyShape::RuleStack
                    || admitted + results.unavailable >= *admission_bounds.start();
                assert!(all_fit, "{case}: {admitted} admitted, not {admission_bounds:?}");
            }
            assert_eq!(results.lost_refunds, 0, "{case}: a refund was lost");
            finished.wait_until_charged_exactly(case, results, case.shape == KeyShape::RuleStack);
        },
    );
}

#[test]
#[ignore = "worker process, started by the other tests"]
fn worker() {
    worker::main();
}
