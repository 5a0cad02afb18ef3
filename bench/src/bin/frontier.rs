//! How exact and how fast each accuracy is across a fleet: real processes, one real Redis.
//!
//! `make frontier`
//!
//! Each node is a process of its own that is offered checks by the clock, whether or not earlier ones
//! were answered: one hot client over its limit, one below it, many clients with a few busy ones among
//! them, and one hot client most of whose checks come to one node. Admitted is compared with the bound
//! of the algorithm over the time that passed on the server's own clock, client by client; utilisation
//! is what was admitted of what could have been. Round trips are script calls per check.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on has failed")]

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Limiter, RedisConfig, RedisStore, Request, RuleSet};
use tidegate_testkit::{Process, Redis};

const RATE: u64 = 2_000;
const BURST: u64 = 2_000;
const SECONDS: u64 = 4;
const FLEETS: [usize; 2] = [3, 8];
const ACCURACIES: [&str; 2] = ["exact", "leased"];
/// Clients of the crowd, the first the busiest.
const CROWD: u64 = 2_000;
/// What all clients of the crowd ask for together, in a second.
const CROWD_RATE: u64 = 12_000;
/// How often a node looks at the clock.
const TICK: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Traffic {
    Over,
    Under,
    Uneven,
    Crowd,
}

impl Traffic {
    const ALL: [Self; 4] = [Self::Over, Self::Under, Self::Uneven, Self::Crowd];

    fn name(self) -> &'static str {
        match self {
            Self::Over => "one client, twice its limit",
            Self::Under => "one client, 80 % of its limit",
            Self::Uneven => "twice its limit, most at one node",
            Self::Crowd => "2,000 clients, Zipf",
        }
    }

    /// Checks of one node in a second.
    fn offered(self, node: u64, nodes: u64) -> u64 {
        match self {
            Self::Over => 2 * RATE / nodes,
            Self::Under => RATE * 8 / 10 / nodes,
            Self::Uneven if node == 0 => 2 * RATE * 8 / 10,
            Self::Uneven => 2 * RATE * 2 / 10 / (nodes - 1),
            Self::Crowd => CROWD_RATE / nodes,
        }
    }

    /// Who comes with the check of this number.
    fn client(self, random: &mut u64) -> u64 {
        match self {
            Self::Over | Self::Under | Self::Uneven => 0,
            Self::Crowd => {
                // The inverse of a distribution whose n-th client comes 1 / n as often as the first.
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                let part = (*random >> 11) as f64 / (1_u64 << 53) as f64;
                ((CROWD as f64 + 1.0).powf(part) - 1.0) as u64
            }
        }
    }
}

/// What a node has seen.
#[derive(Default)]
struct Seen {
    checks: u64,
    calls: u64,
    /// By client: offered and admitted.
    clients: BTreeMap<u64, (u64, u64)>,
    /// Microseconds of each check.
    times: Vec<u32>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("node") => node(&arguments[2..]),
        _ => table(),
    }
}

fn table() {
    println!(
        "| traffic | nodes | accuracy | admitted / bound | overshoot | utilisation | round trips per check | p50 | p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for traffic in Traffic::ALL {
        for nodes in FLEETS {
            for accuracy in ACCURACIES {
                row(traffic, nodes, accuracy);
            }
        }
    }
}

