//! A progress bar on stderr.

use std::io::{IsTerminal, Write};

use tidegate_core::{Span, Timestamp};
use tidegate_limiter::Clock;

/// A shorter run shows no bar.
const SHOW_AFTER: Span = Span::from_secs(2);
/// Width of the bar in cells.
const BAR_CELLS: usize = 32;

/// A bar on stderr, if stderr is a terminal.
pub(crate) struct ProgressBar {
    /// `None` if stderr is no terminal.
    clock: Option<Clock>,
    started: Timestamp,
    /// Filled cells of the bar; `None` while no bar is shown.
    filled: Option<usize>,
    /// Length of the longest line so far.
    widest: usize,
}

impl ProgressBar {
    pub(crate) fn new() -> Self {
        let clock = std::io::stderr().is_terminal().then(Clock::system);
        let started = clock.as_ref().map_or(Timestamp::EPOCH, Clock::now);
        Self { clock, started, filled: None, widest: 0 }
    }

    /// Shows the completed part, from 0 to 1, once the run takes longer than [`SHOW_AFTER`].
    pub(crate) fn show(&mut self, part: f64) {
        let Some(clock) = &self.clock else { return };
        let cells = (part.clamp(0.0, 1.0) * BAR_CELLS as f64) as usize;
        if self.filled == Some(cells) || clock.now().since(self.started) < SHOW_AFTER {
            return;
        }
        self.draw(part, cells, "");
    }

    /// Shows the completed part, from 0 to 1, and a text, at once.
    pub(crate) fn show_with_text(&mut self, part: f64, text: &str) {
        if self.clock.is_some() {
            self.draw(part, (part.clamp(0.0, 1.0) * BAR_CELLS as f64) as usize, text);
        }
    }

    fn draw(&mut self, part: f64, cells: usize, text: &str) {
        self.filled = Some(cells);
        let (done, left) = ("#".repeat(cells), ".".repeat(BAR_CELLS - cells));
        let line = format!("[{done}{left}] {:3.0} %  {text}", part * 100.0);
        self.widest = self.widest.max(line.len());
        // A closed stderr is no error.
        let _ = write!(std::io::stderr(), "\r{line:0$}", self.widest);
    }

    /// Removes the bar from the terminal.
    pub(crate) fn clear(&mut self) {
        if self.filled.take().is_some() {
            let _ = write!(std::io::stderr(), "\r{:1$}\r", "", self.widest);
        }
    }
}
