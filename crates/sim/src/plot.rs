//! A report as a plot: requests that arrived and were admitted, over time.
//!
//! One SVG without scripts or fonts, in light and dark colours.

use std::fmt::Write;

use tidegate_api::SimulationLine;

use crate::report::{SimulationReport, lasting};

const WIDTH: f64 = 880.0;
/// Height of a panel; each line of the report has one.
const PANEL_HEIGHT: f64 = 170.0;
const HEADER_HEIGHT: f64 = 84.0;
/// The left edge and the height of the chart in a panel.
const CHART_LEFT_AND_HEIGHT: (f64, f64) = (64.0, 100.0);

const LIGHT_STYLE: &str = "\
.paper{fill:#fff}text{font-family:system-ui,sans-serif;font-size:13px;fill:#1f2933}.title{font-size:16px;font-weight:600}\
.name{font-weight:600}.note{fill:#52606d}.offered{fill:#cbd2d9}.admitted{fill:#0b7285}.axis{stroke:#9aa5b1}\
.top{stroke:#e4e7eb}";
const DARK_STYLE: &str = "\
@media(prefers-color-scheme:dark){.paper{fill:#14181d}text{fill:#e4e7eb}.note{fill:#9aa5b1}\
.offered{fill:#3e4c59}.admitted{fill:#3bc9db}.axis{stroke:#616e7c}.top{stroke:#2a3138}}";

/// If every step has fewer requests than this, several steps are merged: small counts vary too much.
const MIN_STEP_COUNT: u64 = 25;
/// Numbers of steps that may be merged; the number with the least variation is used.
const MERGED_STEP_COUNTS: [usize; 3] = [3, 4, 6];

/// Panels below each other, each with the requests that arrived and were admitted over time.
#[derive(Debug)]
pub struct TrafficPlot<'r> {
    pub(crate) title: &'r str,
    pub(crate) panels: Vec<PlotPanel<'r>>,
}

#[derive(Debug)]
pub(crate) struct PlotPanel<'r> {
    pub(crate) name: String,
    /// The totals.
    pub(crate) note: String,
    /// Length of a step.
    pub(crate) piece_seconds: f64,
    /// Labels for the start of the first and the end of the last step; `None` for times of a simulation.
    pub(crate) ends: Option<(String, String)>,
    /// Requests that arrived and that were admitted in each step.
    pub(crate) series: (&'r [u64], &'r [u64]),
}

impl<'r> From<&'r SimulationReport> for TrafficPlot<'r> {
    fn from(report: &'r SimulationReport) -> Self {
        let panel = |line: &'r SimulationLine| PlotPanel {
            name: line.name.clone(),
            note: format!("{} of {} admitted", line.admitted, line.offered),
            piece_seconds: line.timeline.piece_seconds,
            ends: None,
            series: (&line.timeline.offered, &line.timeline.admitted),
        };
        Self {
            title: &report.result.title,
            panels: report.result.lines.iter().map(panel).collect(),
        }
    }
}

impl TrafficPlot<'_> {
    /// Maximum number of panels in a plot.
    pub(crate) const MAX_PANELS: usize = 16;

    /// Draws the plot in light and dark colours; the viewer's preference decides.
    pub fn svg(&self) -> String {
        let height = HEADER_HEIGHT + PANEL_HEIGHT * self.panels.len() as f64;
        let title = escaped(self.title);
        let mut picture = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{title}\">\n<title>{title}</title>\n<style>{LIGHT_STYLE}{DARK_STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
             <text class=\"title\" x=\"24\" y=\"32\">{title}</text>\n\
             <rect class=\"offered\" x=\"24\" y=\"48\" width=\"12\" height=\"12\"/>\
             <text x=\"42\" y=\"59\">offered</text>\n\
             <rect class=\"admitted\" x=\"112\" y=\"48\" width=\"12\" height=\"12\"/>\
             <text x=\"130\" y=\"59\">admitted</text>\n"
        );
        for (index, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut picture, HEADER_HEIGHT + PANEL_HEIGHT * index as f64);
        }
        picture.push_str("</svg>\n");
        picture
    }
}