fn row(traffic: Traffic, nodes: usize, accuracy: &str) {
    let redis = Redis::start();
    let place = Traffic::ALL.iter().position(|other| *other == traffic).unwrap();
    let fleet: Vec<Process> = (0..nodes)
        .map(|index| {
            let mut command = Process::command(std::env::current_exe().unwrap());
            command.args(["node", &redis.url(), accuracy]);
            command.args([place, index, nodes].map(|number| number.to_string()));
            Process::spawn(command)
        })
        .collect();
    for node in &fleet {
        node.stdout().find("ready");
    }
    let began = redis.time_micros();
    fleet.iter().for_each(|node| node.say("go"));
    let mut all = Seen::default();
    for node in &fleet {
        let line = node.stdout().find("seen ");
        let mut words = line.split(' ').skip(1).map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        all.checks += next();
        all.calls += next();
        let (clients, times) = (next(), next());
        for _ in 0..clients {
            let (client, offered, admitted) = (next(), next(), next());
            let entry = all.clients.entry(client).or_default();
            *entry = (entry.0 + offered, entry.1 + admitted);
        }
        all.times.extend((0..times).map(|_| u32::try_from(next()).unwrap_or(u32::MAX)));
    }
    let passed = redis.time_micros() - began;
    let bound = BURST + RATE * passed / 1_000_000 + 1;
    let (mut admitted, mut possible, mut over) = (0, 0, 0);
    for (offered, passed) in all.clients.values() {
        admitted += passed;
        possible += offered.min(&bound);
        over += passed.saturating_sub(bound);
    }
    all.times.sort_unstable();
    let at = |part: f64| all.times[((all.times.len() - 1) as f64 * part) as usize];
    println!(
        "| {} | {nodes} | {accuracy} | {:.3} | {:.2} % | {:.1} % | {:.4} | {} us | {} us |",
        traffic.name(),
        admitted as f64 / possible as f64,
        over as f64 * 100.0 / bound as f64,
        admitted as f64 * 100.0 / possible as f64,
        all.calls as f64 / all.checks as f64,
        at(0.5),
        at(0.99),
    );
}

#[tokio::main(flavor = "current_thread")]
async fn node(arguments: &[String]) {
    let [url, accuracy, traffic, index, nodes] = arguments else { panic!("five arguments") };
    let number = |text: &String| text.parse::<u64>().unwrap();
    let (index, nodes) = (number(index), number(nodes));
    let traffic = Traffic::ALL[usize::try_from(number(traffic)).unwrap()];
    let rules = format!(
        "rules: [{{name: api, per: [user], limit: {RATE} per second, burst: {BURST}, accuracy: {accuracy}, on_store_failure: deny}}]"
    );
    let config: RedisConfig = url.parse().unwrap();
    let store = RedisStore::connect(config.with_timeout(Duration::from_secs(1)).unwrap()).await;
    let store = Arc::new(store.unwrap());
    let rules = RuleSet::parse("frontier", &rules).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::clone(&store)).build();
    // Everybody is there before anybody begins, and everybody knows.
    println!("ready");
    std::io::stdout().flush().unwrap();
    let line = std::io::stdin().lock().lines().next();
    assert_eq!(line.unwrap().unwrap(), "go");
    store.announce().await;
    let before = store.counts();
    let seen = Arc::new(std::sync::Mutex::new(Seen::default()));
    let (start, mut sent, mut random) = (Instant::now(), 0, 0x9e37_79b9 + index);
    let each = traffic.offered(index, nodes);
    let mut tasks = tokio::task::JoinSet::new();
    while start.elapsed() < Duration::from_secs(SECONDS) {
        let due = each * u64::try_from(start.elapsed().as_micros()).unwrap() / 1_000_000;
        while sent < due {
            sent += 1;
            let client = traffic.client(&mut random);
            let (limiter, seen) = (limiter.clone(), Arc::clone(&seen));
            tasks.spawn(async move {
                let user = client.to_string();
                let request = Request::new().with("user", user.as_str()).unwrap();
                let began = Instant::now();
                let allowed = limiter.check(&request).await.is_allowed();
                let took = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
                let mut seen = seen.lock().unwrap();
                seen.checks += 1;
                seen.times.push(took);
                let entry = seen.clients.entry(client).or_default();
                *entry = (entry.0 + 1, entry.1 + u64::from(allowed));
            });
        }
        while tasks.try_join_next().is_some() {}
        tokio::time::sleep(TICK).await;
    }
    while tasks.join_next().await.is_some() {}
    let after = store.counts();
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    // Some of them tell as much as all.
    let step = seen.times.len().div_ceil(2_000).max(1);
    seen.times = seen.times.iter().copied().step_by(step).collect();
    let calls = after.calls + after.ask_calls - before.calls - before.ask_calls;
    let mut line =
        format!("seen {} {calls} {} {}", seen.checks, seen.clients.len(), seen.times.len());
    for (client, (offered, admitted)) in &seen.clients {
        line += &format!(" {client} {offered} {admitted}");
    }
    for time in &seen.times {
        line += &format!(" {time}");
    }
    println!("{line}");
}
