//! Concurrency slots shared by several nodes: acquired, renewed, released, and expired after a crash.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{Limiter, Request, RuleSet, SlotGuard};
use tidegate_testkit::{Flavour, Process, Redis, Tool, WAIT_TIMEOUT, lacking, poll};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

async fn limiter(url: &str, limit: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let config = config
        .with_timeout(WAIT_TIMEOUT)
        .unwrap()
        .with_connect_timeout(crate::CONNECT_TIMEOUT)
        .unwrap();
    let store = Arc::new(RedisStore::connect(config).await.unwrap());
    let rules = format!("rules: [{{name: exports, per: [user], limit: {limit}}}]");
    Limiter::builder().rules(RuleSet::parse("rules.yaml", &rules).unwrap()).store(store).build()
}

fn alice() -> Request<'static> {
    Request::new().with("user", "alice").unwrap()
}

/// Returns the number of free slots.
async fn free_slots(limiter: &Limiter<RedisStore>) -> u64 {
    limiter.peek(&alice()).await.rule_outcomes()[0].outcome.remaining
}

/// Acquires a slot if one is free, and ends in one of three ways: drop, release or panic.
async fn hold_slot_briefly(limiter: Limiter<RedisStore>, in_flight: Arc<AtomicU64>, number: usize) {
    struct InFlightCount<'c>(&'c AtomicU64);
    impl Drop for InFlightCount<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let (decision, held) = limiter.acquire_slots(&alice()).await;
    if !decision.is_allowed() {
        assert!(held.is_empty());
        return;
    }
    assert!(in_flight.fetch_add(1, Ordering::SeqCst) < 5, "more than five are in flight");
    let counted = InFlightCount(&in_flight);
    for _ in 0..number % 7 {
        tokio::task::yield_now().await;
    }
    // Leave the count before releasing the slot, since the next request may start immediately.
    drop(counted);
    match number % 3 {
        0 => drop(held),
        1 => assert_eq!(held.release().await, Ok(1)),
        _ => panic!("a handler that panics"),
    }
}

#[test]
fn no_slot_is_held_after_requests_end_in_any_way() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        // The hold outlasts the test, so that no slot expires.
        let limit = "5 in flight, hold: 1h";
        let nodes = [limiter(&server.url(), limit).await, limiter(&server.url(), limit).await];
        let (in_flight, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for number in 0..900 {
            let node = nodes[number % 2].clone();
            let task = tasks.spawn(hold_slot_briefly(node, Arc::clone(&in_flight), number));
            if number % 4 == 0 {
                // Abort before the request is sent, while it is in flight, or after the reply.
                for _ in 0..number % 11 {
                    tokio::task::yield_now().await;
                }
                task.abort();
            }
            if number % 16 == 0 {
                while tasks.len() > 12 {
                    let _ = tasks.join_next().await;
                }
            }
        }
        while let Some(ended) = tasks.join_next().await {
            let expected = |error: &tokio::task::JoinError| {
                let is_expected_panic = || error.to_string().contains("a handler that panics");
                error.is_cancelled() || is_expected_panic()
            };
            assert!(ended.as_ref().err().is_none_or(expected), "{ended:?}");
        }
        let all_free = async || free_slots(&nodes[0]).await == 5;
        let deadline = tokio::time::timeout(WAIT_TIMEOUT, async {
            while !all_free().await {
                tokio::task::yield_now().await;
            }
        });
        deadline.await.expect("slots of finished requests are still held");
    });
}

#[test]
fn slot_granted_to_an_aborted_request_is_released() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    let limiter = runtime.block_on(limiter(&server.url(), "5 in flight, hold: 1h"));
    let calls = || limiter.store().counts().calls;
    for aborts in [true, false] {
        server.pause();
        let (before, requester) = (calls(), limiter.clone());
        let task = runtime.spawn(async move { requester.acquire_slots(&alice()).await });
        assert!(poll(|| (calls() > before).then_some(())).is_some(), "no call was sent");
        if aborts {
            task.abort();
            assert!(runtime.block_on(task).unwrap_err().is_cancelled());
            server.resume();
        } else {
            server.resume();
            let (decision, held) = runtime.block_on(task).unwrap();
            assert!(decision.is_allowed() && !held.is_empty());
            assert_eq!(
                runtime.block_on(free_slots(&limiter)),
                4,
                "a request that is still running keeps its slot"
            );
        }
        let all_free = poll(|| (runtime.block_on(free_slots(&limiter)) == 5).then_some(()));
        assert!(all_free.is_some(), "the slot of an aborted request is still held");
    }
}

/// Returns a limiter with a short store timeout that denies when the store fails.
async fn strict_limiter(url: &str, limit: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let config = config.with_timeout(Duration::from_millis(500)).unwrap();
    let store = Arc::new(RedisStore::start(config).await.unwrap());
    let rule = format!("name: exports, per: [user], limit: {limit}, on_store_failure: deny");
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{{{rule}}}]")).unwrap();
    Limiter::builder().rules(rules).store(store).build()
}

