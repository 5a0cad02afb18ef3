//! Medians of rounds, and tables in Markdown.

use std::fmt::Write as _;

use crate::results;

/// The median, the minimum and the maximum of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The smallest value.
    pub min: f64,
    /// The median. Of an even number of values it is the upper one of the middle two.
    pub median: f64,
    /// The largest value.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of the values; NaN if there are none.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self { min: at(0), median: at(values.len() / 2), max: at(values.len().saturating_sub(1)) }
    }

    /// Returns the spread of the ratios within each round.
    #[must_use]
    pub fn of_ratios(own: &[f64], base: &[f64]) -> Self {
        Self::from_values(own.iter().zip(base).map(|(own, base)| own / base))
    }

    /// Returns the spread in a larger unit.
    #[must_use]
    pub fn divided_by(self, divisor: f64) -> Self {
        let Self { min, median, max } = self;
        Self { min: min / divisor, median: median / divisor, max: max / divisor }
    }

    /// Formats the spread as `median (min to max)`.
    #[must_use]
    pub fn format(&self, digits: usize, unit: &str) -> String {
        let Self { min, median, max } = self;
        format!("{median:.digits$}{unit} ({min:.digits$} to {max:.digits$})")
    }
}

/// A table that is printed to stdout and saved as `NAME.md`.
#[derive(Debug)]
pub struct Table {
    name: String,
    caption: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table. The caption states the conditions of the run. The first column has the names of the rows.
    pub fn new<C: Into<String>>(
        name: &str,
        caption: &str,
        columns: impl IntoIterator<Item = C>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { name: name.to_owned(), caption: caption.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row. Missing cells at its end are empty.
    pub fn add_row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Prints and saves the table.
    #[allow(clippy::print_stdout, reason = "the tables are the output of a measurement")]
    pub fn print(&self) {
        let text = self.markdown();
        println!("### {}\n\n{text}", self.name);
        results::save(&format!("{}.md", self.name), &text);
    }

    fn markdown(&self) -> String {
        let mut text = format!("{}\n\n", self.caption);
        let mut line = |cells: &[String]| {
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        };
        line(&self.columns);
        let alignments =
            (0..self.columns.len()).map(|column| if column == 0 { "---" } else { "---:" });
        line(&alignments.map(str::to_owned).collect::<Vec<_>>());
        for row in &self.rows {
            let mut row = row.clone();
            row.resize(self.columns.len(), String::new());
            line(&row);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_computed_within_a_round() {
        let ratios = Spread::of_ratios(&[2000.0, 2000.0, 2000.0], &[1000.0, 2000.0, 4000.0]);
        assert_eq!(ratios.format(2, ""), "1.00 (0.50 to 2.00)");
    }

    #[test]
    fn spread_is_formatted_in_a_larger_unit() {
        let spread = Spread::from_values([3000.0, 1000.0, 2000.0]).divided_by(1e3);
        assert_eq!(spread.format(1, "k"), "2.0k (1.0 to 3.0)");
    }

    #[test]
    fn short_rows_are_filled_with_empty_cells() {
        let mut table = Table::new("name", "Two rounds.", ["", "a", "b"]);
        table.add_row(["x", "1"]);
        assert_eq!(
            table.markdown(),
            "Two rounds.\n\n|  | a | b |\n| --- | ---: | ---: |\n| x | 1 |  |\n"
        );
    }
}
