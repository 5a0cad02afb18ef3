//! A node process that sends checks at a fixed rate.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate::Request;
use tidegate_bench::fleet::{connect_limiter, print_line, read_line};

use crate::accuracy::FleetAccuracy;
use crate::traffic::Traffic;

/// Interval at which a node sends the checks that are due.
const SEND_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum latency samples that a node reports.
const MAX_LATENCY_SAMPLES: usize = 4_000;

/// Measurements of a node.
#[derive(Default)]
pub(crate) struct NodeStats {
    pub(crate) checks: u64,
    pub(crate) calls: u64,
    /// Sent and admitted checks per client.
    pub(crate) clients: BTreeMap<u64, (u64, u64)>,
    /// Latencies of a sample of the checks, in microseconds.
    pub(crate) latencies_micros: Vec<u32>,
}

impl NodeStats {
    /// Formats the measurements as one line.
    fn write(&self) -> String {
        let Self { checks, calls, clients, latencies_micros } = self;
        let mut line =
            format!("stats {checks} {calls} {} {}", clients.len(), latencies_micros.len());
        for (client, (offered, admitted)) in clients {
            line += &format!(" {client} {offered} {admitted}");
        }
        latencies_micros.iter().for_each(|latency| line += &format!(" {latency}"));
        line
    }

    /// Adds the measurements of a line.
    pub(crate) fn read(&mut self, line: &str) {
        let mut numbers = line.split(' ').skip(1).map(|text| text.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        self.checks += next();
        self.calls += next();
        let (clients, latencies_micros) = (next(), next());
        for _ in 0..clients {
            let (client, offered, admitted) = (next(), next(), next());
            self.add(client, offered, admitted);
        }
        self.latencies_micros
            .extend((0..latencies_micros).map(|_| u32::try_from(next()).unwrap_or(u32::MAX)));
    }

    pub(crate) fn add(&mut self, client: u64, offered: u64, admitted: u64) {
        let entry = self.clients.entry(client).or_default();
        *entry = (entry.0 + offered, entry.1 + admitted);
    }
}

/// Runs a node. Arguments: the Redis URL, the accuracy, the traffic, the index of the node, the number of nodes, and a file
/// for the counts of a process that is killed.
pub(crate) fn run(arguments: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, node(arguments));
}

async fn node(arguments: &[String]) {
    let [url, accuracy, traffic, index, nodes, file] = arguments else { panic!("six arguments") };
    let number = |text: &String| text.parse::<u64>().unwrap();
    let (index, nodes) = (number(index), number(nodes));
    let traffic = Traffic::ALL[usize::try_from(number(traffic)).unwrap()];
    let limiter = connect_limiter(url, &FleetAccuracy::from_name(accuracy).rules(traffic)).await;
    let file = Rc::new(File::create(file).unwrap());
    print_line("ready");
    // Heartbeats continue while the node waits for its parent.
    let seconds: u64 = tokio::task::spawn_blocking(read_line).await.unwrap().parse().unwrap();
    limiter.store().announce().await;
    let before = limiter.store().counts();
    let stats = Rc::new(RefCell::new(NodeStats::default()));
    let (start, mut sent, mut random) = (Instant::now(), 0, 0x9e37_79b9 + index);
    let rate = traffic.offered(index, nodes);
    let mut tasks = tokio::task::JoinSet::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        let due = rate * u64::try_from(start.elapsed().as_micros()).unwrap() / 1_000_000;
        while sent < due {
            sent += 1;
            let client = traffic.client(&mut random);
            let (limiter, stats, file) = (limiter.clone(), Rc::clone(&stats), Rc::clone(&file));
            tasks.spawn_local(async move {
                let user = client.to_string();
                let request = Request::new().with("user", user.as_str()).unwrap();
                let started = Instant::now();
                let allowed = limiter.check(&request).await.is_allowed();
                let elapsed_micros =
                    u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX);
                let mut stats = stats.borrow_mut();
                stats.checks += 1;
                stats.latencies_micros.push(elapsed_micros);
                stats.add(client, 1, u64::from(allowed));
                if traffic == Traffic::Changing {
                    let (offered, admitted) = stats.clients[&client];
                    let counts = [offered.to_le_bytes(), admitted.to_le_bytes()].concat();
                    file.write_all_at(&counts, 0).unwrap();
                }
            });
        }
        while tasks.try_join_next().is_some() {}
        tokio::time::sleep(SEND_INTERVAL).await;
    }
    while tasks.join_next().await.is_some() {}
    let after = limiter.store().counts();
    let mut stats = std::mem::take(&mut *stats.borrow_mut());
    // A sample is enough for the percentiles.
    let step = stats.latencies_micros.len().div_ceil(MAX_LATENCY_SAMPLES).max(1);
    stats.latencies_micros = stats.latencies_micros.iter().copied().step_by(step).collect();
    stats.calls = after.calls + after.ask_calls - before.calls - before.ask_calls;
    print_line(&stats.write());
}

/// Returns the numbers of checks that a killed process sent and had admitted.
pub(crate) fn read_counts_of_killed(file: &std::path::Path) -> (u64, u64) {
    let counts = std::fs::read(file).unwrap();
    let number = |offset: usize| {
        let bytes = counts.get(offset..offset + 8).map(|bytes| bytes.try_into().unwrap());
        bytes.map_or(0, u64::from_le_bytes)
    };
    (number(0), number(8))
}
