//! The report of a simulation, as a table and in JSON.

use std::fmt;

use serde::Serialize;
use tidegate_api::{OutageCounts, SimulationLine, SimulationResult};

/// The report of a simulation.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct SimulationReport {
    /// The report as the admin API returns it.
    pub result: SimulationResult,
    /// True if the table shows the pace of the worst window.
    #[serde(skip)]
    pub(crate) shows_pace: bool,
}

/// Writes a time: `150 ms`, `2.9 s`.
pub(crate) fn lasting(seconds: f64) -> String {
    if seconds > 0.0 && seconds < 1.0 {
        format!("{} ms", thousandths(seconds * 1e3))
    } else {
        format!("{} s", thousandths(seconds))
    }
}

fn thousandths(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// A column: its heading, and its cell of a line.
type Column = (String, Box<dyn Fn(&SimulationLine) -> String>);

impl SimulationReport {
    fn columns(&self) -> Vec<Column> {
        let bounded = || self.result.lines.iter().filter(|line| line.bound.is_some());
        let window = bounded().map(|line| line.window_seconds).reduce(f64::max);
        let one = bounded().all(|line| Some(line.window_seconds) == window);
        let any = match window.filter(|_| one) {
            Some(window) => format!("IN ANY {}", lasting(window)),
            None => "IN ANY WINDOW".to_owned(),
        };
        let count = |count: Option<u64>| count.map_or_else(String::new, |count| count.to_string());
        let of = |most: u64, bound: u64| format!("{most} of {bound}");
        let shows_pace = self.shows_pace;
        let mut columns: Vec<Column> = vec![
            (String::new(), Box::new(|line| line.name.clone())),
            ("OFFERED".into(), Box::new(|line| line.offered.to_string())),
            ("ADMITTED".into(), Box::new(|line| line.admitted.to_string())),
            ("DENIED".into(), Box::new(|line| line.denied.to_string())),
            (
                any,
                Box::new(move |line| {
                    line.bound.map_or_else(String::new, |bound| of(line.most, bound))
                }),
            ),
            (
                "ALIGNED".into(),
                Box::new(move |line| {
                    line.aligned.map_or_else(String::new, |aligned| of(aligned.most, aligned.bound))
                }),
            ),
            ("OVER".into(), Box::new(move |line| count(line.over))),
        ];
        if shows_pace {
            columns.push(("WITHIN".into(), Box::new(|line| lasting(line.within_seconds))));
            let shown = |pace: f64| format!("{pace:.0}/s");
            columns.push((
                "PACE".into(),
                Box::new(move |line| line.pace().map_or_else(|| "at once".into(), shown)),
            ));
        }
        let wait = |line: &SimulationLine| match line.longest_wait_seconds {
            seconds if seconds > 0.0 => lasting(seconds),
            _ => String::new(),
        };
        columns.push(("WAIT".into(), Box::new(wait)));
        let in_outage = move |line: &SimulationLine| {
            let counts = |outage: OutageCounts| of(outage.admitted, outage.offered);
            line.outage.map_or_else(String::new, counts)
        };
        columns.push(("IN OUTAGE".into(), Box::new(in_outage)));
        columns.push(("OPEN".into(), Box::new(move |line| count(line.failed_open))));
        columns.push(("CLOSED".into(), Box::new(move |line| count(line.failed_closed))));
        columns.push(("LOCAL".into(), Box::new(move |line| count(line.failed_local))));
        columns.push(("TEXTBOOK".into(), Box::new(move |line| count(line.textbook))));
        // Empty columns are left out.
        let (first, rest) = (columns.remove(0), columns);
        let non_empty = rest
            .into_iter()
            .filter(|(_, cell)| self.result.lines.iter().any(|line| !cell(line).is_empty()));
        std::iter::once(first).chain(non_empty).collect()
    }
}

/// Writes the head, the table and the notes.
impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.result.title)?;
        let widest = self.result.about.iter().map(|(word, _)| word.len()).max().unwrap_or_default();
        for (word, meaning) in &self.result.about {
            writeln!(f, "  {word:widest$}  {meaning}")?;
        }
        writeln!(f)?;
        let columns = self.columns();
        let cells = |line: &SimulationLine| columns.iter().map(|(_, cell)| cell(line)).collect();
        let heading: Vec<String> = columns.iter().map(|(heading, _)| heading.clone()).collect();
        let rows: Vec<Vec<String>> =
            std::iter::once(heading).chain(self.result.lines.iter().map(cells)).collect();
        let width = |index: usize| {
            rows.iter().map(|row| row[index].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for row in &rows {
            let mut line = format!("{:1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line.push_str(&format!("  {cell:>width$}"));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if !self.result.notes.is_empty() {
            writeln!(f)?;
        }
        self.result.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}
