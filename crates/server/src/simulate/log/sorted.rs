//! A log as requests in the order of time.
//!
//! Servers write lines when requests end, and several of them write one log, so lines are not quite in order.
//! Each is put in its place among [`WINDOW`] lines; one that is later than that counts as of the instant that
//! is reached, since time never runs backwards.

use std::io::{self, Read};

use memchr::memchr_iter;

use super::batch::Batch;
use super::blocks::Blocks;
use super::{BadLine, Reading};

/// A line that is this far from its place or less is put there.
pub(crate) const WINDOW: usize = 8_192;
/// More text than this is not kept at once, so that long lines do not take all memory.
const MAX_TEXT: usize = 32 * 1024 * 1024;
/// So many bad lines are told.
const SHOWN: usize = 5;

/// What became of the lines.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) lines: u64,
    pub(crate) bad: u64,
    /// The first of them.
    pub(crate) shown: Vec<BadLine>,
}

/// Reads a log into batches.
pub(crate) struct Sorted<R> {
    blocks: Blocks<R>,
    reading: Reading,
    /// What was read and is not due yet.
    waiting: Batch,
    /// Lines that were read and not looked at, and where the next one begins.
    block: String,
    at: usize,
    told: Told,
}

impl<R: Read> Sorted<R> {
    pub(crate) fn new(log: R, reading: Reading) -> Self {
        Self {
            blocks: Blocks::new(log),
            reading,
            waiting: Batch::default(),
            block: String::new(),
            at: 0,
            told: Told::default(),
        }
    }

    /// The next requests in the order of time, with a batch to use again; `None` after the last.
    ///
    /// # Errors
    /// The log can't be read on.
    pub(crate) fn next(&mut self, mut used: Batch) -> io::Result<Option<Batch>> {
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

    /// What became of the lines so far.
    pub(crate) fn told(self) -> Told {
        self.told
    }

    fn refill(&mut self) -> io::Result<bool> {
        let Some(block) = self.blocks.next()? else { return Ok(false) };
        // Once for all lines. What is no text may still be a line.
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
