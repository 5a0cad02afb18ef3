//! Overload by one client: the admissions are counted and compared with a limit of 1,000 per hour.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::host;
use crate::measure;
use crate::results::record_goal;
use crate::table::Table;

/// The limit of the client, per hour.
pub const HOURLY_LIMIT: u64 = 1_000;
/// Requests of a run, over all nodes.
pub const TOTAL_REQUESTS: u64 = 20_000;
/// Connections of a run, over all nodes.
pub const TOTAL_CONNECTIONS: u64 = 50;

/// Counts of a run.
#[derive(Clone, Copy, Debug)]
pub struct OvershootRun {
    /// Requests with a decision.
    pub decided: u64,
    /// Admitted requests.
    pub admitted: u64,
    /// Length of the run.
    pub elapsed: Duration,
}

impl OvershootRun {
    /// Measures the length of a run. The call returns the decided and the admitted requests.
    pub fn measure(send: impl FnOnce() -> (u64, u64)) -> Self {
        let start = measure::now();
        let (decided, admitted) = send();
        Self { decided, admitted, elapsed: start.elapsed() }
    }

    /// Sends the requests over HTTP to every address at once: 429 is a denial.
    ///
    /// # Panics
    /// `tidegate bench` fails.
    #[must_use]
    pub fn over_http(urls: &[String]) -> Self {
        let nodes = urls.len() as u64;
        Self::measure(|| {
            let start = |url: &String| -> Child {
                let mut command = Command::new(host::sibling_binary("tidegate"));
                command.args(["bench", "--json", "--get", url]);
                command.args(["-n", &(TOTAL_REQUESTS / nodes).to_string()]);
                command.args(["-c", &(TOTAL_CONNECTIONS / nodes).to_string()]);
                command.stdout(Stdio::piped()).spawn().expect("tidegate bench starts")
            };
            let running: Vec<Child> = urls.iter().map(start).collect();
            running.into_iter().fold((0, 0), |(decided, admitted), child| {
                let output = child.wait_with_output().expect("tidegate bench ends");
                let report: serde_json::Value =
                    serde_json::from_slice(&output.stdout).expect("tidegate bench prints JSON");
                let count = |field: &str| report[field].as_u64().unwrap_or_default();
                (decided + count("allowed") + count("denied"), admitted + count("allowed"))
            })
        })
    }

    /// Returns the most requests that a limit of 1,000 per hour admits in this time: a token refills in 3.6 s.
    #[must_use]
    pub fn bound(&self) -> u64 {
        HOURLY_LIMIT + self.elapsed.as_secs() * HOURLY_LIMIT / 3_600 + 1
    }
}

/// A table with a row for each limiter.
#[derive(Debug)]
pub struct OvershootTable {
    table: Table,
    tidegate_over: u64,
}

impl OvershootTable {
    /// Returns an empty table.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let caption = format!(
            "{TOTAL_REQUESTS} requests of one client, as fast as possible, over {TOTAL_CONNECTIONS} connections, against a limit of {HOURLY_LIMIT} per hour. The bound includes the tokens that refill during the run."
        );
        let columns = ["", "nodes", "decided", "bound", "admitted", "over the bound"];
        Self { table: Table::new(name, &caption, columns), tidegate_over: 0 }
    }

    /// Adds a row. `None` is a limiter that is not installed.
    pub fn add(&mut self, name: &str, nodes: usize, count: Option<OvershootRun>) {
        let Some(count) = count else {
            return self.table.add_row([name, &nodes.to_string(), "not installed"]);
        };
        let over = count.admitted.saturating_sub(count.bound());
        if name.starts_with("Tidegate") {
            self.tidegate_over = self.tidegate_over.max(over);
        }
        let numbers = [nodes as u64, count.decided, count.bound(), count.admitted, over];
        let numbers = numbers.map(|number| number.to_string());
        self.table.add_row(std::iter::once(name.to_owned()).chain(numbers));
    }

    /// Prints and saves the table, and the goal that Tidegate admits none over the limit.
    pub fn print(&self, goal: &str) {
        self.table.print();
        record_goal(goal, "none", &self.tidegate_over.to_string(), self.tidegate_over == 0);
    }
}
