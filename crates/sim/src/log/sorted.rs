//! A log as requests in the order of time.
//!
//! Servers write a line when a request ends, and several servers may write one log, so lines are slightly out of
//! order. Each line is sorted among [`SORT_WINDOW_LINES`] lines. A line that is later than that counts at the time
//! of the line before it, because time never runs backwards.

use std::io::{self, Read};

use memchr::memchr_iter;

use crate::log::batch::RequestBatch;
use crate::log::blocks::LineBlocks;
use crate::log::{BadLine, LineReader};

/// Number of lines within which a line is sorted.
pub(crate) const SORT_WINDOW_LINES: usize = 8_192;
/// Maximum size of the text in memory, a bound for logs with long lines.
const MAX_TEXT_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of bad lines that are reported.
const MAX_REPORTED_BAD_LINES: usize = 5;

/// Counts of lines.
#[derive(Debug, Default)]
pub(crate) struct LogSummary {
    pub(crate) lines: u64,
    pub(crate) bad: u64,
    /// The first bad lines.
    pub(crate) shown: Vec<BadLine>,
}

/// Reads a log into batches.
pub(crate) struct SortedLog<R> {
    blocks: LineBlocks<R>,
    reading: LineReader,
    /// Requests that are not sorted yet.
    waiting: RequestBatch,
    /// Unparsed lines, and the start of the next one.
    block: String,
    at: usize,
    summary: LogSummary,
}

impl<R: Read> SortedLog<R> {
    pub(crate) fn new(log: R, reading: LineReader) -> Self {
        Self {
            blocks: LineBlocks::new(log),
            reading,
            waiting: RequestBatch::default(),
            block: String::new(),
            at: 0,
            summary: LogSummary::default(),
        }
    }

    /// Returns the next requests in the order of time, in a batch that is reused; `None` after the last.
    ///
    /// # Errors
    /// Reading the log failed.
    pub(crate) fn next(&mut self, mut used: RequestBatch) -> io::Result<Option<RequestBatch>> {
        let more = loop {
            if self.waiting.len() >= 2 * SORT_WINDOW_LINES || self.waiting.bytes() >= MAX_TEXT_BYTES
            {
                break true;
            }
            if self.at >= self.block.len() && !self.refill()? {
                break false;
            }
            self.read_lines();
        };
        self.waiting.sort();
        used.clear();
        if more {
            let due = self.waiting.len() / 2;
            self.waiting.split(due, self.reading.names().len(), &mut used);
        }
        let ready = std::mem::replace(&mut self.waiting, used);
        Ok((ready.len() > 0).then_some(ready))
    }

    /// Returns the counts of lines so far.
    pub(crate) fn summary(self) -> LogSummary {
        self.summary
    }

    fn refill(&mut self) -> io::Result<bool> {
        let Some(block) = self.blocks.next()? else { return Ok(false) };
        // Decodes all lines at once. A line with invalid UTF-8 may still be readable.
        self.block = String::from_utf8(block)
            .unwrap_or_else(|wrong| String::from_utf8_lossy(wrong.as_bytes()).into_owned());
        self.at = 0;
        Ok(true)
    }

    /// Reads lines of the block until enough are waiting.
    fn read_lines(&mut self) {
        let start = self.at;
        let text = &self.block[start..];
        let ends = memchr_iter(b'\n', text.as_bytes()).chain([text.len()]);
        let mut from = 0;
        for end in ends {
            let line = text.get(from..end).unwrap_or_default();
            from = (end + 1).min(text.len());
            if end == text.len() && line.is_empty() {
                break;
            }
            self.summary.lines += 1;
            let line = line.strip_suffix('\r').unwrap_or(line);
            if !line.is_empty()
                && let Err(error) = self.reading.read(line, &mut self.waiting)
            {
                self.summary.bad += 1;
                if self.summary.shown.len() < MAX_REPORTED_BAD_LINES {
                    self.summary.shown.push(error.at_line(self.summary.lines));
                }
            }
            if self.waiting.len() >= 2 * SORT_WINDOW_LINES {
                self.at = start + from;
                return;
            }
        }
        self.at = self.block.len();
    }
}
