//! Positions in a document.

/// A part of one line of a document, to which an error refers.
///
/// Lines and columns count from 1, columns in characters. A mark whose column is 0 names a line and
/// no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    // A document is far too short for larger numbers, and its tree has a mark for each value.
    line: u32,
    column: u32,
    width: u32,
}

impl Mark {
    /// The part of a line that begins at a column and is so many characters wide. A width beyond
    /// the end of the line means the rest of it, a width of 0 the position alone.
    #[must_use]
    pub fn new(line: u64, column: u64, width: u64) -> Self {
        let fit = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self { line: fit(line), column: fit(column), width: fit(width) }
    }

    /// A line, of which no part is known.
    #[must_use]
    pub fn line_alone(line: u64) -> Self {
        Self::new(line, 0, 0)
    }

    /// The line.
    #[must_use]
    pub fn line(self) -> u64 {
        self.line.into()
    }

    /// The column of the first character, if it is known.
    #[must_use]
    pub fn column(self) -> Option<u64> {
        (self.column > 0).then_some(self.column.into())
    }

    /// The number of characters.
    #[must_use]
    pub fn width(self) -> u64 {
        self.width.into()
    }
}
