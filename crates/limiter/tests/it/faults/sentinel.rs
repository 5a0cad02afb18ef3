//! A master, its replica and sentinels.

use tidegate_testkit::{Redis, Sentinel, Tool, lacking};

use super::scene::{LIMIT, Memory, Scene};

/// Long enough for a test to look around before the master is replaced.
const PATIENT: &str = "600000";
const QUICK: &str = "300";

fn wait_before_replacing(sentinel: &Sentinel, milliseconds: &str) {
    for watcher in sentinel.sentinels() {
        let set = ["SENTINEL", "SET", Sentinel::NAME, "down-after-milliseconds", milliseconds];
        watcher.query::<()>(&set);
    }
}

/// Returns once the replica has all that its master has.
fn replicated(master: &Redis) {
    let mut connection = master.connection().unwrap();
    redis::cmd("SET").arg("seen").arg(1).exec(&mut connection).unwrap();
    let seen: usize = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut connection).unwrap();
    assert_eq!(seen, 1, "the replica follows");
}

async fn is_replaced(fault: &'static str, clock: Option<i64>) {
    let builder = Sentinel::builder();
    let sentinel = match clock {
        Some(offset) => builder.replica_clock(offset),
        None => builder,
    };
    let sentinel = sentinel.start();
    wait_before_replacing(&sentinel, PATIENT);
    let mut scene = Scene::begin(fault, &sentinel.url()).await;
    let full = scene.newcomer("deny");
    let spent = scene.spend(&scene.judge, &full, LIMIT + 1).await;
    replicated(sentinel.master());
    sentinel.kill_master();
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    wait_before_replacing(&sentinel, QUICK);
    scene.service_resumes().await;
    assert_eq!(scene.judge.store().counts().failovers, 1);
    // Neither a clock that went back nor one that is ahead gives a client anything before its time.
    let more = scene.spend(&scene.judge, &full, 5).await;
    assert!(spent.admitted + more.admitted <= LIMIT, "{spent:?} {more:?}");
    let went_back = clock.is_some_and(|offset| offset < 0);
    scene.end(if went_back { Memory::KeptBehind } else { Memory::Kept }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_and_nothing_is_forgotten() {
    is_replaced("sentinel-failover", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_whose_clock_is_ahead_gives_nothing_away() {
    if !lacking(&[Tool::Faketime]) {
        is_replaced("promoted-clock-ahead-5s", Some(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_whose_clock_is_behind_gives_nothing_away() {
    if !lacking(&[Tool::Faketime]) {
        is_replaced("promoted-clock-behind-5s", Some(-5)).await;
    }
}
