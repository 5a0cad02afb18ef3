//! Tables that give up columns when there is no room.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// The least that is left for the first column.
const LEAST: usize = 14;
const GAP: usize = 2;

/// A first column that takes the room there is, and numbers to its right. The last columns go first when a
/// terminal is narrow.
pub(crate) struct Columns {
    heading: Vec<String>,
    rows: Vec<(Vec<String>, Style)>,
}

impl Columns {
    pub(crate) fn new(heading: &[&str]) -> Self {
        let heading = heading.iter().map(|&cell| cell.to_owned()).collect();
        Self { heading, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>, style: Style) {
        self.rows.push((cells, style));
    }

    /// The heading and the rows, none wider than this.
    pub(crate) fn lines(
        &self,
        width: usize,
        heading: Style,
    ) -> (Line<'static>, Vec<Line<'static>>) {
        let widths = self.widths(width);
        let line =
            |cells: &[String], style| Line::from(Span::styled(laid_out(cells, &widths), style));
        let rows = self.rows.iter().map(|(cells, style)| line(cells, *style)).collect();
        (line(&self.heading, heading), rows)
    }

    /// How wide each column is that has room.
    fn widths(&self, width: usize) -> Vec<usize> {
        let cells = |place: usize| {
            let rows = self.rows.iter().filter_map(move |(cells, _)| cells.get(place));
            rows.chain(self.heading.get(place)).map(|cell| wide(cell)).max().unwrap_or_default()
        };
        let first = cells(0);
        let mut widths = vec![first];
        let mut left = width.saturating_sub(first.min(LEAST.max(width / 3)));
        for place in 1..self.heading.len() {
            let needed = cells(place) + GAP;
            if needed > left {
                break;
            }
            left -= needed;
            widths.push(cells(place));
        }
        let taken: usize = widths[1..].iter().map(|width| width + GAP).sum();
        widths[0] = first.min(width.saturating_sub(taken));
        widths
    }
}

fn wide(text: &str) -> usize {
    Span::raw(text).width()
}

fn laid_out(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (place, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = cut(cell, *width);
        let room = " ".repeat(width.saturating_sub(wide(&cell)));
        match place {
            0 => line.extend([cell, room]),
            _ => line.extend([" ".repeat(GAP), room, cell]),
        }
    }
    line.trim_end().to_owned()
}

/// A text that is no wider than this, with a mark where something is missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if wide(text) <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        cut.push(letter);
        if wide(&cut) > width.saturating_sub(1) {
            cut.pop();
            break;
        }
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: usize) -> Vec<String> {
        let mut columns = Columns::new(&["RULE", "ALLOWED", "DENIED"]);
        columns.row(vec!["a-rule-with-a-long-name".into(), "12".into(), "3".into()], Style::new());
        columns.row(vec!["規則".into(), "1".into(), "1".into()], Style::new());
        let (heading, rows) = columns.lines(width, Style::new());
        std::iter::once(heading).chain(rows).map(|line| line.to_string()).collect()
    }

    #[test]
    fn what_has_no_room_is_cut_or_left_out() {
        assert_eq!(
            shown(60),
            [
                "RULE                     ALLOWED  DENIED",
                "a-rule-with-a-long-name       12       3",
                "規則                           1       1",
            ]
        );
        assert_eq!(shown(26)[1], "a-rule-with-a-lo…       12");
        assert!((0..60).all(|width| shown(width).iter().all(|line| wide(line) <= width)));
    }
}
