//! One row of the table: a fleet under one traffic.

use std::path::PathBuf;
use std::time::Duration;

use tidegate_testkit::{Process, Redis};

use crate::kept::Kept;
use crate::node::{self, Seen};
use crate::traffic::Traffic;

/// A node, and where it counts for the case that it is killed.
struct Member {
    process: Process,
    file: PathBuf,
}

fn start(redis: &Redis, kept: Kept, traffic: Traffic, index: u64, nodes: u64) -> Member {
    let place = Traffic::ALL.iter().position(|other| *other == traffic).unwrap();
    let file = redis.folder().join(format!("node-{index}"));
    let mut command = Process::command(std::env::current_exe().unwrap());
    command.args(["node", &redis.url(), kept.name(), &place.to_string()]);
    command.args([index, nodes].map(|number| number.to_string())).arg(&file);
    Member { process: Process::spawn(command), file }
}

pub(crate) fn row(traffic: Traffic, nodes: u64, kept: Kept) -> String {
    let redis = Redis::start();
    let mut fleet: Vec<Member> =
        (0..nodes).map(|index| start(&redis, kept, traffic, index, nodes)).collect();
    for member in &fleet {
        member.process.stdout().find("ready");
    }
    if kept == Kept::Split {
        // A node of a split limit begins empty: until all have what is theirs.
        std::thread::sleep(Duration::from_secs(7));
    }
    let seconds = traffic.seconds();
    std::thread::sleep(Duration::from_micros(traffic.wait(redis.time_micros())));
    let began = redis.time_micros();
    fleet.iter().for_each(|member| member.process.say(&seconds.to_string()));
    let mut all = Seen::default();
    if traffic == Traffic::Changing {
        let third = seconds / 3;
        std::thread::sleep(Duration::from_secs(third));
        // One joins, and is offered as much as each of the others.
        let joined = start(&redis, kept, traffic, nodes, nodes);
        joined.process.stdout().find("ready");
        joined.process.say(&(seconds - third).to_string());
        std::thread::sleep(Duration::from_secs(third));
        let killed = fleet.remove(0);
        killed.process.kill();
        let (offered, admitted) = node::killed(&killed.file);
        all.add(0, offered, admitted);
        fleet.push(joined);
    }
    for member in &fleet {
        all.read(&member.process.stdout().find("seen "));
    }
    let bound = traffic.bound(began, redis.time_micros());
    let stated = bound + kept.allowance(traffic, nodes + u64::from(traffic == Traffic::Changing));
    let (mut admitted, mut possible, mut over, mut worst) = (0, 0, 0, 0.0_f64);
    for (offered, passed) in all.clients.values() {
        admitted += passed.min(&bound);
        possible += offered.min(&bound);
        over = over.max(passed.saturating_sub(bound));
        worst = worst.max(*passed as f64 / stated as f64);
    }
    all.times.sort_unstable();
    let at = |part: f64| all.times[((all.times.len() - 1) as f64 * part) as usize];
    format!(
        "| {} | {nodes} | {} | {worst:.3} | {:.2} % | {:.1} % | {:.4} | {} us | {} us |",
        traffic.name(),
        kept.name(),
        over as f64 * 100.0 / bound as f64,
        admitted as f64 * 100.0 / possible as f64,
        all.calls as f64 / all.checks as f64,
        at(0.5),
        at(0.99),
    )
}