impl PlotPanel<'_> {
    /// Returns the number of steps that are drawn as one.
    fn together(&self) -> usize {
        if most(self.series.0).max(most(self.series.1)) >= MIN_STEP_COUNT {
            return 1;
        }
        let variation = |together: &usize| {
            let steps = merged(self.series.0, *together);
            let (most, least) = (most(&steps), steps.iter().min().copied().unwrap_or_default());
            (most - least) * 1_000 / most.max(1)
        };
        MERGED_STEP_COUNTS.into_iter().min_by_key(variation).unwrap_or(1)
    }

    fn draw(&self, picture: &mut String, top: f64) {
        let (left, tall) = CHART_LEFT_AND_HEIGHT;
        let (right, floor) = (WIDTH - 24.0, top + 24.0 + tall);
        let together = self.together();
        let [offered, admitted] = [self.series.0, self.series.1].map(|all| merged(all, together));
        let most = most(&offered).max(most(&admitted));
        let (name, note) = (escaped(&self.name), escaped(&self.note));
        let mut add = |text: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _ = picture.write_fmt(text);
        };
        add(format_args!(
            "<text class=\"name\" x=\"24\" y=\"{}\">{name}</text>\n\
             <text class=\"note\" x=\"{right}\" y=\"{0}\" text-anchor=\"end\">{note}</text>\n",
            top + 12.0
        ));
        add(format_args!(
            "<line class=\"top\" x1=\"{left}\" y1=\"{0}\" x2=\"{right}\" y2=\"{0}\"/>\n",
            floor - tall
        ));
        for (class, counts) in [("offered", &offered), ("admitted", &admitted)] {
            let wide = (right - left) / counts.len().max(1) as f64;
            let mut steps = format!("M{left:.1} {floor:.1}");
            for (piece, count) in counts.iter().enumerate() {
                let height = *count as f64 / most.max(1) as f64 * tall;
                let (from, to) = (left + piece as f64 * wide, left + (piece + 1) as f64 * wide);
                let _ = write!(steps, "L{from:.1} {0:.1}L{to:.1} {0:.1}", floor - height);
            }
            add(format_args!("<path class=\"{class}\" d=\"{steps}L{right:.1} {floor:.1}Z\"/>\n"));
        }
        let length = self.piece_seconds * self.series.0.len() as f64;
        let highest = short(most);
        let (low, piece) = (floor + 16.0, lasting(self.piece_seconds * together as f64));
        let (from, to) = match &self.ends {
            Some((from, to)) => (escaped(from), escaped(to)),
            None => ("0 s".to_owned(), lasting(length)),
        };
        add(format_args!(
            "<line class=\"axis\" x1=\"{left}\" y1=\"{floor}\" x2=\"{right}\" y2=\"{floor}\"/>\n\
             <text class=\"note\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{highest}</text>\n\
             <text class=\"note\" x=\"{left}\" y=\"{low}\">{from}</text>\n\
             <text class=\"note\" x=\"{}\" y=\"{low}\" text-anchor=\"middle\">each step {piece}</text>\n\
             <text class=\"note\" x=\"{right}\" y=\"{low}\" text-anchor=\"end\">{to}</text>\n",
            left - 8.0,
            floor - tall + 5.0,
            (left + right) / 2.0,
        ));
    }
}

fn merged(counts: &[u64], together: usize) -> Vec<u64> {
    counts.chunks(together).map(|steps| steps.iter().sum()).collect()
}

fn most(counts: &[u64]) -> u64 {
    counts.iter().max().copied().unwrap_or_default()
}

/// Formats a count for the space beside the axis: `99999`, `120k`, `1.78M`.
fn short(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..1_000_000 => format!("{}k", count / 1_000),
        _ => format!("{:.2}M", count as f64 / 1e6),
    }
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_labels_are_abbreviated() {
        let shown = [0, 99_999, 100_000, 999_999, 1_778_000, 123_456_789].map(short);
        assert_eq!(shown, ["0", "99999", "100k", "999k", "1.78M", "123.46M"]);
    }
}
