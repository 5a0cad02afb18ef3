//! The upper bound of a limit's admissions.

use std::fmt;

use crate::time::Span;

/// The most that a limit admits, as `validate` and `explain` print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The most that is admitted in any span as long as the window, wherever it starts.
    pub most: u64,
    /// The window; zero for a limit in flight, which counts at each instant.
    pub window: Span,
    /// The most in one window that starts at a multiple of its length, if that is less.
    pub aligned: Option<u64>,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { most, window, aligned } = self;
        if window.is_zero() {
            return write!(f, "at most {most} at any instant");
        }
        write!(f, "at most {most} in any {window}")?;
        match aligned {
            Some(aligned) => write!(f, ", {aligned} in each window aligned to the clock"),
            None => Ok(()),
        }
    }
}
