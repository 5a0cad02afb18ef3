//! How far it is, for a person who waits.

use std::io::{IsTerminal, Write};

use tidegate_core::{Span, Timestamp};
use tidegate_limiter::Clock;

/// Nobody is told about what takes less.
const PATIENCE: Span = Span::from_secs(2);
const WIDTH: usize = 32;

/// A bar on stderr, if that is a terminal and it takes a while.
pub(crate) struct Progress {
    clock: Option<Clock>,
    started: Timestamp,
    /// In cells of the bar, what is shown.
    shown: Option<usize>,
    /// How wide the longest line was.
    widest: usize,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let clock = std::io::stderr().is_terminal().then(Clock::system);
        let started = clock.as_ref().map_or(Timestamp::EPOCH, Clock::now);
        Self { clock, started, shown: None, widest: 0 }
    }

    /// A part of it is done, from 0 to 1.
    pub(crate) fn show(&mut self, part: f64) {
        let Some(clock) = &self.clock else { return };
        let cells = (part.clamp(0.0, 1.0) * WIDTH as f64) as usize;
        if self.shown == Some(cells) || clock.now().since(self.started) < PATIENCE {
            return;
        }
        self.draw(part, cells, "");
    }

    /// A part of it is done, from 0 to 1, and what there is to say of it right away.
    pub(crate) fn tell(&mut self, part: f64, text: &str) {
        if self.clock.is_some() {
            self.draw(part, (part.clamp(0.0, 1.0) * WIDTH as f64) as usize, text);
        }
    }

    fn draw(&mut self, part: f64, cells: usize, text: &str) {
        self.shown = Some(cells);
        let (done, left) = ("#".repeat(cells), ".".repeat(WIDTH - cells));
        let line = format!("[{done}{left}] {:3.0} %  {text}", part * 100.0);
        self.widest = self.widest.max(line.len());
        // Whoever does not want to see it has closed it.
        let _ = write!(std::io::stderr(), "\r{line:0$}", self.widest);
    }

    /// Leaves no trace of it.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r{:1$}\r", "", self.widest);
        }
    }
}
