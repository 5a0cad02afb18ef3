//! The stale-cache case: three nodes share a limit of 60 per second, each receives 90 evenly spaced checks per second, and
//! nodes exchange their usage after 400 ms.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::redis::RedisStore;
use tidegate::{Limiter, Request};
use tidegate_bench::fleet::{connect_limiter, print_line, read_line};
use tidegate_testkit::{Process, Redis};

use crate::accuracy::FleetAccuracy;

const FLEET_SIZE: usize = 3;
const LIMIT: u64 = 60;
const CHECKS_PER_NODE: u64 = 90;
/// Instants of the syncs within a second, in milliseconds.
const SYNC_MILLIS: [u64; 2] = [400, 800];
const MEASURED_SECONDS: usize = 5;

pub(crate) fn print_table(selected: &[FleetAccuracy]) {
    println!(
        "{FLEET_SIZE} nodes, {LIMIT} in each second, each node receives {CHECKS_PER_NODE} evenly: admitted in each of {MEASURED_SECONDS} seconds"
    );
    println!();
    println!("| accuracy | admitted |");
    println!("|---|---|");
    let cases = [
        (FleetAccuracy::Exact, "exact", ""),
        (
            FleetAccuracy::Synced,
            "synced every 400 ms, unbounded",
            ", accuracy: synced, sync: 400ms, max_ahead: unbounded",
        ),
        (FleetAccuracy::Leased, "leased", ", accuracy: leased"),
    ];
    for (accuracy, name, keys) in cases {
        if selected.contains(&accuracy) {
            let admitted = measure_case(keys, accuracy == FleetAccuracy::Synced)
                .map(|count| count.to_string());
            println!("| {name} | {} |", admitted.join(", "));
        }
    }
}

fn measure_case(keys: &str, syncs: bool) -> [u64; MEASURED_SECONDS] {
    let redis = Redis::start();
    let rules = format!(
        "rules: [{{name: api, per: [user], limit: {LIMIT} per second, algorithm: fixed_window, on_store_failure: deny{keys}}}]"
    );
    let fleet: Vec<Process> = (0..FLEET_SIZE)
        .map(|_| {
            let mut command = Process::command(std::env::current_exe().unwrap());
            command.args(["classic-node", &redis.url(), &rules]);
            Process::spawn(command)
        })
        .collect();
    fleet.iter().for_each(|node| drop(node.stdout().find("ready")));
    let send_to_all = |line: &str| {
        fleet.iter().for_each(|node| node.say(line));
        fleet.iter().map(|node| node.stdout().find("done ")).collect::<Vec<_>>()
    };
    std::array::from_fn(|_| {
        let second = now() / 1_000_000 + 1;
        fleet.iter().for_each(|node| node.say(&format!("offer {second}")));
        for millis in SYNC_MILLIS {
            wait_until(second * 1_000_000 + millis * 1_000);
            if syncs {
                // The first sync reports the usage of all nodes, the second one receives that of the others.
                send_to_all("sync");
                send_to_all("sync");
            }
        }
        let admitted = send_to_all("report")
            .into_iter()
            .map(|line| line.split(' ').next_back().unwrap().parse::<u64>().unwrap());
        admitted.sum()
    })
}

/// Runs a node. Arguments: the Redis URL and the rules.
pub(crate) fn run_node(arguments: &[String]) {
    let [url, rules] = arguments else { panic!("two arguments") };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = connect_limiter(url, rules).await;
        limiter.store().announce().await;
        print_line("ready");
        let mut sending = None;
        loop {
            let line = tokio::task::spawn_blocking(read_line).await.unwrap();
            match line.split_once(' ') {
                Some((_, second)) => {
                    let second = second.parse().unwrap();
                    sending = Some(tokio::spawn(send_checks(limiter.clone(), second)));
                }
                None if line == "sync" => {
                    limiter.release_all().await;
                    print_line("done 0");
                }
                None => print_line(&format!("done {}", sending.take().unwrap().await.unwrap())),
            }
        }
    });
}

/// Sends checks evenly over a second. Returns the number admitted within it: a decision after its end belongs to the next
/// second.
async fn send_checks(limiter: Limiter<RedisStore>, second: u64) -> u64 {
    let (user, end) = (format!("second {second}"), (second + 1) * 1_000_000);
    let mut admitted = 0;
    for number in 0..CHECKS_PER_NODE {
        let due = second * 1_000_000 + (2 * number + 1) * 1_000_000 / (2 * CHECKS_PER_NODE);
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

/// Returns microseconds since the epoch. The server on the same machine uses the same clock.
fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}
