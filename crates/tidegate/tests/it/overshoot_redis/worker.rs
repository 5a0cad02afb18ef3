//! A worker process: the test binary, started with a skewed clock.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate::redis::RedisStore;
use tidegate::{DecisionStatus, Limiter};
use tidegate_testkit::Process;
use tokio::task::JoinSet;

use super::case::LoadCase;
use super::config;

const TASKS_PER_WORKER: usize = 16;
/// Clock offset of each process, in seconds.
const CLOCK_SKEWS_SECS: [i64; 8] = [-300, 300, 0, -299, 299, -60, 60, 150];

/// Results of the checks.
#[derive(Debug, Default)]
pub(crate) struct CheckTally {
    /// Admissions per client.
    pub(crate) admitted: Vec<u64>,
    pub(crate) denied: u64,
    pub(crate) unavailable: u64,
    /// Refunds that failed so far.
    pub(crate) lost_refunds: u64,
}

/// Worker processes that wait for a case.
pub(crate) struct WorkerFleet(Vec<Process>);

impl WorkerFleet {
    pub(crate) fn start(url: &str) -> Self {
        let workers = Self(CLOCK_SKEWS_SECS.iter().map(|skew| start(*skew)).collect());
        for (worker, skew) in workers.0.iter().zip(CLOCK_SKEWS_SECS) {
            worker.say(url);
            let line = next_line(worker, "clock ");
            let worker_clock: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            let offset = worker_clock - wall_clock_secs();
            // The two clocks are not read at the same instant.
            assert!((offset - skew).abs() <= 60, "a clock is off by {offset} s, not by {skew} s");
        }
        workers
    }

    /// Runs a case on all workers at the same time, and returns the sum of their results.
    pub(crate) fn run_case(&self, case: &LoadCase) -> CheckTally {
        let case_number =
            LoadCase::all().position(|other| other.to_string() == case.to_string()).unwrap();
        self.0.iter().for_each(|worker| worker.say(&case_number.to_string()));
        for worker in &self.0 {
            next_line(worker, "ready");
        }
        self.0.iter().for_each(|worker| worker.say("go"));
        let mut sum =
            CheckTally { admitted: vec![0; case.shape.clients()], ..CheckTally::default() };
        for worker in &self.0 {
            let line = next_line(worker, "done ");
            let mut numbers = line.split(' ').filter_map(|prefix| prefix.parse::<u64>().ok());
            let mut next = || numbers.next().unwrap();
            sum.denied += next();
            sum.unavailable += next();
            sum.lost_refunds += next();
            sum.admitted.iter_mut().for_each(|admitted| *admitted += next());
        }
        let admitted_sum: u64 = sum.admitted.iter().sum();
        let checks = CLOCK_SKEWS_SECS.len() * TASKS_PER_WORKER * case.shape.checks();
        assert_eq!(admitted_sum + sum.denied + sum.unavailable, checks as u64, "{case}");
        println!("{case}: {checks} checks, {admitted_sum} admitted");
        sum
    }
}

/// Returns the next line of a worker that starts with `prefix`.
fn next_line(worker: &Process, prefix: &str) -> String {
    while let Some(line) = worker.stdout().next() {
        if line.starts_with(prefix) {
            return line;
        }
    }
    panic!("a worker ended:\n{}", worker.log_tail())
}

fn start(skew: i64) -> Process {
    let mut command = Process::command(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "overshoot_redis::worker"]);
    Process::skew(&mut command, skew);
    Process::spawn(command)
}

/// Returns the wall clock in seconds. The skew changes only this clock.
#[allow(clippy::disallowed_methods, reason = "the test compares system clocks")]
fn wall_clock_secs() -> i64 {
    let admitted_sum = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(admitted_sum.as_secs()).unwrap()
}

/// Reads the store URL and then case numbers from stdin. Runs each case after the line `go`.
pub(crate) fn main() {
    let mut lines = io::stdin().lock().lines().map(Result::unwrap);
    let url = lines.next().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stores = [false, true].map(|caches_denials| {
        Arc::new(runtime.block_on(RedisStore::connect(config(&url, caches_denials))).unwrap())
    });
    println!("\nclock {}", wall_clock_secs());
    while let Some(case_number) = lines.next() {
        let case = LoadCase::all().nth(case_number.parse().unwrap()).unwrap();
        let store = &stores[usize::from(case.caches_denials)];
        let limiter = Limiter::builder().rules(case.rules()).store(Arc::clone(store)).build();
        println!("ready");
        assert_eq!(lines.next().as_deref(), Some("go"));
        let mut tally = runtime.block_on(send_checks(&limiter, case));
        tally.lost_refunds = store.counts().lost;
        let admitted: Vec<String> = tally.admitted.iter().map(u64::to_string).collect();
        let CheckTally { denied, unavailable, lost_refunds, .. } = tally;
        println!("done {denied} {unavailable} {lost_refunds} {}", admitted.join(" "));
    }
}

async fn send_checks(limiter: &Limiter<RedisStore>, case: LoadCase) -> CheckTally {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS_PER_WORKER {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut statuses = Vec::new();
            for turn in 0..case.shape.checks() {
                // Neighbouring tasks check different clients; all processes check the same ones.
                let client = (task * case.shape.checks() + turn) * 37 % case.shape.clients();
                let decision = limiter.check(&case.request(client)).await;
                statuses.push((client, decision.status()));
            }
            statuses
        });
    }
    let mut tally = CheckTally { admitted: vec![0; case.shape.clients()], ..CheckTally::default() };
    for (client, status) in tasks.join_all().await.into_iter().flatten() {
        match status {
            DecisionStatus::Allow => tally.admitted[client] += 1,
            DecisionStatus::Deny => tally.denied += 1,
            DecisionStatus::Unavailable => tally.unavailable += 1,
        }
    }
    tally
}
