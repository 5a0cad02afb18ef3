//! One process of the fleet: the test's own binary, started again on a clock that is off.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate::{DecisionStatus, Limiter, RedisStore};
use tidegate_testkit::Process;
use tokio::task::JoinSet;

use super::case::Case;
use super::config;

const TASKS: usize = 16;
/// How far the clock of each process is off, in seconds.
const SKEWS: [i64; 8] = [-300, 300, 0, -299, 299, -60, 60, 150];

/// What became of the checks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// For each client.
    pub(crate) admitted: Vec<u64>,
    pub(crate) denied: u64,
    pub(crate) unavailable: u64,
    /// Give-backs that failed so far.
    pub(crate) lost: u64,
}

/// Processes that wait for work.
pub(crate) struct Crew(Vec<Process>);

impl Crew {
    pub(crate) fn hire(url: &str) -> Self {
        let crew = Self(SKEWS.iter().map(|skew| start(*skew)).collect());
        for (worker, skew) in crew.0.iter().zip(SKEWS) {
            worker.say(url);
            let line = hear(worker, "clock ");
            let shown: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            let off = shown - seconds();
            // The worker's clock was read while ours went on.
            assert!((off - skew).abs() <= 60, "a clock is off by {off} s, not by {skew} s");
        }
        crew
    }

    /// Lets every process hammer a case at the same time.
    pub(crate) fn work(&self, case: &Case) -> Tally {
        let place = Case::all().position(|other| other.to_string() == case.to_string()).unwrap();
        self.0.iter().for_each(|worker| worker.say(&place.to_string()));
        for worker in &self.0 {
            hear(worker, "ready");
        }
        self.0.iter().for_each(|worker| worker.say("go"));
        let mut sum = Tally { admitted: vec![0; case.shape.clients()], ..Tally::default() };
        for worker in &self.0 {
            let line = hear(worker, "done ");
            let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
            let mut next = || numbers.next().unwrap();
            sum.denied += next();
            sum.unavailable += next();
            sum.lost += next();
            sum.admitted.iter_mut().for_each(|admitted| *admitted += next());
        }
        let passed: u64 = sum.admitted.iter().sum();
        let checks = SKEWS.len() * TASKS * case.shape.checks();
        assert_eq!(passed + sum.denied + sum.unavailable, checks as u64, "{case}");
        println!("{case}: {checks} checks, {passed} admitted");
        sum
    }
}

/// The next line of a worker that begins with a word.
fn hear(worker: &Process, word: &str) -> String {
    while let Some(line) = worker.stdout().next() {
        if line.starts_with(word) {
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

/// The wall clock, which is all that a skew changes.
#[allow(clippy::disallowed_methods, reason = "the clock itself is what is looked at")]
fn seconds() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(passed.as_secs()).unwrap()
}

/// Reads the store's URL and then the places of cases from stdin, and works on each when told to go.
pub(crate) fn main() {
    let mut lines = io::stdin().lock().lines().map(Result::unwrap);
    let url = lines.next().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stores = [false, true].map(|memory| {
        Arc::new(runtime.block_on(RedisStore::connect(config(&url, memory))).unwrap())
    });
    println!("\nclock {}", seconds());
    while let Some(place) = lines.next() {
        let case = Case::all().nth(place.parse().unwrap()).unwrap();
        let store = &stores[usize::from(case.memory)];
        let limiter = Limiter::builder().rules(case.rules()).store(Arc::clone(store)).build();
        println!("ready");
        assert_eq!(lines.next().as_deref(), Some("go"));
        let mut tally = runtime.block_on(hammer(&limiter, case));
        tally.lost = store.counts().lost;
        let admitted: Vec<String> = tally.admitted.iter().map(u64::to_string).collect();
        let Tally { denied, unavailable, lost, .. } = tally;
        println!("done {denied} {unavailable} {lost} {}", admitted.join(" "));
    }
}

async fn hammer(limiter: &Limiter<RedisStore>, case: Case) -> Tally {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut rulings = Vec::new();
            for turn in 0..case.shape.checks() {
                // Neighbours are at different clients, and all processes at the same.
                let client = (task * case.shape.checks() + turn) * 37 % case.shape.clients();
                let decision = limiter.check(&case.request(client)).await;
                rulings.push((client, decision.status()));
            }
            rulings
        });
    }
    let mut tally = Tally { admitted: vec![0; case.shape.clients()], ..Tally::default() };
    for (client, ruling) in tasks.join_all().await.into_iter().flatten() {
        match ruling {
            DecisionStatus::Allow => tally.admitted[client] += 1,
            DecisionStatus::Deny => tally.denied += 1,
            DecisionStatus::Unavailable => tally.unavailable += 1,
        }
    }
    tally
}
