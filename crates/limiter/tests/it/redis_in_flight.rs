//! Slots in flight that several nodes share: taken, renewed, released, and lost by who dies.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Held, Limiter, RedisConfig, RedisStore, Request, RuleSet};
use tidegate_testkit::{Flavour, PATIENCE, Process, Redis, Tool, lacking, poll};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];

async fn limiter(url: &str, limit: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let config = config.with_timeout(PATIENCE).unwrap();
    let store = Arc::new(RedisStore::connect(config).await.unwrap());
    let rules = format!("rules: [{{name: exports, per: [user], limit: {limit}}}]");
    Limiter::builder().rules(RuleSet::parse("rules.yaml", &rules).unwrap()).store(store).build()
}

fn alice() -> Request<'static> {
    Request::new().with("user", "alice").unwrap()
}

/// How many are free.
async fn free(limiter: &Limiter<RedisStore>) -> u64 {
    limiter.peek(&alice()).await.policies()[0].outcome.remaining
}

/// Takes a slot if there is one, and lets it go in one of several ways.
async fn come_and_go(limiter: Limiter<RedisStore>, in_flight: Arc<AtomicU64>, turn: usize) {
    struct Present<'c>(&'c AtomicU64);
    impl Drop for Present<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let (decision, held) = limiter.hold(&alice()).await;
    if !decision.is_allowed() {
        assert!(held.is_empty());
        return;
    }
    assert!(in_flight.fetch_add(1, Ordering::SeqCst) < 5, "more than five are in flight");
    let present = Present(&in_flight);
    for _ in 0..turn % 7 {
        tokio::task::yield_now().await;
    }
    // Gone before its slot is: who comes next may be here before we are.
    drop(present);
    match turn % 3 {
        0 => drop(held),
        1 => assert_eq!(held.release().await, Ok(1)),
        _ => panic!("a handler that panics"),
    }
}

#[test]
fn each_way_that_requests_end_nobody_is_in_flight_afterwards() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        // So long that nothing is lost by itself while this test runs.
        let limit = "5 in flight, hold: 1h";
        let nodes = [limiter(&server.url(), limit).await, limiter(&server.url(), limit).await];
        let (in_flight, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for turn in 0..900 {
            let node = nodes[turn % 2].clone();
            let task = tasks.spawn(come_and_go(node, Arc::clone(&in_flight), turn));
            if turn % 4 == 0 {
                // Given up at some point: before it asked, while the answer is on its way, or after.
                for _ in 0..turn % 11 {
                    tokio::task::yield_now().await;
                }
                task.abort();
            }
            if turn % 16 == 0 {
                while tasks.len() > 12 {
                    let _ = tasks.join_next().await;
                }
            }
        }
        while let Some(ended) = tasks.join_next().await {
            let expected = |error: &tokio::task::JoinError| {
                let said = || error.to_string().contains("a handler that panics");
                error.is_cancelled() || said()
            };
            assert!(ended.as_ref().err().is_none_or(expected), "{ended:?}");
        }
        let all_free = async || free(&nodes[0]).await == 5;
        let deadline = tokio::time::timeout(PATIENCE, async {
            while !all_free().await {
                tokio::task::yield_now().await;
            }
        });
        deadline.await.expect("slots of requests that are over are still held");
    });
}

#[test]
fn a_slot_that_is_given_to_who_is_gone_is_free_again() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    let limiter = runtime.block_on(limiter(&server.url(), "5 in flight, hold: 1h"));
    let calls = || limiter.store().counts().calls;
    for hangs_up in [true, false] {
        server.pause();
        let (before, asking) = (calls(), limiter.clone());
        let task = runtime.spawn(async move { asking.hold(&alice()).await });
        assert!(poll(|| (calls() > before).then_some(())).is_some(), "nobody asked");
        if hangs_up {
            task.abort();
            assert!(runtime.block_on(task).unwrap_err().is_cancelled());
            server.resume();
        } else {
            server.resume();
            let (decision, held) = runtime.block_on(task).unwrap();
            assert!(decision.is_allowed() && !held.is_empty());
            assert_eq!(runtime.block_on(free(&limiter)), 4, "who is there keeps what it got");
        }
        let all_free = poll(|| (runtime.block_on(free(&limiter)) == 5).then_some(()));
        assert!(all_free.is_some(), "a slot that nobody has is held");
    }
}

/// A process that takes as many slots as it can get, up to four.
struct Worker(Process);

impl Worker {
    fn start(url: &str) -> Self {
        let mut command = Process::command(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "redis_in_flight::worker"]);
        let worker = Self(Process::spawn(command));
        worker.0.say(url);
        worker
    }

    fn hear(&self, word: &str) -> u64 {
        while let Some(line) = self.0.stdout().next() {
            if let Some(number) = line.strip_prefix(word) {
                return number.trim().parse().unwrap();
            }
        }
        panic!("a worker ended:\n{}", self.0.log_tail())
    }
}

#[test]
fn a_process_that_dies_loses_its_slots_and_one_that_lives_keeps_them() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let workers = [(); 3].map(|()| Worker::start(&server.url()));
    let [one, two, three] = &workers;
    let got = [one.hear("got "), two.hear("got "), three.hear("got ")];
    assert_eq!(got.iter().sum::<u64>(), 10, "{got:?} of ten");
    let runtime = Runtime::new().unwrap();
    let limiter = runtime.block_on(limiter(&server.url(), "10 in flight, hold: 5s"));
    let free = || runtime.block_on(free(&limiter));
    assert_eq!(free(), 0);
    let [one, two, three] = workers;
    one.0.say("release");
    assert_eq!(one.hear("released "), got[0]);
    assert_eq!(free(), got[0]);
    // It ends without a word, and nobody renews what it held.
    drop(two);
    assert!(poll(|| (free() == got[0] + got[1]).then_some(())).is_some(), "{} are free", free());
    three.0.say("release");
    assert_eq!(three.hear("released "), got[2], "it has renewed what it held all the time");
    assert_eq!(free(), 10);
}

#[test]
#[ignore = "the worker that another test starts"]
fn worker() {
    let mut lines = io::stdin().lock().lines().map(Result::unwrap);
    let url = lines.next().unwrap();
    let runtime = Runtime::new().unwrap();
    let mut held: Vec<Held<RedisStore>> = Vec::new();
    runtime.block_on(async {
        let limiter = limiter(&url, "10 in flight, hold: 5s").await;
        for _ in 0..4 {
            let (decision, slot) = limiter.hold(&alice()).await;
            held.extend(decision.is_allowed().then_some(slot));
        }
    });
    println!("\ngot {}", held.len());
    assert_eq!(lines.next().as_deref(), Some("release"));
    let released = runtime.block_on(async {
        let mut released = 0;
        for slot in held {
            released += slot.release().await.unwrap();
        }
        released
    });
    println!("\nreleased {released}");
    let _ = lines.next();
}
