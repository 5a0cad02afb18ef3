//! Positions of errors in a document.

/// A part of one line of a document, to which an error refers.
///
/// Lines and columns count from 1, columns in characters. A range with column 0 is a whole line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRange {
    // 32 bits suffice for a document, and its tree stores one range for each value.
    line: u32,
    column: u32,
    width: u32,
}

impl SourceRange {
    /// Returns the part of a line that begins at a column and is `width` characters wide. A width
    /// beyond the end of the line means the rest of the line; a width of 0 means the position alone.
    #[must_use]
    pub fn new(line: u64, column: u64, width: u64) -> Self {
        let fit = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self { line: fit(line), column: fit(column), width: fit(width) }
    }

    /// Creates a line, of which no part is known.
    #[must_use]
    pub fn whole_line(line: u64) -> Self {
        Self::new(line, 0, 0)
    }

    /// Returns the line.
    #[must_use]
    pub fn line(self) -> u64 {
        self.line.into()
    }

    /// Returns the column of the first character, if it is known.
    #[must_use]
    pub fn column(self) -> Option<u64> {
        (self.column > 0).then_some(self.column.into())
    }

    /// Returns the number of characters.
    #[must_use]
    pub fn width(self) -> u64 {
        self.width.into()
    }
}
