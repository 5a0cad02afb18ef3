//! What happens now, and which rules have a part in it.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Sparkline, Widget};
use tidegate_api::{LiveSecond, RuleActivity};

use super::{Body, line, split};
use crate::commands::top::columns::Columns;
use crate::commands::top::number::{count, micros, rate};
use crate::commands::top::palette::Palette;
use crate::commands::top::picture::{Picture, RuleOrder};

/// How many lines the upper part has.
pub(crate) const HEIGHT: u16 = 6;
/// How wide the words and numbers left of the history are.
const WORDS: u16 = 22;

/// What it is called, what it is now, where it is in a second, and how it is drawn.
type Row = (&'static str, String, fn(&LiveSecond) -> u64, Style);

/// Rates with their history, and what else happened in the last second.
pub(crate) fn head(picture: &Picture, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let last = picture.last();
    let told = |number: u64| format!("{}/s", count(number));
    let rows: [Row; 4] = [
        ("allowed", told(last.checks.allowed), |second| second.checks.allowed, palette.allowed()),
        ("denied", told(last.checks.denied), |second| second.checks.denied, palette.denied()),
        ("failed open", told(last.failed_open), |second| second.failed_open, palette.failed()),
        (
            "p99",
            micros(last.p99_micros),
            |second| second.p99_micros.unwrap_or(0),
            palette.latency(),
        ),
    ];
    let mut rest = area;
    for (name, number, value, style) in rows {
        let row;
        [row, rest] = split(rest, 1);
        history(name, &number, &values(picture, value, row), style, row, buffer);
    }
    let [row, _] = split(rest, 1);
    let other = format!(
        " p50 {}  unavailable {}  invalid {}  blocked {} ({} listed)",
        micros(last.p50_micros),
        told(last.checks.unavailable),
        told(last.checks.invalid),
        told(last.checks.blocked),
        count(picture.live.blocked),
    );
    line(&other, palette.plain(), row, buffer);
}

/// As many of the last seconds as there is room for.
fn values(picture: &Picture, value: fn(&LiveSecond) -> u64, row: Rect) -> Vec<Option<u64>> {
    let room = usize::from(row.width.saturating_sub(WORDS + 1));
    let there = picture.seconds.iter().rev().take(room).map(|second| Some(value(second)));
    let mut values: Vec<Option<u64>> = there.collect();
    // What was before we looked is nothing, not none.
    values.resize(room, None);
    values.reverse();
    values
}

fn history(
    name: &str,
    number: &str,
    values: &[Option<u64>],
    style: Style,
    row: Rect,
    buffer: &mut Buffer,
) {
    if row.height == 0 {
        return;
    }
    line(
        &format!(" {name:<12}{number:>8}"),
        style,
        Rect { width: WORDS.min(row.width), ..row },
        buffer,
    );
    if row.width > WORDS + 1 {
        let place = Rect { x: row.x + WORDS, width: row.width - WORDS - 1, ..row };
        Sparkline::default().data(values.iter().copied()).style(style).render(place, buffer);
    }
}

/// Each rule with what it said.
pub(crate) fn rules(picture: &Picture, by: RuleOrder, width: usize, palette: Palette) -> Body {
    let mut columns = Columns::new(&[
        " RULE",
        "ALLOWED/s",
        "DENIED/s",
        "OPEN/s",
        "ALLOWED",
        "DENIED",
        "SHADOW",
        "CLOSED",
        "BLOCKED",
    ]);
    for rule in picture.rules(by) {
        let RuleActivity { rule, total, per_second: now } = rule;
        let style = if now.failed_open > 0.0 || now.failed_closed > 0.0 {
            palette.failed()
        } else if now.denied > 0.0 {
            palette.denied()
        } else {
            palette.plain()
        };
        let cells = vec![
            format!(" {rule}"),
            rate(now.allowed),
            rate(now.denied),
            rate(now.failed_open),
            count(total.allowed),
            count(total.denied),
            count(total.shadow_denied),
            count(total.failed_closed),
            count(total.blocked),
        ];
        columns.row(cells, style);
    }
    let (heading, lines) = columns.lines(width, palette.heading());
    Body { heading: Some(heading), lines }
}
