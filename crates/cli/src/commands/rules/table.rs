//! Plain tables for the terminal.

use tidegate_core::TerminalSafe;

/// Rows under a heading. Each column is as wide as its widest cell.
pub(crate) struct TextTable<const COLUMNS: usize> {
    rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> TextTable<COLUMNS> {
    pub(crate) fn new(heading: [&str; COLUMNS]) -> Self {
        Self { rows: vec![heading.map(str::to_owned)] }
    }

    pub(crate) fn row(&mut self, cells: [&str; COLUMNS]) {
        self.rows.push(cells.map(|cell| TerminalSafe::from(cell).to_string()));
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let width = |cell: &str| cell.chars().count();
        let mut widths = [0; COLUMNS];
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = width(cell).max(*widest);
            }
        }
        self.rows.iter().map(move |row| {
            let mut line = String::new();
            for (cell, widest) in row.iter().zip(widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', widest - width(cell) + 2));
            }
            line.trim_end().to_owned()
        })
    }
}

/// Formats Unix seconds in UTC: `2026-11-16T07:00:00Z`.
pub(crate) fn format_utc(seconds: u64) -> String {
    let instant = i64::try_from(seconds).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    instant.map_or_else(|| seconds.to_string(), |instant| instant.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_cells_and_control_characters_are_replaced() {
        let mut table = TextTable::new(["", "AUTHOR", "NOTE"]);
        table.row(["*", "zoë@laptop", "two\nlines\u{1b}[2J\u{202e}"]);
        table.row(["", "x", ""]);
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(
            lines,
            ["   AUTHOR      NOTE", "*  zoë@laptop  two\u{fffd}lines\u{fffd}[2J\u{fffd}", "   x"]
        );
    }

    #[test]
    fn time_is_formatted_in_utc() {
        assert_eq!(format_utc(1_763_276_400), "2025-11-16T07:00:00Z");
        assert_eq!(format_utc(u64::MAX), u64::MAX.to_string());
    }
}
