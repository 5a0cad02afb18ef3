//! A log as requests in the order of time.
//!
//! Servers write lines when requests end, and several of them write one log, so lines are not quite in order.
//! Each is sorted among [`WINDOW`] lines; one that is later than that counts at the time that
//! is reached, because time never runs backwards.

use std::io::{self, Read};

use memchr::memchr_iter;

use crate::log::batch::RequestBatch;
use crate::log::blocks::LineBlocks;
use crate::log::{BadLine, LineReader};

/// Number of lines within which a line is sorted.
pub(crate) const WINDOW: usize = 8_192;
/// Most text in memory, so that long lines do not fill it.
const MAX_TEXT: usize = 32 * 1024 * 1024;
/// Number of bad lines that are reported.
const SHOWN: usize = 5;

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
    /// Requests that wait to be sorted.
    waiting: RequestBatch,
    /// Unparsed lines, and the start of the next one.
    block: String,
    at: usize,
    told: LogSummary,
}

impl<R: Read> SortedLog<R> {
    pub(crate) fn new(log: R, reading: LineReader) -> Self {
        Self {
            blocks: LineBlocks::new(log),
            reading,
            waiting: RequestBatch::default(),
            block: String::new(),
            at: 0,
            told: LogSummary::default(),
        }
    }

    /// Returns the next requests in the order of time, in a batch that is reused; `None` after the last.
    ///
    /// # Errors
    /// The log can't be read on.
    pub(crate) fn next(&mut self, mut used: RequestBatch) -> io::Result<Option<RequestBatch>> {
        let more = loop {
            if self.waiting.len() >= 2 * WINDOW || self.waiting.bytes() >= MAX_TEXT {
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
    pub(crate) fn told(self) -> LogSummary {
        self.told
    }

    fn refill(&mut self) -> io::Result<bool> {
        let Some(block) = self.blocks.next()? else { return Ok(false) };
        // Once for all lines. A line with invalid UTF-8 may be readable.
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
            self.told.lines += 1;
            let line = line.strip_suffix('\r').unwrap_or(line);
            if !line.is_empty()
                && let Err(flaw) = self.reading.read(line, &mut self.waiting)
            {
                self.told.bad += 1;
                if self.told.shown.len() < SHOWN {
                    self.told.shown.push(flaw.on(self.told.lines));
                }
            }
            if self.waiting.len() >= 2 * WINDOW {
                self.at = start + from;
                return;
            }
        }
        self.at = self.block.len();
    }
}
