//! Charts as SVG files, readable in light and dark mode.

use std::fmt::Write as _;

use crate::results;
use crate::table::Spread;

const WIDTH: f64 = 760.0;
const TITLE_HEIGHT: f64 = 52.0;

/// Colours of the series, in light and in dark mode.
const STYLE: &str = "
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.note { fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.range { stroke: #1f2328; stroke-width: 1.5; opacity: .55 }
.line { fill: none; stroke-width: 2 }
.own { fill: #0969da }
.peer { fill: #a3adb8 }
.s0 { stroke: #0969da } .s1 { stroke: #bc4c00 } .s2 { stroke: #1a7f37 }
.s3 { stroke: #8250df } .s4 { stroke: #9a6700 } .s5 { stroke: #bf3989 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.note { fill: #9198a1 }
.grid { stroke: #3d444d }
.range { stroke: #e6edf3 }
.own { fill: #4493f8 }
.peer { fill: #656c76 }
.s0 { stroke: #4493f8 } .s1 { stroke: #f0883e } .s2 { stroke: #3fb950 }
.s3 { stroke: #ab7df8 } .s4 { stroke: #d29922 } .s5 { stroke: #db61a2 }
}
";

/// Number of colours in [`STYLE`].
const COLOURS: usize = 6;

/// Horizontal bars with medians and ranges.
#[derive(Debug)]
pub struct BarChart {
    title: String,
    unit: String,
    bars: Vec<(String, Spread)>,
}

impl BarChart {
    const LABEL_WIDTH: f64 = 290.0;
    const VALUE_WIDTH: f64 = 80.0;
    const BAR_HEIGHT: f64 = 18.0;
    const ROW_HEIGHT: f64 = 28.0;

    /// Returns a chart without bars.
    #[must_use]
    pub fn new(title: &str, unit: &str) -> Self {
        Self { title: title.to_owned(), unit: unit.to_owned(), bars: Vec::new() }
    }

    /// Adds a bar. Bars of Tidegate have another colour than those of peers.
    pub fn add_bar(&mut self, label: &str, value: Spread) {
        self.bars.push((label.to_owned(), value));
    }

    /// Saves the chart as `NAME.svg`.
    pub fn save(&self, name: &str) {
        results::save(&format!("{name}.svg"), &self.svg());
    }

    fn svg(&self) -> String {
        let height = TITLE_HEIGHT + Self::ROW_HEIGHT * self.bars.len() as f64 + 12.0;
        let mut svg =
            open_svg(&self.title, &format!("{}; median, minimum and maximum", self.unit), height);
        let largest = self.bars.iter().map(|(_, value)| value.max).fold(0.0, f64::max);
        let scale =
            (WIDTH - Self::LABEL_WIDTH - Self::VALUE_WIDTH) / largest.max(f64::MIN_POSITIVE);
        for (row, (label, value)) in self.bars.iter().enumerate() {
            let top = TITLE_HEIGHT + 8.0 + Self::ROW_HEIGHT * row as f64;
            let middle = top + Self::BAR_HEIGHT / 2.0;
            let class = if label.to_lowercase().contains("tidegate") { "own" } else { "peer" };
            let left = Self::LABEL_WIDTH;
            let at = |value: f64| left + value * scale;
            text(&mut svg, left - 10.0, middle + 4.5, "end", "", label);
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{}\" rx=\"2\"/>",
                value.median * scale,
                Self::BAR_HEIGHT
            );
            line(&mut svg, "range", (at(value.min), middle), (at(value.max), middle));
            text(&mut svg, at(value.max) + 8.0, middle + 4.5, "start", "", &short(value.median));
        }
        svg + "</svg>\n"
    }
}

/// Lines over an x axis with a logarithmic scale.
#[derive(Debug)]
pub struct LineChart {
    title: String,
    x_label: String,
    y_label: String,
    log_y: bool,
    series: Vec<(String, Vec<(f64, f64)>)>,
}

impl LineChart {
    const LEFT: f64 = 64.0;
    const RIGHT: f64 = 265.0;
    const PLOT_HEIGHT: f64 = 260.0;
    const HEIGHT: f64 = TITLE_HEIGHT + 24.0 + Self::PLOT_HEIGHT + 52.0;

    /// Returns a chart without lines. Its y axis starts at zero.
    #[must_use]
    pub fn new(title: &str, x_label: &str, y_label: &str) -> Self {
        let [title, x_label, y_label] = [title, x_label, y_label].map(str::to_owned);
        Self { title, x_label, y_label, log_y: false, series: Vec::new() }
    }

    /// Gives the y axis a logarithmic scale, for values that differ by orders of magnitude.
    #[must_use]
    pub fn with_log_y(mut self) -> Self {
        self.log_y = true;
        self
    }

    /// Adds a line. A line without points is not drawn.
    pub fn add_series(&mut self, name: &str, points: Vec<(f64, f64)>) {
        if !points.is_empty() {
            self.series.push((name.to_owned(), points));
        }
    }

    /// Saves the chart as `NAME.svg`. Nothing is saved without a line.
    pub fn save(&self, name: &str) {
        if !self.series.is_empty() {
            results::save(&format!("{name}.svg"), &self.svg());
        }
    }

    fn svg(&self) -> String {
        let mut svg = open_svg(&self.title, &self.y_label, Self::HEIGHT);
        let points = || self.series.iter().flat_map(|(_, points)| points);
        let mut xs: Vec<f64> = points().map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let (first, last) = (xs[0], xs[xs.len() - 1]);
        let bottom = TITLE_HEIGHT + 24.0 + Self::PLOT_HEIGHT;
        let right = WIDTH - Self::RIGHT;
        let x_width = (last / first).ln().max(f64::MIN_POSITIVE);
        let x_at = |x: f64| Self::LEFT + (right - Self::LEFT) * (x / first).ln() / x_width;
        let ticks = self.y_ticks(points().map(|point| point.1));
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        let part = |y: f64| {
            if self.log_y { (y.max(low) / low).ln() / (high / low).ln() } else { y / high }
        };
        let y_at = |y: f64| bottom - Self::PLOT_HEIGHT * part(y);
        for tick in ticks {
            line(&mut svg, "grid", (Self::LEFT, y_at(tick)), (right, y_at(tick)));
            text(&mut svg, Self::LEFT - 8.0, y_at(tick) + 4.5, "end", "note", &short(tick));
        }
        for x in xs {
            text(&mut svg, x_at(x), bottom + 20.0, "middle", "note", &short(x));
        }
        text(
            &mut svg,
            f64::midpoint(Self::LEFT, right),
            bottom + 42.0,
            "middle",
            "note",
            &self.x_label,
        );
        let mut labels: Vec<(usize, f64, f64)> = Vec::new();
        for (index, (_, points)) in self.series.iter().enumerate() {
            let shown: Vec<String> =
                points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y))).collect();
            let class = index % COLOURS;
            let _ =
                writeln!(svg, "<polyline class=\"line s{class}\" points=\"{}\"/>", shown.join(" "));
            let (_, y) = points[points.len() - 1];
            labels.push((index, y_at(y), y));
        }
        // A label is beside the end of its line, or below the label above it.
        labels.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut free = f64::MIN;
        for (index, wanted, value) in labels {
            let y = wanted.max(free);
            free = y + 18.0;
            let class = format!("line s{}", index % COLOURS);
            line(&mut svg, &class, (right + 8.0, y), (right + 20.0, y));
            let label = format!("{} {}", self.series[index].0, short(value));
            text(&mut svg, right + 26.0, y + 4.5, "start", "", &label);
        }
        svg + "</svg>\n"
    }

    /// Returns the marks of the y axis. The last one is not below the largest value.
    fn y_ticks(&self, values: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
        let (low, high) =
            values.fold((f64::MAX, 0.0_f64), |(low, high), y| (low.min(y), high.max(y)));
        if self.log_y {
            let from = low.max(f64::MIN_POSITIVE).log10().floor();
            let to = high.max(f64::MIN_POSITIVE).log10().ceil().max(from + 1.0);
            let count = (to - from) as usize;
            return (0..=count).map(|step| 10_f64.powf(from + step as f64)).collect();
        }
        let wanted = (high / 5.0).max(f64::MIN_POSITIVE);
        let power = 10_f64.powf(wanted.log10().floor());
        let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = factors.map(|factor| factor * power).into_iter().find(|step| *step >= wanted);
        let step = step.unwrap_or(wanted);
        (0..=(high / step).ceil() as usize).map(|count| count as f64 * step).collect()
    }
}

fn open_svg(title: &str, note: &str, height: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<style>{STYLE}</style>\n"
    );
    let _ = writeln!(svg, "<title>{}</title>", escape(title));
    text(&mut svg, 10.0, 22.0, "start", "title", title);
    text(&mut svg, 10.0, 42.0, "start", "note", note);
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
    let text = escape(text);
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Formats a number with at most three digits: `1.25k`, `10M`, `0.5`. Small whole numbers are exact: `1024`.
fn short(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 10_000.0 && value % 100.0 != 0.0 {
        return format!("{value:.0}");
    }
    let (divisor, unit) = match value.abs() {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e3.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    let value = value / divisor;
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_three_digits() {
        let shown = [0.0, 0.5, 12.34, 999.0, 1_254.6, 10_000_000.0, 2e9].map(short);
        assert_eq!(shown, ["0", "0.5", "12.3", "999", "1.25k", "10M", "2G"]);
    }

    #[test]
    fn small_whole_numbers_are_exact() {
        assert_eq!([1_000.0, 1_024.0].map(short), ["1k", "1024"]);
    }

    #[test]
    fn axis_covers_the_largest_value() {
        let chart = LineChart::new("", "", "");
        assert_eq!(chart.y_ticks([3.0, 47.0].into_iter()), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        let chart = chart.with_log_y();
        assert_eq!(chart.y_ticks([3.0, 470.0].into_iter()), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn labels_are_escaped() {
        let mut chart = BarChart::new("a < b", "ns");
        chart.add_bar("x & y", Spread::from_values([1.0, 2.0, 3.0]));
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y"), "{svg}");
    }
}
