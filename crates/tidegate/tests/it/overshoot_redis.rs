//! Eight processes with clocks that are minutes apart share one limit: never one more than its bound.

mod bound;
mod case;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Limiter, RedisConfig, RedisStore};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, lacking, poll};
use tokio::runtime::Runtime;

use self::bound::Elapsed;
use self::case::{Case, Shape};
use self::worker::{Crew, Tally};

const NEEDED: [Tool; 2] = [Tool::Server(Flavour::Redis), Tool::Faketime];

fn config(url: &str, memory: bool) -> RedisConfig {
    let config: RedisConfig = url.parse().unwrap();
    let memory = if memory { RedisConfig::DEFAULT_DENIAL_MEMORY } else { Duration::ZERO };
    // Long enough for a machine that is busy with other things: a stall must not pass as a denial.
    let config = config.with_timeout(Duration::from_secs(10)).unwrap();
    let config = config.with_connect_timeout(Duration::from_secs(10)).unwrap();
    config.with_denial_memory(memory).unwrap()
}

/// Every case through a crew of workers, and how things stand after each.
fn hammer(url: &str, time: impl Fn() -> u64, judge: impl Fn(&Case, &Tally, &Aftermath<'_>)) {
    let crew = Crew::hire(url);
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(RedisStore::connect(config(url, false))).unwrap();
    let store = Arc::new(store);
    for case in Case::all() {
        let before = time();
        let tally = crew.work(&case);
        let elapsed = Elapsed { from: before, to: time() };
        let limiter = Limiter::builder().rules(case.rules()).store(Arc::clone(&store)).build();
        judge(&case, &tally, &Aftermath { limiter, runtime: &runtime, elapsed, time: &time });
    }
}

/// What is there to be seen when everybody is done.
struct Aftermath<'t> {
    limiter: Limiter<RedisStore>,
    runtime: &'t Runtime,
    elapsed: Elapsed,
    time: &'t dyn Fn() -> u64,
}

impl Aftermath<'_> {
    /// What is left under a case's rules for one client, in the order of the rules.
    fn left(&self, case: &Case, client: usize) -> Vec<u64> {
        let decision = self.runtime.block_on(self.limiter.peek(&case.request(client)));
        decision.rule_outcomes().iter().map(|policy| policy.outcome.remaining).collect()
    }

    /// From before the first check until now.
    fn elapsed(&self) -> Elapsed {
        Elapsed { from: self.elapsed.from, to: (self.time)() }
    }

    /// Waits until each rule has been charged for what was admitted and nothing else.
    ///
    /// A check that could not be answered may have been charged, so this asks for none of them. With
    /// `give_backs` on the way, a bucket may have been given back less than it was charged.
    fn assert_whole(&self, case: &Case, tally: &Tally, give_backs: bool) {
        if tally.unavailable > 0 {
            println!("{case}: {} checks were not answered in time", tally.unavailable);
            return;
        }
        for client in 0..case.shape.clients() {
            let charged = case.charged(&tally.admitted, client);
            let mut left = Vec::new();
            // Give-backs may still be on their way.
            let whole = poll(|| {
                left = self.left(case, client);
                let rules = case.shape.limits().iter().zip(&charged).zip(&left);
                let mut stands = rules.map(|((amount, charged), left)| {
                    case.stands(*amount, *charged, *left, self.elapsed(), give_backs)
                });
                stands.all(|stands| stands).then_some(())
            });
            assert!(
                whole.is_some(),
                "{case}, client {client}: {charged:?} were charged, {left:?} are left"
            );
        }
    }
}

#[test]
fn one_redis_admits_exactly_the_bound_to_eight_processes_with_skewed_clocks() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    hammer(
        &server.url(),
        || server.time_micros(),
        |case, tally, after| {
            for (amount, admitted) in case.tightest(&tally.admitted) {
                let range = case.range(amount, after.elapsed);
                let range = range.start().saturating_sub(tally.unavailable)..=*range.end();
                assert!(range.contains(&admitted), "{case}: {admitted} admitted, not {range:?}");
            }
            after.assert_whole(case, tally, false);
        },
    );
}

#[test]
fn a_cluster_admits_no_more_than_the_bound_and_what_it_denied_leaves_no_charge() {
    if lacking(&NEEDED) {
        return;
    }
    // A busy machine is no reason to replace a master.
    let cluster = Cluster::builder().config("cluster-node-timeout", "30000").start();
    hammer(
        &cluster.url(),
        || cluster.node(0).time_micros(),
        |case, tally, after| {
            for (amount, admitted) in case.tightest(&tally.admitted) {
                let range = case.range(amount, after.elapsed);
                assert!(admitted <= *range.end(), "{case}: {admitted} admitted, not {range:?}");
                // Of requests that race through several slots all may be denied where one fitted.
                let all_fit =
                    case.shape == Shape::Stack || admitted + tally.unavailable >= *range.start();
                assert!(all_fit, "{case}: {admitted} admitted, not {range:?}");
            }
            assert_eq!(tally.lost, 0, "{case}: a give-back was lost");
            after.assert_whole(case, tally, case.shape == Shape::Stack);
        },
    );
}

#[test]
#[ignore = "the worker that the other tests start"]
fn worker() {
    worker::main();
}
