//! The overview page: current rates with their history, and the rules.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Sparkline, Widget};
use tidegate_api::{LiveSecond, RuleActivity};

use super::{PageBody, line, split};
use crate::commands::top::columns::ColumnTable;
use crate::commands::top::number::{count, micros, rate};
use crate::commands::top::palette::Palette;
use crate::commands::top::view_model::{RuleOrder, ViewModel};

/// Height of the rates in lines.
pub(crate) const HEIGHT: u16 = 6;
/// Width of the label and the number left of a history, in cells.
const LABEL_WIDTH: u16 = 22;

/// A label, the current number, the accessor of its history, and a style.
type HistoryRow = (&'static str, String, fn(&LiveSecond) -> u64, Style);

/// Draws the rates with their history, and a line of other figures of the last second.
pub(crate) fn head(view: &ViewModel, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let last = view.last();
    let per_second = |number: u64| format!("{}/s", count(number));
    let rows: [HistoryRow; 4] = [
        (
            "allowed",
            per_second(last.checks.allowed),
            |second| second.checks.allowed,
            palette.allowed(),
        ),
        ("denied", per_second(last.checks.denied), |second| second.checks.denied, palette.denied()),
        (
            "failed open",
            per_second(last.failed_open),
            |second| second.failed_open,
            palette.failed(),
        ),
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
        history(name, &number, &values(view, value, row), style, row, buffer);
    }
    let [row, _] = split(rest, 1);
    let other = format!(
        " p50 {}  unavailable {}  invalid {}  blocked {} ({} listed)",
        micros(last.p50_micros),
        per_second(last.checks.unavailable),
        per_second(last.checks.invalid),
        per_second(last.checks.blocked),
        count(view.live.blocked),
    );
    line(&other, palette.plain(), row, buffer);
}

/// Returns the last seconds that fit into the row, oldest first.
fn values(view: &ViewModel, value: fn(&LiveSecond) -> u64, row: Rect) -> Vec<Option<u64>> {
    let room = usize::from(row.width.saturating_sub(LABEL_WIDTH + 1));
    let known = view.seconds.iter().rev().take(room).map(|second| Some(value(second)));
    let mut values: Vec<Option<u64>> = known.collect();
    // Seconds before the first report are unknown, not zero.
    values.resize(room, None);
    values.reverse();
    values
}

/// Draws a label, a number and a sparkline.
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
        Rect { width: LABEL_WIDTH.min(row.width), ..row },
        buffer,
    );
    if row.width > LABEL_WIDTH + 1 {
        let chart = Rect { x: row.x + LABEL_WIDTH, width: row.width - LABEL_WIDTH - 1, ..row };
        Sparkline::default().data(values.iter().copied()).style(style).render(chart, buffer);
    }
}

/// Returns the outcomes of each rule.
pub(crate) fn rules(view: &ViewModel, by: RuleOrder, width: usize, palette: Palette) -> PageBody {
    let mut columns = ColumnTable::new(&[
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
    for rule in view.rules(by) {
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
    PageBody { heading: Some(heading), lines }
}
