//! Tables that drop columns in a narrow terminal.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Smallest width of the first column in cells, unless its content is narrower.
const MIN_FIRST_COLUMN: usize = 14;
/// Cells between two columns.
const COLUMN_GAP: usize = 2;

/// A table. The first column takes the remaining width; the other columns are right-aligned.
///
/// In a narrow terminal the rightmost columns are left out first.
pub(crate) struct ColumnTable {
    heading: Vec<String>,
    rows: Vec<(Vec<String>, Style)>,
}

impl ColumnTable {
    pub(crate) fn new(heading: &[&str]) -> Self {
        let heading = heading.iter().map(|&cell| cell.to_owned()).collect();
        Self { heading, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>, style: Style) {
        self.rows.push((cells, style));
    }

    /// Returns the heading and the rows, none wider than `width`.
    pub(crate) fn lines(
        &self,
        width: usize,
        heading: Style,
    ) -> (Line<'static>, Vec<Line<'static>>) {
        let widths = self.widths(width);
        let line =
            |cells: &[String], style| Line::from(Span::styled(format_row(cells, &widths), style));
        let rows = self.rows.iter().map(|(cells, style)| line(cells, *style)).collect();
        (line(&self.heading, heading), rows)
    }

    /// Returns the widths of the columns that fit.
    fn widths(&self, width: usize) -> Vec<usize> {
        let content_width = |column: usize| {
            let rows = self.rows.iter().filter_map(move |(cells, _)| cells.get(column));
            rows.chain(self.heading.get(column))
                .map(|cell| cell_width(cell))
                .max()
                .unwrap_or_default()
        };
        let first = content_width(0);
        let mut widths = vec![first];
        let mut left = width.saturating_sub(first.min(MIN_FIRST_COLUMN.max(width / 3)));
        for column in 1..self.heading.len() {
            let needed = content_width(column) + COLUMN_GAP;
            if needed > left {
                break;
            }
            left -= needed;
            widths.push(needed - COLUMN_GAP);
        }
        let taken: usize = widths[1..].iter().map(|width| width + COLUMN_GAP).sum();
        widths[0] = first.min(width.saturating_sub(taken));
        widths
    }
}

/// Returns the width of a text in terminal cells.
fn cell_width(text: &str) -> usize {
    Span::raw(text).width()
}

fn format_row(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = truncate(cell, *width);
        let padding = " ".repeat(width.saturating_sub(cell_width(&cell)));
        match column {
            0 => line.extend([cell, padding]),
            _ => line.extend([" ".repeat(COLUMN_GAP), padding, cell]),
        }
    }
    line.trim_end().to_owned()
}

/// Returns a text of at most `width` cells. A shortened text ends with `…`.
pub(crate) fn truncate(text: &str, width: usize) -> String {
    if cell_width(text) <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        cut.push(letter);
        if cell_width(&cut) > width.saturating_sub(1) {
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

    fn lines_at(width: usize) -> Vec<String> {
        let mut columns = ColumnTable::new(&["RULE", "ALLOWED", "DENIED"]);
        columns.row(vec!["a-rule-with-a-long-name".into(), "12".into(), "3".into()], Style::new());
        columns.row(vec!["規則".into(), "1".into(), "1".into()], Style::new());
        let (heading, rows) = columns.lines(width, Style::new());
        std::iter::once(heading).chain(rows).map(|line| line.to_string()).collect()
    }

    #[test]
    fn long_cells_are_truncated_and_last_columns_dropped() {
        assert_eq!(
            lines_at(60),
            [
                "RULE                     ALLOWED  DENIED",
                "a-rule-with-a-long-name       12       3",
                "規則                           1       1",
            ]
        );
        assert_eq!(lines_at(26)[1], "a-rule-with-a-lo…       12");
        assert!((0..60).all(|width| lines_at(width).iter().all(|line| cell_width(line) <= width)));
    }
}