/// Returns the number of free slots, from the first outcome that the store computes.
async fn free_by_store(limiter: &Limiter<RedisStore>) -> u64 {
    let answered = async {
        loop {
            if let Some(policy) = limiter.peek(&alice()).await.rule_outcomes().first() {
                return policy.outcome.remaining;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, answered).await.expect("the store replies")
}

/// Acquires slots until `total` are held.
async fn fill(limiter: &Limiter<RedisStore>, held: &mut Vec<SlotGuard<RedisStore>>, total: usize) {
    let filled = async {
        while held.len() < total {
            let (decision, slot) = limiter.acquire_slots(&alice()).await;
            held.extend(decision.is_allowed().then_some(slot));
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, filled).await.expect("there are free slots");
}

/// Sends `requests` requests, and returns the number of admitted ones.
async fn admitted(limiter: &Limiter<RedisStore>, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(limiter.acquire_slots(&alice()).await.0.is_allowed());
    }
    admitted
}

#[test]
fn guards_are_counted_from_the_first_reply_of_a_server_restarted_without_data() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        // The first regular renewal is due after the test ends. 300 slots need more than one call.
        let limit = "300 in flight, hold: 1h";
        let nodes = [
            strict_limiter(&server.url(), limit).await,
            strict_limiter(&server.url(), limit).await,
        ];
        let mut held = [Vec::new(), Vec::new()];
        fill(&nodes[0], &mut held[0], 200).await;
        fill(&nodes[1], &mut held[1], 100).await;
        for restart in 1..=3 {
            server.restart();
            for node in &nodes {
                free_by_store(node).await;
            }
            for node in &nodes {
                assert_eq!(free_by_store(node).await, 0, "restart {restart}");
                assert_eq!(admitted(node, 5).await, 0, "restart {restart}");
            }
        }
        let [one, other] = held;
        for slot in one {
            assert_eq!(slot.release().await, Ok(1));
        }
        assert_eq!(free_by_store(&nodes[0]).await, 200);
        // Guards dropped while the server is down leave no slot behind.
        server.kill();
        drop(other);
        server.restart();
        for node in &nodes {
            assert_eq!(free_by_store(node).await, 300);
        }
    });
}

#[test]
fn node_acquires_no_slot_before_its_guards_are_counted_again() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter = strict_limiter(&server.url(), "3 in flight, hold: 1h").await;
        let mut held = Vec::new();
        fill(&limiter, &mut held, 3).await;
        for _ in 0..3 {
            // Requests arrive without a pause while the server restarts.
            let requester = limiter.clone();
            let requester = tokio::spawn(async move {
                let mut denied_by_store = 0;
                while denied_by_store < 20 {
                    let (decision, _) = requester.acquire_slots(&alice()).await;
                    assert!(!decision.is_allowed(), "admitted although three slots are in use");
                    denied_by_store += decision.rule_outcomes().len();
                    tokio::task::yield_now().await;
                }
            });
            tokio::task::block_in_place(|| server.restart());
            requester.await.unwrap();
        }
        assert_eq!(free_by_store(&limiter).await, 0);
    });
}

#[test]
fn guards_are_counted_again_after_an_outage_longer_than_their_hold() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let limit = "3 in flight, hold: 2s";
        let nodes = [
            strict_limiter(&server.url(), limit).await,
            strict_limiter(&server.url(), limit).await,
        ];
        let mut held = [Vec::new(), Vec::new()];
        fill(&nodes[0], &mut held[0], 2).await;
        fill(&nodes[1], &mut held[1], 1).await;
        for outage in 1..=2 {
            server.pause();
            let began = Instant::now();
            // Renewals and requests fail during the outage.
            while began.elapsed() < Duration::from_secs(3) {
                assert_eq!(admitted(&nodes[0], 1).await + admitted(&nodes[1], 1).await, 0);
                tokio::task::yield_now().await;
            }
            server.resume();
            for node in &nodes {
                free_by_store(node).await;
            }
            for node in &nodes {
                assert_eq!(free_by_store(node).await, 0, "outage {outage}");
                assert_eq!(admitted(node, 5).await, 0, "outage {outage}");
            }
        }
        drop(held);
        let all_free = async {
            while free_by_store(&nodes[0]).await < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, all_free).await.expect("released slots are free");
    });
}

