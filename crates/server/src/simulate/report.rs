//! What a simulation found, as a table for people and in JSON.

use std::fmt;

use serde::{Serialize, Serializer};

/// Everything that is told of a simulation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) title: String,
    /// What was simulated: a word and what it stands for.
    #[serde(serialize_with = "as_map")]
    pub(crate) about: Vec<(&'static str, String)>,
    pub(crate) lines: Vec<Line>,
    /// Whether it is about how fast the most came in.
    #[serde(skip)]
    pub(crate) tells_pace: bool,
    /// What to make of it.
    pub(crate) notes: Vec<String>,
}

fn as_map<S: Serializer>(about: &[(&'static str, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(about.iter().map(|(word, meaning)| (word, meaning)))
}

/// What became of the traffic under one limit.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<String>,
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) window_seconds: f64,
    /// The most that one client was admitted in any span as long as the window.
    pub(crate) most: u64,
    /// From the first to the last of those.
    pub(crate) within_seconds: f64,
    /// The most that the algorithm admits in any such span.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bound: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aligned: Option<Aligned>,
    /// By how much a bound was exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) over: Option<u64>,
    pub(crate) longest_wait_seconds: f64,
    /// What came while the store was away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outage: Option<Meanwhile>,
    /// Let pass because the store did not answer; each may be one too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed_open: Option<u64>,
    /// Refused because the store did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed_closed: Option<u64>,
    /// Decided by a node's own share because the store did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed_local: Option<u64>,
    /// What the textbook's formula expects in one window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) textbook: Option<u64>,
    pub(crate) timeline: Timeline,
}

/// The most in one window that starts at a multiple of its length, and what the algorithm admits there.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Aligned {
    pub(crate) most: u64,
    pub(crate) bound: u64,
}

/// How many came and passed in a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Meanwhile {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
}

/// How many came and passed in each piece of the time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timeline {
    pub(crate) piece_seconds: f64,
    pub(crate) offered: Vec<u64>,
    pub(crate) admitted: Vec<u64>,
}

impl Line {
    /// How fast the most in a window came; none of what came at once.
    pub(crate) fn pace(&self) -> Option<f64> {
        (self.within_seconds > 0.0).then(|| self.most as f64 / self.within_seconds)
    }
}

/// `150 ms`, `2.9 s`.
pub(super) fn lasting(seconds: f64) -> String {
    if seconds > 0.0 && seconds < 1.0 {
        format!("{} ms", thousandths(seconds * 1e3))
    } else {
        format!("{} s", thousandths(seconds))
    }
}

fn thousandths(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// A column: its heading, and what it says of a line.
type Column = (String, Box<dyn Fn(&Line) -> String>);

impl Report {
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
        let pace = self.tells_pace;
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
        let wait = |line: &Line| match line.longest_wait_seconds {
            seconds if seconds > 0.0 => lasting(seconds),
            _ => String::new(),
        };
        columns.push(("WAIT".into(), Box::new(wait)));
        let meanwhile = move |line: &Line| {
            let told = |outage: Meanwhile| of(outage.admitted, outage.offered);
            line.outage.map_or_else(String::new, told)
        };
        columns.push(("IN OUTAGE".into(), Box::new(meanwhile)));
        columns.push(("OPEN".into(), Box::new(move |line| count(line.failed_open))));
        columns.push(("CLOSED".into(), Box::new(move |line| count(line.failed_closed))));
        columns.push(("LOCAL".into(), Box::new(move |line| count(line.failed_local))));
        columns.push(("TEXTBOOK".into(), Box::new(move |line| count(line.textbook))));
        // What nobody has anything to say about is left out.
        let (first, rest) = (columns.remove(0), columns);
        let told = rest
            .into_iter()
            .filter(|(_, cell)| self.lines.iter().any(|line| !cell(line).is_empty()));
        std::iter::once(first).chain(told).collect()
    }
}

/// What it was about, a table, and what to make of it.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let widest = self.about.iter().map(|(word, _)| word.len()).max().unwrap_or_default();
        for (word, meaning) in &self.about {
            writeln!(f, "  {word:widest$}  {meaning}")?;
        }
        writeln!(f)?;
        let columns = self.columns();
        let cells = |line: &Line| columns.iter().map(|(_, cell)| cell(line)).collect();
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
