//! One table: contenders under the same load.

use tidegate_bench::chart::BarChart;
use tidegate_bench::measure::progress;
use tidegate_bench::results::record_goal;
use tidegate_bench::server::BenchServer;
use tidegate_bench::table::{Spread, Table};

use crate::load::{ListenerLoad, LoadResult};

/// Rate before the first run of a contender.
const FIRST_RATE: f64 = 20_000.0;

/// One line of a table. Without a server, its program is not installed.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) server: Option<BenchServer>,
    pub(crate) load: ListenerLoad,
}

/// A table, and the goals of its rows.
pub(crate) struct ListenerTable {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The server has one core and the load the other.
    pub(crate) is_pinned: bool,
    pub(crate) contenders: fn() -> Vec<Contender>,
    pub(crate) goals: &'static [ListenerGoal],
}

/// A goal of one contender.
pub(crate) struct ListenerGoal {
    pub(crate) contender: &'static str,
    pub(crate) kind: GoalKind,
}

pub(crate) enum GoalKind {
    /// At least this many times the rate of another contender.
    Rate { base: &'static str, factor: f64 },
    /// At most this part of the CPU time per check of another contender.
    CpuPart { base: &'static str, part: f64 },
    /// At most this CPU time per check.
    CpuMicros(f64),
    /// At least this many checks per second.
    ChecksPerSecond(f64),
}

/// The runs of one contender.
struct ContenderRuns {
    name: &'static str,
    runs: Vec<LoadResult>,
}

impl ContenderRuns {
    fn rates(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.rate).collect()
    }

    fn cpu_micros(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.cpu_micros).collect()
    }
}

pub(crate) fn print_table(listener: &ListenerTable, quick: bool) {
    let (rounds, seconds) = if quick { (3, 1) } else { (9, 2) };
    let core = if listener.is_pinned { ListenerLoad::PINNED } else { None };
    let contenders: Vec<Contender> =
        (listener.contenders)().into_iter().filter(|it| !it.is_earlier_build_missing()).collect();
    let mut results: Vec<ContenderRuns> =
        contenders.iter().map(|it| ContenderRuns { name: it.name, runs: Vec::new() }).collect();
    let mut expected = vec![FIRST_RATE; contenders.len()];
    for round in 0..=rounds {
        for ((contender, results), expected) in
            contenders.iter().zip(&mut results).zip(&mut expected)
        {
            let Some(server) = &contender.server else { continue };
            progress(&format!("{}: round {round} of {rounds}, {}", listener.name, contender.name));
            // The first round is not measured: caches are filled and tables grow.
            let seconds = if round == 0 { 1 } else { seconds };
            let run = contender.load.run(server, core, seconds, *expected);
            *expected = run.rate;
            if round > 0 {
                results.runs.push(run);
            }
        }
    }
    progress("");
    let place = if listener.is_pinned {
        "Server pinned to one core, load to the other."
    } else {
        "Nothing is pinned: server, Redis and load share all cores."
    };
    print_results(
        listener,
        &results,
        &format!("{place} {rounds} rounds of about {seconds} s: median (min to max)."),
    );
    listener.goals.iter().for_each(|goal| record(listener, goal, &results));
}

fn print_results(listener: &ListenerTable, results: &[ContenderRuns], caption: &str) {
    let mut columns =
        vec!["", "checks/s", "ratio to the first, by round", "server CPU us per check"];
    let with_redis = results.iter().any(|it| it.runs.iter().any(|run| run.redis_cpu_micros > 0.0));
    if with_redis {
        columns.push("Redis CPU us per check");
    }
    let mut table = Table::new(&format!("listeners_{}", listener.name), caption, columns);
    let mut chart = BarChart::new(listener.title, "checks per second, more is better");
    for result in results {
        if result.runs.is_empty() {
            table.add_row([result.name, "not installed"]);
            continue;
        }
        let rate = Spread::from_values(result.rates());
        chart.add_bar(result.name, rate);
        let redis = Spread::from_values(result.runs.iter().map(|run| run.redis_cpu_micros));
        let mut cells = vec![
            result.name.to_owned(),
            rate.divided_by(1e3).format(1, "k"),
            Spread::of_ratios(&result.rates(), &results[0].rates()).format(2, ""),
            Spread::from_values(result.cpu_micros()).format(2, ""),
        ];
        if with_redis {
            cells.push(if redis.max > 0.0 { redis.format(2, "") } else { "–".to_owned() });
        }
        table.add_row(cells);
    }
    table.print();
    chart.save(&format!("listeners_{}", listener.name));
}

impl Contender {
    /// Returns whether it is an earlier build of Tidegate, and none was given.
    fn is_earlier_build_missing(&self) -> bool {
        self.server.is_none() && self.name.ends_with("before")
    }
}

/// Records a goal, if both contenders are installed.
fn record(listener: &ListenerTable, goal: &ListenerGoal, results: &[ContenderRuns]) {
    let find = |name: &str| results.iter().find(|it| it.name == name && !it.runs.is_empty());
    let Some(own) = find(goal.contender) else { return };
    let name = format!("{}: {}", listener.title, goal.contender);
    match goal.kind {
        GoalKind::Rate { base, factor } => {
            let Some(base) = find(base) else { return };
            let ratio = Spread::of_ratios(&own.rates(), &base.rates()).median;
            let text = format!("at least {factor} x {}", base.name);
            record_goal(&name, &text, &format!("{ratio:.2} x"), ratio >= factor);
        }
        GoalKind::CpuPart { base, part } => {
            let Some(base) = find(base) else { return };
            let ratio = Spread::of_ratios(&own.cpu_micros(), &base.cpu_micros()).median;
            let text = format!("CPU at most {part} x {}", base.name);
            record_goal(&name, &text, &format!("{ratio:.2} x"), ratio <= part);
        }
        GoalKind::CpuMicros(most) => {
            let micros = Spread::from_values(own.cpu_micros()).median;
            let text = format!("at most {most} us of CPU per check");
            record_goal(&name, &text, &format!("{micros:.2} us"), micros <= most);
        }
        GoalKind::ChecksPerSecond(least) => {
            let rate = Spread::from_values(own.rates()).median;
            let text = format!("at least {:.0}k checks/s", least / 1e3);
            record_goal(&name, &text, &format!("{:.0}k checks/s", rate / 1e3), rate >= least);
        }
    }
}