#[test]
fn guards_are_counted_again_on_the_restarted_shard() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let servers = [Redis::start(), Redis::start()];
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let urls: Vec<String> = servers.iter().map(Redis::url).collect();
        let store = {
            let shards = urls.iter().map(|url| url.parse::<RedisConfig>().unwrap());
            let config = RedisConfig::shards(shards).unwrap();
            Arc::new(crate::connect(config.with_timeout(Duration::from_millis(500)).unwrap()).await)
        };
        let rules = "rules: [{name: exports, per: [user], limit: 1 in flight, hold: 1h, on_store_failure: deny}]";
        let rules = RuleSet::parse("rules.yaml", rules).unwrap();
        let limiter = Limiter::builder().rules(rules).store(store).build();
        let users: Vec<String> = (0..40).map(|number| format!("user-{number}")).collect();
        let request = |user: &str| Request::new().with("user", user.to_owned()).unwrap();
        let mut held = Vec::new();
        for user in &users {
            let (decision, slot) = limiter.acquire_slots(&request(user)).await;
            assert!(decision.is_allowed());
            held.push(slot);
        }
        for server in &servers {
            let before: usize = server.query(&["DBSIZE"]);
            server.restart();
            for user in &users {
                let answered = async {
                    while limiter.peek(&request(user)).await.rule_outcomes().is_empty() {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::time::timeout(WAIT_TIMEOUT, answered).await.expect("the store replies");
                assert!(!limiter.acquire_slots(&request(user)).await.0.is_allowed(), "{user}");
            }
            // The node restores only slots of this server; a slot on the other one would never be counted.
            let slots = |keys: Vec<String>| keys.len();
            assert!(slots(server.query(&["KEYS", "*"])) <= before);
        }
    });
}

#[test]
fn renewal_after_a_release_restores_no_slot() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let limit = "3 in flight, hold: 1s";
        let (one, other) =
            (limiter(&server.url(), limit).await, limiter(&server.url(), limit).await);
        let take = async || {
            let (decision, receipt) = one.check_with_receipt(&alice()).await;
            assert!(decision.is_allowed());
            receipt
        };
        let [in_time, late, lost] = [take().await, take().await, take().await];
        assert_eq!(one.release(in_time.clone()).await, Ok(1));
        assert_eq!(other.renew(&in_time).await, Ok(0), "released in time");
        let expired = async {
            while free_slots(&one).await < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, expired).await.expect("the holds end");
        assert_eq!(one.release(late.clone()).await, Ok(0), "it has expired");
        assert_eq!(other.renew(&late).await, Ok(0), "released after it had expired");
        assert_eq!(free_slots(&one).await, 3);
        tokio::task::block_in_place(|| server.restart());
        for node in [&one, &other] {
            free_by_store(node).await;
        }
        assert_eq!(one.release(lost.clone()).await, Ok(0), "the server has lost it");
        assert_eq!(other.renew(&lost).await, Ok(0), "released after it was lost");
        assert_eq!(free_slots(&one).await, 3);
    });
}

/// A process that acquires up to four slots.
struct Worker(Process);

impl Worker {
    fn start(url: &str) -> Self {
        let mut command = Process::command(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "redis_in_flight::worker"]);
        let worker = Self(Process::spawn(command));
        worker.0.say(url);
        worker
    }

    fn next_number(&self, prefix: &str) -> u64 {
        while let Some(line) = self.0.stdout().next() {
            if let Some(number) = line.strip_prefix(prefix) {
                return number.trim().parse().unwrap();
            }
        }
        panic!("a worker ended:\n{}", self.0.log_tail())
    }
}

#[test]
fn slots_of_a_killed_process_expire_and_a_running_process_keeps_its_own() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let workers = [(); 3].map(|()| Worker::start(&server.url()));
    let [one, two, three] = &workers;
    let acquired = [one.next_number("got "), two.next_number("got "), three.next_number("got ")];
    assert_eq!(acquired.iter().sum::<u64>(), 10, "{acquired:?} of ten");
    let runtime = Runtime::new().unwrap();
    let limiter = runtime.block_on(limiter(&server.url(), "10 in flight, hold: 5s"));
    let free_slots = || runtime.block_on(free_slots(&limiter));
    assert_eq!(free_slots(), 0);
    let [one, two, three] = workers;
    one.0.say("release");
    assert_eq!(one.next_number("released "), acquired[0]);
    assert_eq!(free_slots(), acquired[0]);
    // The process is killed, so its slots are no longer renewed.
    drop(two);
    assert!(
        poll(|| (free_slots() == acquired[0] + acquired[1]).then_some(())).is_some(),
        "{} are free",
        free_slots()
    );
    three.0.say("release");
    assert_eq!(
        three.next_number("released "),
        acquired[2],
        "it has renewed its slots all the time"
    );
    assert_eq!(free_slots(), 10);
}

#[test]
#[ignore = "worker process, started by another test"]
fn worker() {
    let mut lines = io::stdin().lock().lines().map(Result::unwrap);
    let url = lines.next().unwrap();
    let runtime = Runtime::new().unwrap();
    let mut held: Vec<SlotGuard<RedisStore>> = Vec::new();
    runtime.block_on(async {
        let limiter = limiter(&url, "10 in flight, hold: 5s").await;
        for _ in 0..4 {
            let (decision, slot) = limiter.acquire_slots(&alice()).await;
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
