//! The classic case of a stale cache: three nodes, 60 in each second, each offered 90 in it, evenly, and told of
//! each other after 400 ms.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::{Limiter, RedisStore, Request};
use tidegate_testkit::{Process, Redis};

use crate::kept::Kept;
use crate::node::{hear, limiter, say};

const NODES: usize = 3;
const LIMIT: u64 = 60;
const OFFERED: u64 = 90;
/// When all tell each other, in milliseconds of a second.
const SYNCS: [u64; 2] = [400, 800];
const SECONDS: usize = 5;

pub(crate) fn table(wanted: &[Kept]) {
    println!(
        "{NODES} nodes, {LIMIT} in each second, each node offered {OFFERED} in it evenly: admitted in each of {SECONDS} seconds"
    );
    println!();
    println!("| accuracy | admitted |");
    println!("|---|---|");
    let cases = [
        (Kept::Exact, "exact", ""),
        (
            Kept::Synced,
            "synced every 400 ms, unbounded",
            ", accuracy: synced, sync: 400ms, max_ahead: unbounded",
        ),
        (Kept::Leased, "leased", ", accuracy: leased"),
    ];
    for (kept, name, keys) in cases {
        if wanted.contains(&kept) {
            let admitted = case(keys, kept == Kept::Synced).map(|count| count.to_string());
            println!("| {name} | {} |", admitted.join(", "));
        }
    }
}

fn case(keys: &str, syncs: bool) -> [u64; SECONDS] {
    let redis = Redis::start();
    let rules = format!(
        "rules: [{{name: api, per: [user], limit: {LIMIT} per second, algorithm: fixed_window, on_store_failure: deny{keys}}}]"
    );
    let fleet: Vec<Process> = (0..NODES)
        .map(|_| {
            let mut command = Process::command(std::env::current_exe().unwrap());
            command.args(["classic-node", &redis.url(), &rules]);
            Process::spawn(command)
        })
        .collect();
    fleet.iter().for_each(|node| drop(node.stdout().find("ready")));
    let all = |line: &str| {
        fleet.iter().for_each(|node| node.say(line));
        fleet.iter().map(|node| node.stdout().find("done ")).collect::<Vec<_>>()
    };
    std::array::from_fn(|_| {
        let second = now() / 1_000_000 + 1;
        fleet.iter().for_each(|node| node.say(&format!("offer {second}")));
        for millis in SYNCS {
            wait_until(second * 1_000_000 + millis * 1_000);
            if syncs {
                // All tell what they admitted, then all hear what the others did.
                all("sync");
                all("sync");
            }
        }
        let admitted = all("tell")
            .into_iter()
            .map(|line| line.split(' ').next_back().unwrap().parse::<u64>().unwrap());
        admitted.sum()
    })
}

/// Arguments: where Redis is, and the rules.
pub(crate) fn run_node(arguments: &[String]) {
    let [url, rules] = arguments else { panic!("two arguments") };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = limiter(url, rules).await;
        limiter.store().announce().await;
        say("ready");
        let mut offering = None;
        loop {
            let line = tokio::task::spawn_blocking(hear).await.unwrap();
            match line.split_once(' ') {
                Some((_, second)) => {
                    let second = second.parse().unwrap();
                    offering = Some(tokio::spawn(offer(limiter.clone(), second)));
                }
                None if line == "sync" => {
                    limiter.release_all().await;
                    say("done 0");
                }
                None => say(&format!("done {}", offering.take().unwrap().await.unwrap())),
            }
        }
    });
}

/// Offers checks evenly over a second, and tells how many were admitted in it: what is answered when it is
/// over belongs to the next.
async fn offer(limiter: Limiter<RedisStore>, second: u64) -> u64 {
    let (user, end) = (format!("second {second}"), (second + 1) * 1_000_000);
    let mut admitted = 0;
    for number in 0..OFFERED {
        let due = second * 1_000_000 + (2 * number + 1) * 1_000_000 / (2 * OFFERED);
        tokio::time::sleep(Duration::from_micros(due.saturating_sub(now()))).await;
        let request = Request::new().with("user", user.as_str()).unwrap();
        let allowed = limiter.check(&request).await.is_allowed();
        admitted += u64::from(allowed && now() < end);
    }
    admitted
}

fn wait_until(micros: u64) {
    std::thread::sleep(Duration::from_micros(micros.saturating_sub(now())));
}

/// Microseconds since the epoch, as the server on the same machine counts them.
fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}
