//! The report of a simulation, as a table and in JSON.

use std::fmt;

use serde::{Serialize, Serializer};

/// The report of a simulation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulationReport {
    pub(crate) title: String,
    /// The head of the report: a word and its meaning.
    #[serde(serialize_with = "as_map")]
    pub(crate) about: Vec<(&'static str, String)>,
    /// A line for each limit.
    pub lines: Vec<ReportLine>,
    /// Whether the pace of the worst window is shown.
    #[serde(skip)]
    pub(crate) shows_pace: bool,
    /// Notes below the table.
    pub(crate) notes: Vec<String>,
}

fn as_map<S: Serializer>(about: &[(&'static str, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(about.iter().map(|(word, meaning)| (word, meaning)))
}

/// The outcome of the traffic under one limit.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportLine {
    /// The name of the limit.
    pub name: String,
    /// The limit as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Requests that arrived, with retries.
    pub offered: u64,
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that this limit denied.
    pub denied: u64,
    /// Length of the limit's window.
    pub window_seconds: f64,
    /// The most that one client was admitted in any span as long as the window.
    pub most: u64,
    /// Time from the first to the last of those.
    pub within_seconds: f64,
    /// The most that the algorithm admits in any such span.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<u64>,
    /// The most in an aligned window, if the algorithm promises less there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aligned: Option<AlignedPeak>,
    /// Excess over a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<u64>,
    /// Longest wait for a turn.
    pub longest_wait_seconds: f64,
    /// Requests during the outage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<OutageCounts>,
    /// Requests that were admitted because the store did not reply; each may exceed the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_open: Option<u64>,
    /// Requests that were denied because the store did not reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_closed: Option<u64>,
    /// Requests that a node decided by its share because the store did not reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_local: Option<u64>,
    /// Admissions that the textbook's formula expects in one window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub textbook: Option<u64>,
    /// Requests over time.
    pub timeline: Timeline,
}

/// The most requests in a window that starts at a multiple of its length, and the bound for such windows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AlignedPeak {
    /// The most requests of one client.
    pub most: u64,
    /// The most that the algorithm admits.
    pub bound: u64,
}

/// Requests during an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutageCounts {
    /// Requests that arrived.
    pub offered: u64,
    /// Requests that were admitted.
    pub admitted: u64,
}

/// Requests that arrived and were admitted in each piece of the time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Length of a piece.
    pub piece_seconds: f64,
    /// Requests that arrived in each piece.
    pub offered: Vec<u64>,
    /// Requests that were admitted in each piece.
    pub admitted: Vec<u64>,
}

impl ReportLine {
    /// Returns the pace of the worst window; `None` if its requests came at once.
    pub(crate) fn pace(&self) -> Option<f64> {
        (self.within_seconds > 0.0).then(|| self.most as f64 / self.within_seconds)
    }
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
type Column = (String, Box<dyn Fn(&ReportLine) -> String>);

impl SimulationReport {
    fn columns(&self) -> Vec<Column> {
        let bounded = || self.lines.iter().filter(|line| line.bound.is_some());
        let window = bounded().map(|line| line.window_seconds).reduce(f64::max);
        let one = bounded().all(|line| Some(line.window_seconds) == window);
        let any = match window.filter(|_| one) {
            Some(window) => format!("IN ANY {}", lasting(window)),
            None => "IN ANY WINDOW".to_owned(),
        };
        let count = |count: Option<u64>| count.map_or_else(String::new, |count| count.to_string());
        let of = |most: u64, bound: u64| format!("{most} of {bound}");
        let pace = self.shows_pace;
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
        if pace {
            columns.push(("WITHIN".into(), Box::new(|line| lasting(line.within_seconds))));
            let shown = |pace: f64| format!("{pace:.0}/s");
            columns.push((
                "PACE".into(),
                Box::new(move |line| line.pace().map_or_else(|| "at once".into(), shown)),
            ));
        }
        let wait = |line: &ReportLine| match line.longest_wait_seconds {
            seconds if seconds > 0.0 => lasting(seconds),
            _ => String::new(),
        };
        columns.push(("WAIT".into(), Box::new(wait)));
        let meanwhile = move |line: &ReportLine| {
            let told = |outage: OutageCounts| of(outage.admitted, outage.offered);
            line.outage.map_or_else(String::new, told)
        };
        columns.push(("IN OUTAGE".into(), Box::new(meanwhile)));
        columns.push(("OPEN".into(), Box::new(move |line| count(line.failed_open))));
        columns.push(("CLOSED".into(), Box::new(move |line| count(line.failed_closed))));
        columns.push(("LOCAL".into(), Box::new(move |line| count(line.failed_local))));
        columns.push(("TEXTBOOK".into(), Box::new(move |line| count(line.textbook))));
        // Empty columns are left out.
        let (first, rest) = (columns.remove(0), columns);
        let told = rest
            .into_iter()
            .filter(|(_, cell)| self.lines.iter().any(|line| !cell(line).is_empty()));
        std::iter::once(first).chain(told).collect()
    }
}

/// Writes the head, the table and the notes.
impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let widest = self.about.iter().map(|(word, _)| word.len()).max().unwrap_or_default();
        for (word, meaning) in &self.about {
            writeln!(f, "  {word:widest$}  {meaning}")?;
        }
        writeln!(f)?;
        let columns = self.columns();
        let cells = |line: &ReportLine| columns.iter().map(|(_, cell)| cell(line)).collect();
        let heading: Vec<String> = columns.iter().map(|(heading, _)| heading.clone()).collect();
        let rows: Vec<Vec<String>> =
            std::iter::once(heading).chain(self.lines.iter().map(cells)).collect();
        let width = |place: usize| {
            rows.iter().map(|row| row[place].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for row in &rows {
            let mut line = format!("{:1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line.push_str(&format!("  {cell:>width$}"));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}
