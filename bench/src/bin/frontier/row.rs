//! One row of the table: a fleet under one traffic pattern.

use std::path::PathBuf;
use std::time::Duration;

use tidegate_testkit::{Process, Redis};

use crate::accuracy::FleetAccuracy;
use crate::node::{self, NodeStats};
use crate::traffic::Traffic;

/// A node process, and the file that holds its counts in case it is killed.
struct NodeProcess {
    process: Process,
    counts_file: PathBuf,
}

fn start(
    redis: &Redis,
    accuracy: FleetAccuracy,
    traffic: Traffic,
    index: u64,
    nodes: u64,
) -> NodeProcess {
    let traffic_index = Traffic::ALL.iter().position(|other| *other == traffic).unwrap();
    let counts_file = redis.folder().join(format!("node-{index}"));
    let mut command = Process::command(std::env::current_exe().unwrap());
    command.args(["node", &redis.url(), accuracy.name(), &traffic_index.to_string()]);
    command.args([index, nodes].map(|number| number.to_string())).arg(&counts_file);
    NodeProcess { process: Process::spawn(command), counts_file }
}

pub(crate) fn measure_row(traffic: Traffic, nodes: u64, accuracy: FleetAccuracy) -> [String; 9] {
    let redis = Redis::start();
    let mut fleet: Vec<NodeProcess> =
        (0..nodes).map(|index| start(&redis, accuracy, traffic, index, nodes)).collect();
    for node_process in &fleet {
        node_process.process.stdout().find("ready");
    }
    if accuracy == FleetAccuracy::Split {
        // A node of a split limit starts without a share. Wait until all nodes have theirs.
        std::thread::sleep(Duration::from_secs(7));
    }
    let seconds = traffic.seconds();
    std::thread::sleep(Duration::from_micros(traffic.wait(redis.time_micros())));
    let started_at = redis.time_micros();
    fleet.iter().for_each(|node_process| node_process.process.say(&seconds.to_string()));
    let mut stats = NodeStats::default();
    if traffic == Traffic::Changing {
        let third = seconds / 3;
        std::thread::sleep(Duration::from_secs(third));
        // A node joins, and receives as many checks as each of the others.
        let joined = start(&redis, accuracy, traffic, nodes, nodes);
        joined.process.stdout().find("ready");
        joined.process.say(&(seconds - third).to_string());
        std::thread::sleep(Duration::from_secs(third));
        let killed = fleet.remove(0);
        killed.process.kill();
        let (offered, admitted) = node::read_counts_of_killed(&killed.counts_file);
        stats.add(0, offered, admitted);
        fleet.push(joined);
    }
    for node_process in &fleet {
        stats.read(&node_process.process.stdout().find("stats "));
    }
    let bound = traffic.bound(started_at, redis.time_micros());
    let stated_bound =
        bound + accuracy.allowance(traffic, nodes + u64::from(traffic == Traffic::Changing));
    let (mut admitted, mut admissible, mut max_overshoot, mut worst_ratio) = (0, 0, 0, 0.0_f64);
    for (offered, admitted_by_client) in stats.clients.values() {
        admitted += admitted_by_client.min(&bound);
        admissible += offered.min(&bound);
        max_overshoot = max_overshoot.max(admitted_by_client.saturating_sub(bound));
        worst_ratio = worst_ratio.max(*admitted_by_client as f64 / stated_bound as f64);
    }
    stats.latencies_micros.sort_unstable();
    let percentile = |part: f64| {
        stats.latencies_micros[((stats.latencies_micros.len() - 1) as f64 * part) as usize]
    };
    [
        traffic.name().to_owned(),
        nodes.to_string(),
        accuracy.name().to_owned(),
        format!("{worst_ratio:.3}"),
        format!("{:.2} %", max_overshoot as f64 * 100.0 / bound as f64),
        format!("{:.1} %", admitted as f64 * 100.0 / admissible as f64),
        format!("{:.4}", stats.calls as f64 / stats.checks as f64),
        percentile(0.5).to_string(),
        percentile(0.99).to_string(),
    ]
}
