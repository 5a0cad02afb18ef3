//! A report as a picture: what was offered and what was admitted, over time.
//!
//! One SVG without scripts or fonts of its own, in light and dark colours as the reader has it.

use std::fmt::Write;

use super::report::{Line, Report, lasting};

const WIDTH: f64 = 880.0;
/// A panel for each line of the report, and room above the first.
const PANEL: f64 = 170.0;
const TOP: f64 = 84.0;
/// The part of a panel in which something is drawn.
const CHART: (f64, f64) = (64.0, 100.0);

const STYLE: &str = "\
.paper{fill:#fff}text{font:13px system-ui,sans-serif;fill:#1f2933}.title{font-size:16px;font-weight:600}\
.name{font-weight:600}.note{fill:#52606d}.offered{fill:#cbd2d9}.admitted{fill:#0b7285}.axis{stroke:#9aa5b1}\
@media(prefers-color-scheme:dark){.paper{fill:#14181d}text{fill:#e4e7eb}.note{fill:#9aa5b1}\
.offered{fill:#3e4c59}.admitted{fill:#3bc9db}.axis{stroke:#616e7c}}";

/// The picture of a report.
pub(crate) fn svg(report: &Report) -> String {
    let height = TOP + PANEL * report.lines.len() as f64;
    let title = escaped(&report.title);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"24\" y=\"32\">{title}</text>\n\
         <rect class=\"offered\" x=\"24\" y=\"48\" width=\"12\" height=\"12\"/>\
         <text x=\"42\" y=\"59\">offered</text>\n\
         <rect class=\"admitted\" x=\"112\" y=\"48\" width=\"12\" height=\"12\"/>\
         <text x=\"130\" y=\"59\">admitted</text>\n"
    );
    for (place, line) in report.lines.iter().enumerate() {
        panel(&mut picture, line, TOP + PANEL * place as f64);
    }
    picture.push_str("</svg>\n");
    picture
}

fn panel(picture: &mut String, line: &Line, top: f64) {
    let (left, tall) = CHART;
    let (right, floor) = (WIDTH - 24.0, top + 24.0 + tall);
    let timeline = &line.timeline;
    let series = [("offered", &timeline.offered), ("admitted", &timeline.admitted)];
    let most = series.iter().flat_map(|(_, counts)| counts.iter()).max().copied().unwrap_or(0);
    let (name, offered, admitted) = (escaped(&line.name), line.offered, line.admitted);
    let mut add = |text: std::fmt::Arguments<'_>| {
        // Writing to a text does not fail.
        let _ = picture.write_fmt(text);
    };
    add(format_args!(
        "<text class=\"name\" x=\"24\" y=\"{}\">{name}</text>\n\
         <text class=\"note\" x=\"{right}\" y=\"{0}\" text-anchor=\"end\">{admitted} of {offered} admitted</text>\n",
        top + 12.0
    ));
    for (class, counts) in series {
        let wide = (right - left) / counts.len().max(1) as f64;
        let mut steps = format!("M{left:.1} {floor:.1}");
        for (piece, count) in counts.iter().enumerate() {
            let height = *count as f64 / most.max(1) as f64 * tall;
            let (from, to) = (left + piece as f64 * wide, left + (piece + 1) as f64 * wide);
            let _ = write!(steps, "L{from:.1} {0:.1}L{to:.1} {0:.1}", floor - height);
        }
        add(format_args!("<path class=\"{class}\" d=\"{steps}L{right:.1} {floor:.1}Z\"/>\n"));
    }
    let length = timeline.piece_seconds * timeline.offered.len() as f64;
    let (low, piece) = (floor + 16.0, lasting(timeline.piece_seconds));
    add(format_args!(
        "<line class=\"axis\" x1=\"{left}\" y1=\"{floor}\" x2=\"{right}\" y2=\"{floor}\"/>\n\
         <text class=\"note\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{most}</text>\n\
         <text class=\"note\" x=\"{left}\" y=\"{low}\">0 s</text>\n\
         <text class=\"note\" x=\"{}\" y=\"{low}\" text-anchor=\"middle\">each step {piece}</text>\n\
         <text class=\"note\" x=\"{right}\" y=\"{low}\" text-anchor=\"end\">{}</text>\n",
        left - 8.0,
        floor - tall + 12.0,
        (left + right) / 2.0,
        lasting(length),
    ));
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
