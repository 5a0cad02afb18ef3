//! What the library logs, kept for all tests of this binary together.

use std::io;
use std::sync::{Mutex, Once, PoisonError};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Line;

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps what is logged from now on.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Line).init());
}

/// How many lines contain all of these words.
pub(crate) fn count(words: &[&str]) -> usize {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
}
